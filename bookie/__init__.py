"""A bookie: a server that stores entries of ledgers."""
