"""Opt-outs: what people ask for, what it matches, and the proof that it is gone. `smalti.release.optouts` is what readers see of it."""
