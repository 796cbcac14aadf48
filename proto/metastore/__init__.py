"""Rollbook's own metadata store: its rules and the encoding of its messages (`core`), its client,
the host of the service, and a store in memory. The embedded store and its Unix socket are in
`proto/runtime/metastore`.
"""
