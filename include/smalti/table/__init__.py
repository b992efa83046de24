"""The Lance table of a source: ingest, columns that are filled in later, indices."""
