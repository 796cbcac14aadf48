"""A metadata store of our own: its rules, its client, and its forms in memory and on a socket."""
