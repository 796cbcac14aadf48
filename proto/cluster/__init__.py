"""The content of a cluster's metadata store: ledgers, bookies, cookies, marks, elections."""
