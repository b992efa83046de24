"""Parts: eligible rows, cut to their buckets, as MDS shards."""
