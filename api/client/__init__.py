"""See ../DESIGN.md."""

import rollbook.api.grpc  # noqa: F401  # It must run before gRPC is loaded.
