"""The pipelines in a real Spark session: its counts and hashes, and how it reads our files."""

from pathlib import Path
from typing import Any

import pytest

from rollbook.api import spark as rollbook_spark
from rollbook.api.client.sync import SyncClient
from rollbook.api.spark.archive_folder import Archive
from rollbook.api.spark.core import mirror_origin
from rollbook.api.spark.pipelines.audit import audit, audit_mirror
from rollbook.api.spark.pipelines.connection import Way
from rollbook.api.spark.pipelines.export import ExportOptions, export
from rollbook.api.spark.pipelines.job_report import Report
from rollbook.api.spark.pipelines.log_selection import selection_of
from rollbook.api.spark.pipelines.mirror import mirror
from rollbook.proto.errors import ArchiveUnwritable
from tests.regressions.lone_server import Site
from tests.spark.pipes import hash_of

pytestmark = pytest.mark.timeout(300)


def test_archive_and_its_log_are_read_as_one_table(
    spark: Any, site: Site, client: SyncClient, name: str, tmp_path: Path
) -> None:
    log = client.open(name, create=True)
    values = [b"v%d" % n for n in range(50)]
    log.append_many(values, keys=[b"k", None] * 25)
    log.append(b"last" * 20, headers={"h": b"1"}, event_time_us=5)
    way, archive = Way({"endpoint": site.url}), Archive(str(tmp_path / "archive"))
    selection = selection_of([name])
    wanted, report = ExportOptions(selection), Report("export")
    export(spark, archive, way, wanted, report, lambda *_: None)
    chain = archive.chain(f"default/{name}")
    assert chain is not None
    xor = 0
    for offset, value in enumerate([*values, b"last" * 20]):
        xor ^= hash_of(offset, value)
    assert (chain.next, chain.manifests[0].xor) == (51, xor)
    log.truncate(40)
    log.append(b"new")
    columns = "log,offset,timestamp,key,value,event_time,headers,writer_epoch"
    rows = rollbook_spark.read(
        spark, endpoint=site.url, log=name, archive=archive.path, columns=columns
    )
    sums = ("count(*)", "sum(offset)", "count(key)", "sum(size(headers))", "min(log)")
    found = rows.where("offset >= 1").selectExpr(*sums).collect()[0]
    assert tuple(found) == (51, 51 * 52 // 2, 24, 1, f"default/{name}")
    looked = Report("audit")
    audit(spark, way, archive, selection, looked, lambda *_: None)
    assert looked.findings == []
    Path(archive.path, "_steps").rmdir()
    Path(archive.path, "_steps").write_bytes(b"")  # Makes the tasks' writes fail.
    with pytest.raises(ArchiveUnwritable, match="the archive cannot be written"):
        export(spark, archive, way, wanted, report, lambda *_: None)
    assert log.cursor("archive").get().offset == 51


def test_mirror_has_each_record_once_with_its_origin(
    spark: Any, site: Site, client: SyncClient, name: str, tmp_path: Path
) -> None:
    """SA6: also after the checkpoint was lost."""
    log, copy = client.open(name, create=True), client.open(f"{name}-copy", create=True)
    way, names = Way({"endpoint": site.url}), (f"default/{name}", f"default/{name}-copy")
    log.append_many([b"v%d" % n for n in range(30)], keys=[b"k", None] * 15)
    said = {mirror_origin.LOG: mirror_origin.as_text(names[0], log.uid).encode()}
    copy.append(b"v0", key=b"k", headers=said | {mirror_origin.OFFSET: b"0"})
    log.append(b"new", headers={"h": b"1"}, event_time_us=5)
    mirror(spark, way, way, *names, str(tmp_path / "new"), Report("mirror"), lambda *_: None)
    log.append(b"later")
    found = list(copy.read())
    assert [each.value for each in found] == [*(b"v%d" % n for n in range(30)), b"new"]
    origin = mirror_origin.origin_of(dict(found[-1].headers))
    assert origin == mirror_origin.RecordOrigin(f"default/{name}", log.uid, 30)
    assert (found[-1].headers["h"], found[-1].event_time_us) == (b"1", 5)
    looked = Report("audit")
    audit_mirror(spark, way, way, *names, looked, lambda *_: None)
    assert looked.findings == []
    assert looked.logs[names[1]]["behind"] == 1
    copy.truncate(31)  # The checkpoint still has the mirror's position.
    mirror(spark, way, way, *names, str(tmp_path / "new"), Report("mirror"), lambda *_: None)
    assert [each.value for each in copy.read()] == [b"later"]
    copy.append(b"of somebody else")
    looked = Report("audit")
    audit_mirror(spark, way, way, *names, looked, lambda *_: None)
    assert [(each.kind, each.start, each.end) for each in looked.findings] == [("foreign", 32, 33)]
