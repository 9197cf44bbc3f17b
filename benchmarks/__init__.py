"""Side-by-side measurements against the peers: `make bench` prints ratios, and what got worse. They are not tests."""
