"""The formats of nodes in the metadata store: BookKeeper's and our own."""
