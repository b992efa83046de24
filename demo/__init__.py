"""The demo: a small source with known truth, and servers of one's own to run the whole line over it."""
