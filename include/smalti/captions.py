"""How columns of words are called in shards. Imports nothing: training runs read it, too."""

CAPTION_COLUMN = r"caption(_[a-z0-9][a-z0-9_]*)?"
"""`caption`, of the source's captioner; `caption_source` and `caption_<profile>`, extra ones."""
