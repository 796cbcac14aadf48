"""The client of named logs, for programs with or without an event loop."""

import rollbook.api.grpc  # noqa: F401  # Must be imported before gRPC is loaded.
