"""BookKeeper's two protocols: frames, messages, digests."""
