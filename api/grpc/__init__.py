"""See ../DESIGN.md."""

import os

# Else gRPC writes on a program's standard error whatever a peer does. It looks once, when it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
