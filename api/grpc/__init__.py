"""gRPC: the service of named logs, and relays between servers."""

import os

# What gRPC reads once, when it is loaded. Otherwise it writes to a program's standard error
# whatever a peer does;
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# and a thread of its own reads each socket, to wake the one that wakes the loop: a third of the CPU
# time of a small message, and of its latency. A version without these settings ignores them.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
