"""Certificates: what a release costs, by which theorem, on whose word, in a form that anybody can check."""
