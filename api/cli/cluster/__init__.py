"""`rollbook cluster`: creates a cluster and shows its state."""
