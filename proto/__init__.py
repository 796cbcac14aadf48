"""The base that every package shares: terms, values, formats and ports. See DESIGN.md."""
