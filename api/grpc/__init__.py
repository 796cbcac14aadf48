"""gRPC: the service of named logs, and relays between servers."""

import os

# gRPC reads these settings once, when it is loaded. Without GRPC_VERBOSITY, it reports faults of peers on
# the program's standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Without GRPC_EXPERIMENTS, a thread of gRPC reads each socket and wakes another thread, which wakes the
# loop. These threads take a third of a small message's CPU time and latency. A version of gRPC that does not
# have these experiments ignores the setting.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
