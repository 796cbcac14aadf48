"""Named logs made of ledgers: ownership, segments, offsets, readers."""
