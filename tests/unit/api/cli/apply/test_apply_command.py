"""The `rollbook apply` command against a cluster of one bookie."""

from pathlib import Path

import pytest

from tests.unit.api.cli.shell import Shell

SPEC = """
[logs."shop/applied"]
retention_age = "7d"
roll_bytes = "64M"
labels = { team = "checkout", area = "shop" }
exclusive = true

[logs.as-it-is]
"""


def test_apply_creates_and_updates_logs(shell: Shell, tmp_path: Path) -> None:
    spec = tmp_path / "logs.toml"
    spec.write_text(SPEC)
    shell.run("log", "create", "as-it-is", "--roll-bytes", "32M")
    plan = shell.json("apply", str(spec), "--dry-run")
    assert [(each["act"], each["log"]) for each in plan] == [
        ("+", "shop/applied"),
        ("=", "default/as-it-is"),
    ]
    shell.run("log", "show", "shop/applied", code=3)
    assert shell.json("apply", str(spec)) == plan
    config = shell.json("log", "show", "shop/applied")["config"]
    assert config["retention_age_s"] == 7 * 86_400
    assert config["writer_mode"] == "exclusive"
    assert shell.run("apply", str(spec), "-o", "raw") == ""
    spec.write_text(SPEC.replace('"7d"', '"1d"'))
    shell.run("apply", str(spec), code=2)
    assert "sooner than before in shop/applied (retention_age_s)" in shell.errors
    assert shell.json("log", "show", "shop/applied")["config"] == config, (
        "there is no terminal to ask on"
    )
    (changed, _) = shell.json("apply", str(spec), "--yes")
    assert changed["act"] == "~"
    assert changed["changes"] == {"retention_age_s": "604800 -> 86400"}
    assert shell.json("apply", str(spec))[0]["act"] == "="
    spec.write_text(
        '[logs."shop/applied"]\nretention_age = "none"\nexclusive = false\ndedupe_batches = 128'
    )
    shell.run("apply", str(spec))
    config |= {"retention_age_s": None, "writer_mode": "open", "dedupe_batches": 128}
    assert shell.json("log", "show", "shop/applied")["config"] == config
    for limit in ("record_bytes_max = '64K'", "batch_bytes_max = '500K'"):
        spec.write_text(f'[logs."shop/applied"]\n{limit}\n[logs.limited]\nrecord_bytes_max = 1')
        shell.run("apply", str(spec))
    spec.write_text('[logs.never]\n[logs."shop/applied"]\nrecord_bytes_max = "1M"')
    shell.run("apply", str(spec), code=2)
    assert "shop/applied: record_bytes_max is above batch_bytes_max" in shell.errors
    shell.run("log", "show", "never", code=3)
    again = ("log", "create", "shop/applied", "--label", "team=checkout", "--label", "area=shop")
    assert shell.json(*again)["created"] is False, "the order of labels does not matter"


@pytest.mark.parametrize(
    "text",
    ["[nonsense]", "logs = 3", "[logs.a]\nretention = 3", "[logs.a]\ncopies = 'x'", "[logs.'A B']"],
)
def test_invalid_apply_file_changes_nothing(shell: Shell, tmp_path: Path, text: str) -> None:
    spec = tmp_path / "logs.toml"
    spec.write_text(f"[logs.never-made]\n{text}" if text.startswith("[logs") else text)
    shell.run("apply", str(spec), code=2)
    shell.run("log", "show", "never-made", code=3)
