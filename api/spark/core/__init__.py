"""See ../../DESIGN.md."""
