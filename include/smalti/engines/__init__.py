"""Captioners and classifiers, by profile: `open_captioner`, `open_classifier`."""
