"""Idempotency keys: a batch with a key is appended once, however often it is sent.

A key stands for a producer with one batch. The producer's id is `once:` followed by the key. If callers are
authenticated, a key belongs to its caller: instead of the key, the id contains a digest of the caller's name and the
key. The HTTP server makes this id itself. In gRPC calls and streams, the client's id is replaced here.
"""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final, TypeVar

from rollbook.api.access.authenticator import AuthenticatedCaller
from rollbook.logservice.core.record_block import HEADER_BYTES, producer_of, with_producer
from rollbook.logservice.ids import ONCE
from rollbook.logservice.messages import Append, Seal, StreamAppend
from rollbook.proto.errors import Invalid

_DIGEST_BYTES: Final = 29

A = TypeVar("A", bound=Append | Seal | StreamAppend)


def once(key: str, caller: AuthenticatedCaller) -> bytes:
    """The producer id of a caller's idempotency key."""
    if caller.authenticator is None:
        return ONCE + key.encode("latin-1")
    name = caller.principal.name
    scoped = f"{len(name)} {name} {key}".encode()
    return ONCE + blake2b(scoped, digest_size=_DIGEST_BYTES).hexdigest().encode()


def with_own_keys(
    appends: Sequence[StreamAppend], caller: AuthenticatedCaller
) -> Sequence[StreamAppend]:
    """Adds the caller's name to the keys of appends. Relayed appends have it already, from the entry server (RY2)."""
    if caller.authenticator is None or caller.is_relay or not any(map(_has_key, appends)):
        return appends
    return [with_own_key(each, caller) for each in appends]


def with_own_key(append: A, caller: AuthenticatedCaller) -> A:
    """Adds the caller's name to the key of one append, as `with_own_keys` does."""
    if caller.authenticator is None or caller.is_relay or not _has_key(append):
        return append
    try:
        assert append.block is not None
        producer = producer_of(append.block)
        if producer is None:  # There is no key: a plain record's value begins with the same bytes.
            return append
        key = producer.id.removeprefix(ONCE).decode("latin-1")
        block = with_producer(append.block, replace(producer, id=once(key, caller)))
    except Invalid:  # The log will refuse the block and give the reason.
        return append
    return replace(append, block=block)


def _has_key(append: Append | Seal | StreamAppend) -> bool:
    return append.block is not None and append.block.startswith(ONCE, HEADER_BYTES)
