"""`python -m smalti.jobs STAGE --spec URI`: the one entry point of every Ray job."""
