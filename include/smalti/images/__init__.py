"""Pixels: which bucket a picture goes to, how it is decoded, cut, encoded, and recognised again."""
