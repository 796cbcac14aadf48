"""`rollbook apply`: creates and updates logs from a file."""
