"""What a cluster keeps in its metadata store: ledgers, bookies, cookies, marks, elections."""
