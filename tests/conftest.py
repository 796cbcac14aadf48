"""Of every test."""

# gRPC looks once, when it is loaded, at what the product sets for it; and most tests import gRPC first.
import rollbook.api.grpc  # noqa: F401
