"""`rollbook demo`: a cluster on one machine, with load and failures."""
