"""`rollbook debug`: collects diagnostics for support."""
