"""Set-up for all tests."""

# gRPC reads its settings when it is loaded, so the product must set them before tests import gRPC.
import rollbook.api.grpc  # noqa: F401
