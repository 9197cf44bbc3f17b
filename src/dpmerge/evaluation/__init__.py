"""Scores of merged models on public data: evaluators, one matrix product for many linear models, a cache."""
