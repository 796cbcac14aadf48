"""BookKeeper's two protocols: their frames, messages and digests."""
