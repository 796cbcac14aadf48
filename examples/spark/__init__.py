"""Jobs of Spark over logs, to copy from."""
