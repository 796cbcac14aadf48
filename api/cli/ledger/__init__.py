"""`rollbook ledger`: creates, reads, verifies and deletes ledgers."""
