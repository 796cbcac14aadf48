"""The rules of a metadata store: tree, sessions, watches, messages."""
