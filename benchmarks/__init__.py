"""Speed, as ratios of two things measured in one run: `make bench`."""
