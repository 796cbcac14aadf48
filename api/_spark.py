"""`import rollbook.spark`: what `rollbook.api.spark` offers, under the name that users write."""

from rollbook.api.spark import Lag, RollbookListener, lag, read, read_stream, register

__all__ = ["Lag", "RollbookListener", "lag", "read", "read_stream", "register"]
