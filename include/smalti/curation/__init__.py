"""What a release leaves out, and why: decided over the samples.parquet of its parts."""
