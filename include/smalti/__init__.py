"""smalti: mixed image sources in, versioned bucketed MDS training sets out."""

__version__ = "0.1.0"
