"""One storage server of ledgers' entries."""
