"""`rollbook.aio`: the client that `import rollbook` offers, for programs with an event loop."""

from rollbook.api.client.async_client import Client, connect
from rollbook.api.client.cursor import Cursor
from rollbook.api.client.log import Log
from rollbook.api.client.producer_batch import Submission
from rollbook.api.client.reader import EventReader, RecordBatch, Tail
from rollbook.api.client.tails_watch import TailsWatch
from rollbook.api.client.writer import Writer
from rollbook.logservice.core.record_block import Record

__all__ = [
    "Client",
    "Cursor",
    "EventReader",
    "Log",
    "Record",
    "RecordBatch",
    "Submission",
    "Tail",
    "TailsWatch",
    "Writer",
    "connect",
]
