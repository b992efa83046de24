"""Keeping a lake tidy: parts rewritten and merged, garbage collected. Nothing that a live release needs ever goes."""
