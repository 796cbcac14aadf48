"""`import rollbook.spark`: what `rollbook.api.spark` offers, under the name that users write."""

from rollbook.api.spark import Lag, RollbookListener, lag, read, read_stream, register
from rollbook.api.spark.__main__ import run_pipeline

__all__ = ["Lag", "RollbookListener", "lag", "read", "read_stream", "register", "run_pipeline"]
