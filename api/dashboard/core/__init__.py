"""The dashboard's computations and pages, without a server."""
