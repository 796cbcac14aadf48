"""The shared base of every package: terms, values, formats, ports. See DESIGN.md."""
