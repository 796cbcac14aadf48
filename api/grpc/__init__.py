"""See ../DESIGN.md."""
