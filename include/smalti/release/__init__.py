"""Releases: manifests over parts, checked, published, pulled and rewritten."""
