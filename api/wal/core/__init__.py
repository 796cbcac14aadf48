"""The rules of replicated state machines: terms, replicas, snapshots."""
