"""Sources: what lies in a bucket or a folder, pinned by generation and read as common rows."""
