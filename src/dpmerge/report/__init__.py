"""Analyses drawn: one self-contained page, pictures, tables, plain text."""
