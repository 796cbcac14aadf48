"""The client of named logs: what programs import, with an event loop or without."""

import rollbook.api.grpc  # noqa: F401  # Must be imported before gRPC is loaded.
