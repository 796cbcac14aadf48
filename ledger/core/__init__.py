"""The rules of a ledger's client: writing, reading, recovery, placement."""
