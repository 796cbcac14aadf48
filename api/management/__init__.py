"""The cluster as HTTP management and the dashboard see it: cookies, ledgers, operations and callbacks."""
