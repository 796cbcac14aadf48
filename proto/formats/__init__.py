"""The formats of nodes in the metadata store, as BookKeeper has them or our own."""
