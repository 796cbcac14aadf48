"""The dashboard: pages on which operators inspect and manage a cluster, rendered on the server."""
