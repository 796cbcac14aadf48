"""See ../DESIGN.md."""

import os

# What gRPC looks at once, when it is loaded. Else it writes on a program's standard error whatever a peer does;
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# and else a thread of its own reads each socket, to wake the one that wakes the loop: a third of the CPU time of
# a small message, and of its way there and back. A version that knows these no more goes without.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
