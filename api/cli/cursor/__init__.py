"""`rollbook cursor`: lists, moves and removes cursors in logs."""
