"""The rules of the Spark connector: options, plans, progress, archives."""
