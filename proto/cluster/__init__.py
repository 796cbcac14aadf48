"""The contents of a cluster's metadata store: ledgers, bookies, cookies, marks and elections."""
