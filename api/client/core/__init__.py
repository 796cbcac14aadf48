"""The rules of the client: what is retried, and what stays in doubt."""
