"""See ../DESIGN.md."""

import rollbook.api.grpc  # noqa: F401  # It has something to say before gRPC is loaded.
