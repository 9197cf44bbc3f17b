"""Attacks on what is certified: lower bounds on ε, found by playing the attacker against simulated or trained models.

Kept apart from the accounting: nothing here that simulates or estimates imports it, so that a wrong theorem, a wrong
premise or a bug shows as a lower bound above a certificate. What is certified is asked for in `claims` alone.
"""
