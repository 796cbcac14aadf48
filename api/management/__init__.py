"""Management of the cluster for HTTP and the dashboard: cookies, ledgers, operations and callbacks."""
