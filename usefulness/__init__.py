"""Is what `dpmerge plan` would release at least as good as the best model somebody already had? `make usefulness`."""
