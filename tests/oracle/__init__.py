"""Slow, independent computations of the quantities the package certifies."""
