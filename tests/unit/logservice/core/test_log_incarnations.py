"""LL9: a request that names a log's uid is served by that log or refused."""

import pytest

from rollbook.logservice.core.config_etag import check_etag, etag_of
from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.core.log_incarnations import check_life, text_of
from rollbook.logservice.ids import LogName, LogUid, Offset
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.position_syntax import AtOffset, parse_position
from rollbook.proto.errors import InvalidRequest, LogReplaced, MetadataConflict

LOG = LogName("ns", "log")
FIRST_UID, SECOND_UID = LogUid(bytes(16)), LogUid(bytes(range(16)))
FIRST, SECOND = text_of(FIRST_UID), text_of(SECOND_UID)


def test_uid_of_another_log_is_refused_with_both() -> None:
    check_life(LOG, FIRST, FIRST)
    check_life(LOG, FIRST, "")  # Without a uid, any log of this name.
    with pytest.raises(LogReplaced) as refused:
        check_life(LOG, SECOND, FIRST)
    assert refused.value.ids == {"log": "ns/log", "uid": SECOND, "expected_uid": FIRST}


def test_position_may_include_the_uid_of_its_log() -> None:
    position = parse_position(f"17@{FIRST}")
    assert (position, str(position)) == (
        AtOffset(Offset(17), FIRST),
        f"17@{FIRST}",
    )
    for text in ("17@", "17@x", f"-17@{FIRST}", f"17@{FIRST}0", f"latest@{FIRST}"):
        with pytest.raises(InvalidRequest):
            parse_position(text)


def test_etag_identifies_one_log_and_one_configuration() -> None:
    first, second = (LedgerList(uid, LogConfig(), created_us=0) for uid in (FIRST_UID, SECOND_UID))
    check_etag(LOG, first, etag_of(first))
    check_etag(LOG, first, "")
    with pytest.raises(LogReplaced):
        check_etag(LOG, second, etag_of(first))
    changed = first.with_config(LogConfig(description="other"))
    with pytest.raises(MetadataConflict):
        check_etag(LOG, changed, etag_of(first))
    old = etag_of(first).partition("-")[2]  # The format of earlier releases.
    check_etag(LOG, second, old)
    with pytest.raises(MetadataConflict):
        check_etag(LOG, changed, old)
