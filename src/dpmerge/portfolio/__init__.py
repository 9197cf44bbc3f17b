"""Portfolios: what was trained, as its manifests say, and what may be merged with what."""
