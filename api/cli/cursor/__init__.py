"""`rollbook cursor`: the cursors of readers in logs."""
