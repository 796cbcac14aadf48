"""The shared ground of every package: words, values, bytes, ports. See DESIGN.md."""
