"""The rules of the ledger client: writing, reading, recovery and placement."""
