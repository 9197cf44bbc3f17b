"""Certificates: what a release costs, by which theorem, vouched for by whom, in a form that anybody can check."""
