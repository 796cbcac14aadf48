"""gRPC: the service of named logs, and relays between servers."""

import os

# gRPC reads these settings once, when it is loaded. Without the first one, it writes errors of peers to
# the program's standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Without the second one, a thread of gRPC reads each socket and wakes another thread, which wakes the
# loop. These threads take a third of a small message's CPU time and latency. A version of gRPC without
# these settings ignores them.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
