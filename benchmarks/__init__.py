"""Side-by-side measurements against the peers: `make bench`. They print ratios; they are not tests."""
