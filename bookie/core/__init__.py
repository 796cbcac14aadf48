"""The rules and file formats of a bookie, without an event loop or a disk."""
