"""`rollbook bench`: puts load on a cluster and measures it."""
