"""gRPC: the service of named logs, and relays between servers."""

import os

# gRPC reads these settings once, when it is loaded. Without the first, it reports what peers do on a
# program's standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Without the second, a thread of gRPC reads each socket and wakes the thread that wakes the loop, which
# takes a third of a small message's CPU time and latency. A version without these settings ignores them.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
