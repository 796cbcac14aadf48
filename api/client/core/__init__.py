"""The rules of the client: which requests are retried, and which outcomes stay unknown."""
