"""`rollbook access`: the file of principals and their rights."""
