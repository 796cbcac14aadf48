"""HTTP: logs for programs; bookies and clusters for operators."""
