"""The name of a deleted log is free at once, and the log can be undeleted until its grace ends."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

import rollbook
from rollbook.proto import errors
from tests.regressions import lone_server
from tests.regressions.defects import defect
from tests.regressions.lone_server import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with lone_server.running(tmp_path_factory.mktemp("undeleted"), "--insecure") as found:
        yield found


def shell(site: Site, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rollbook.api.cli.main", *words, "--server", site.url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@defect(
    "name-of-a-deleted-log-is-taken",
    "The name of a deleted log could not be used again for a day, until its records were freed.",
)
def test_name_of_deleted_log_is_free_and_its_records_restorable(site: Site) -> None:
    with rollbook.connect(site.url) as client:
        first = client.open("orders", create=True)
        first.append(b"of the first")
        first.cursor("seen").commit(1)
        client.delete("orders")
        second = client.open("orders", create=True)
        assert second.uid != first.uid
        assert [each.value for each in second.read()] == []
        assert second.cursors() == ()
        second.append(b"of the second")
        second.cursor("kept").commit(1, protect=True)
        with pytest.raises(errors.LogReplaced):
            first.append(b"late")
        (kept,) = client.deleted("default", "orders")
        assert (str(kept.log), kept.uid, kept.has_name) == ("default/orders", first.uid, False)
        assert kept.free_at_us > kept.deleted_us
        with pytest.raises(errors.LogExists):
            client.undelete("orders")
        back = client.undelete("orders", to="orders-of-before")
        assert [each.value for each in client.open(back).read()] == [b"of the first"]
        client.open(back).append(b"more")
        assert [each.value for each in client.open("orders").read()] == [b"of the second"]
        assert client.deleted() == ()
        client.delete(back)  # Deleting and undeleting works under the new name, too.
        assert client.undelete(back) == back
        assert [each.value for each in client.open(back).read()] == [b"of the first", b"more"]


@defect(
    "deleted-log-cannot-come-back",
    "A log that was deleted by mistake could not be brought back, though its records were there for a day.",
)
def test_deleted_log_is_listed_and_can_be_undeleted(site: Site) -> None:
    with rollbook.connect(site.url) as client:
        log = client.open("shop/carts", create=True)
        log.append(b"a")
        log.cursor("mark").commit(1, protect=True)
        # A protected cursor is in its way.
        assert shell(site, "log", "rm", "shop/carts", "--yes").returncode != 0
        log.cursor("mark").commit(1, protect=False)
        assert shell(site, "log", "rm", "shop/carts", "--yes").returncode == 0
        said = shell(site, "log", "ls", "--deleted")
        assert "shop/carts" in said.stdout, said.stderr
        assert log.uid in said.stdout
        assert "shop/carts" not in shell(site, "log", "ls").stdout
        undeleted = shell(site, "log", "undelete", log.uid, "-o", "raw")
        assert (undeleted.returncode, undeleted.stdout) == (0, "shop/carts\n"), undeleted.stderr
        # The handle still works, because the uid is the same.
        assert log.append(b"b").first_offset == 1
        assert [each.value for each in log.read()] == [b"a", b"b"]
        (cursor,) = log.cursors()
        assert cursor.offset == 1
        log.cursor("mark").commit(2, protect=True)  # The deletion left no restriction.
        again = shell(site, "log", "undelete", "shop/carts")
        assert again.returncode == 3
        assert "no deleted log shop/carts" in again.stderr


@defect(
    "deleted-log-cannot-come-back",
    "A log that was deleted by mistake could not be brought back, though its records were there for a day.",
)
def test_undelete_keeps_the_seal_and_selects_by_uid(site: Site) -> None:
    with rollbook.connect(site.url) as client:
        uids = []
        for life in range(3):
            log = client.open("lives", create=True)
            log.append(b"%d" % life)
            log.seal()
            uids.append(log.uid)
            client.delete("lives")
        with pytest.raises(errors.InvalidRequest, match="3 logs were deleted as default/lives"):
            client.undelete("lives")
        client.undelete("lives", uid=uids[1])
        back = client.open("lives")
        assert back.uid == uids[1]
        assert [each.value for each in back.read()] == [b"1"]
        with pytest.raises(errors.LogSealed):
            back.append(b"x")
        assert [each.uid for each in client.deleted("default", "lives")] == [uids[0], uids[2]]
        with pytest.raises(errors.NoSuchLog):
            client.undelete("lives", uid="0" * 32)


@defect(
    "rm-now-waits",
    "`log rm --now` left the name and the records until a server's next look at all logs.",
)
def test_log_removed_with_now_cannot_be_undeleted(site: Site) -> None:
    with rollbook.connect(site.url) as client:
        log = client.open("gone", create=True)
        log.append(b"a")
        client.delete("gone")
        assert shell(site, "log", "rm", "gone", "--now", "--yes").returncode == 0
        assert client.deleted("default", "gone") == ()
        with pytest.raises(errors.NoSuchLog):
            client.undelete("gone")
        with pytest.raises(errors.NoSuchLog):
            client.open("gone")
