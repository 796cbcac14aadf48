"""Generated messages and services of the public gRPC interface."""
