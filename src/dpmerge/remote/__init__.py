"""Files that are somewhere else: URLs as paths, object stores read by ranges and published to."""
