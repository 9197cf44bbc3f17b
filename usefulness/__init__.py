"""Is what `dpmerge plan` would release at least as good as the model somebody already had? `make usefulness`."""
