"""The pages in which operators look at a cluster and steer it, made on the server."""
