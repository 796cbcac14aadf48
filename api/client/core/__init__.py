"""The rules of the client: what is retried, and which outcomes stay unknown."""
