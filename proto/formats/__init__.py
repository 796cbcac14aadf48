"""The formats of nodes in the metadata store, both BookKeeper's and Rollbook's own."""
