"""Which runs to train, so that a range of targets can be served by averaging them later."""
