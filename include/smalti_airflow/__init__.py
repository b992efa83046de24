"""Airflow pieces of smalti: operators, triggers, assets, notifiers and DAG building blocks."""
