import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.core.grants import Right
from rollbook.api.cli.access.principal_actions import read, rotate
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.main import rollbook
from rollbook.proto.errors import BadConfig, InvalidRequest, Unauthorized


def run(*words: str) -> Result:
    return CliRunner().invoke(rollbook, words, catch_exceptions=True)


@dataclass(frozen=True)
class Access:
    """An access file with two principals: one has a token, the other a certificate."""

    path: str
    token: str


@pytest.fixture
def access(tmp_path: Path) -> Access:
    path = str(tmp_path / "access.toml")
    grants = ("--append", "team/*", "--read", "team/a", "--deny", "team/secret")
    limits = ("--days", "30", "--streams", "7")
    added = run("access", "add", "ingest", "--file", path, *grants, *limits)
    assert added.exit_code == 0, added.output
    certificate = ("--certificate", "log-2.example.com", "--admin", "*")
    named = run("access", "add", "log-2@eu", "--file", path, *certificate)
    assert (named.exit_code, named.stdout) == (0, ""), "a certificate needs no token"
    return Access(path, added.stdout.strip())


def test_access_file_does_not_contain_the_token(access: Access) -> None:
    assert access.token not in Path(access.path).read_text()


def test_access_file_is_readable_by_its_owner_only(access: Access) -> None:
    assert stat.S_IMODE(os.stat(access.path).st_mode) == 0o600


def test_added_token_admits_with_its_grants_and_quotas(access: Access) -> None:
    caller = Authenticator(None, access.path).admit(f"Bearer {access.token}")
    assert caller.principal.name == "ingest"
    assert caller.principal.quotas.streams == 7
    assert caller.principal.grants.may(Right.APPEND, "team/b")
    assert not caller.principal.grants.may(Right.APPEND, "team/secret")
    assert caller.expires_us is not None


def test_added_certificate_admits_without_a_token(access: Access) -> None:
    caller = Authenticator(None, access.path).admit("", ["log-2.example.com"])
    assert caller.principal.name == "log-2@eu"


def test_token_that_differs_by_a_character_is_refused(access: Access) -> None:
    with pytest.raises(Unauthorized):
        Authenticator(None, access.path).admit(f"Bearer {access.token}x")


def test_principals_are_listed_with_their_grants_and_quotas(access: Access) -> None:
    rows = json.loads(run("access", "ls", "--file", access.path, "-o", "json").stdout)
    assert [each["name"] for each in rows] == ["ingest", "log-2@eu"]
    assert rows[0]["append"] == ["team/*"]
    assert rows[0]["tokens"] == 1
    assert (rows[0]["quotas"], rows[0]["monitor"]) == ({"streams": 7}, False)
    assert len(rows[0]["expires"]) == 1


def test_principals_are_listed_by_name_or_with_all_columns(access: Access) -> None:
    names = run("access", "ls", "--file", access.path, "-o", "name").stdout
    assert names == "ingest\nlog-2@eu\n"
    wide = run("access", "ls", "--file", access.path, "-o", "wide").stdout.splitlines()
    assert "CERTIFICATES" in wide[0]
    assert "streams=7" in wide[1]


def test_certificate_name_may_contain_any_unicode(tmp_path: Path) -> None:
    path, name = str(tmp_path / "access.toml"), "b\u00fcro-\U0001f9fe.example"
    added = run("access", "add", "a", "--file", path, "--certificate", name, "--monitor")
    assert added.exit_code == 0, added.output
    assert Authenticator(None, path).admit("", [name]).principal.name == "a"


def test_principal_with_operate_right_is_listed(tmp_path: Path) -> None:
    path = str(tmp_path / "access.toml")
    assert run("access", "add", "anna", "--file", path, "--operate").exit_code == 0
    (row,) = json.loads(run("access", "ls", "--file", path, "-o", "json").stdout)
    assert (row["operate"], row["monitor"], row["admin"]) == (True, False, [])


def test_add_with_ineffective_options_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    for words in (
        [],
        ["--deny", "ns/log"],
        ["--read", "*", "--certificate", "a.example", "--days", "3"],
    ):
        refused = run("access", "add", "a", "--file", str(path), *words)
        assert isinstance(refused.exception, InvalidRequest), refused.output
        assert not path.exists()


def test_token_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.token"
    path.write_text("the-token-of-the-server\nand what it is for\n")
    assert LogAccess("a:1", str(path), None, None, None, 1).token() == "the-token-of-the-server"


def test_refused_add_leaves_access_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    assert run("access", "add", "a", "--file", str(path), "--read", "*").exit_code == 0
    before = path.read_text()
    for words in (["a", "--read", "*"], ["b", "--read", "no"], ["B", "--read", "*"]):
        refused = run("access", "add", *words, "--file", str(path))
        assert isinstance(refused.exception, BadConfig), refused.output
        assert path.read_text() == before
    path.chmod(0o666)
    assert isinstance(run("access", "ls", "--file", str(path)).exception, BadConfig)


def test_generated_token_line_admits_its_principal(tmp_path: Path) -> None:
    made = run("access", "token")
    token, line = made.stdout.strip(), made.stderr.strip()
    path = tmp_path / "access.toml"
    path.write_text(f'[principals.a]\ntokens = [{line}]\nread = ["*"]\n')
    assert Authenticator(None, str(path)).admit(f"Bearer {token}").principal.name == "a"


def test_rotate_adds_a_token_and_drop_old_removes_the_first(tmp_path: Path) -> None:
    """All other lines of the file, comments included, are unchanged."""
    path = tmp_path / "access.toml"
    for name in ("a", "b", "c"):
        assert run("access", "add", name, "--file", str(path), "--read", f"{name}/*").exit_code == 0
    path.write_text(path.read_text().replace("\n[principals", "\n# a remark\n[principals"))
    path.chmod(0o640)
    before = path.read_text()
    made = run("access", "rotate", "b", "--file", str(path), "--days", "3")
    assert made.exit_code == 0, made.output
    principals = read(str(path))
    proven = principals.by_token(made.stdout.strip())
    assert proven is not None
    assert (proven.principal.name, len(proven.principal.tokens)) == ("b", 2)
    assert proven.expires_us is not None
    assert run("access", "rotate", "b", "--file", str(path), "--drop-old").exit_code == 0
    assert [len(each.tokens) for each in read(str(path))] == [1, 1, 1]
    assert read(str(path)).by_token(made.stdout.strip())
    changed = [line for line in path.read_text().splitlines() if line not in before.splitlines()]
    assert [line[:8] for line in changed] == ["tokens ="]
    assert (path.stat().st_mode & 0o777, path.read_text().rstrip()[-5:]) == (0o640, "# end")
    again = run("access", "rotate", "b", "--file", str(path), "--drop-old")
    assert again.exit_code != 0
    assert "has only one token" in str(again.exception)


def test_rm_removes_only_the_named_principals(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    for name in ("a", "b", "c.d"):
        assert run("access", "add", name, "--file", str(path), "--read", "x/*").exit_code == 0
    before = path.read_text()
    unasked = run("access", "rm", "b", "--file", str(path))
    assert unasked.exit_code != 0
    assert path.read_text() == before
    unknown = run("access", "rm", "a", "nobody", "--file", str(path), "--yes")
    assert "no principal nobody" in str(unknown.exception)
    assert path.read_text() == before
    assert run("access", "rm", "c.d", "a", "--file", str(path), "--yes").exit_code == 0
    assert [each.name for each in read(str(path))] == ["b"]
    assert run("access", "add", "a", "--file", str(path), "--read", "x/*").exit_code == 0
    assert [each.name for each in read(str(path))] == ["b", "a"]
    assert path.read_text().count("# end") == 1


def test_comments_of_other_principals_stay_when_one_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    text = (
        "# Written by hand.\n\n"
        "# The shop.\n[principals.shop]\ncertificates = ['shop']\n# Its orders:\nread = ['*']\n"
        "# The till,\n# on the first floor.\n[principals.till]\ncertificates = ['till']\n"
        "append = ['*']\n\n# --- Machines ---\n\n[principals.robot]\ncertificates = ['robot']\n"
        "read = ['*']\n\n# end\n"
    )
    path.write_text(text)
    path.chmod(0o600)
    assert run("access", "rm", "shop", "--file", str(path), "--yes").exit_code == 0
    shop = text[text.index("# The shop") : text.index("# The till")]
    assert path.read_text() == text.replace(shop, "")
    assert run("access", "rm", "till", "--file", str(path), "--yes").exit_code == 0
    till = text[text.index("# The till") : text.index("# --- Machines")]
    assert path.read_text() == text.replace(shop, "").replace(till, "")
    assert run("access", "rm", "robot", "--file", str(path), "--yes").exit_code == 0
    assert path.read_text() == "# Written by hand.\n\n# --- Machines ---\n\n# end\n"


def test_first_principal_is_removed_with_its_comment(tmp_path: Path) -> None:
    """The comment is at the start of the file: only an empty line ends a comment's section."""
    path = tmp_path / "access.toml"
    shop = "# The shop.\n  # In town.\n[principals.shop]\ncertificates = ['shop']\nread = ['*']\n\n"
    till = "# The till.\n[principals.till]\ncertificates = ['till']\nread = ['*']\n\n# end\n"
    path.write_text(shop + till)
    path.chmod(0o600)
    assert run("access", "rm", "shop", "--file", str(path), "--yes").exit_code == 0
    assert path.read_text() == till


def test_principal_in_several_sections_is_not_edited(tmp_path: Path) -> None:
    """An edit of one section would keep removed tokens or add one that was never printed."""
    path = tmp_path / "access.toml"
    text = (
        "[principals.parts]\nread = ['*']\n"
        f"[[principals.parts.tokens]]\nsha256 = '{'5' * 64}'\n\n# end\n"
    )
    path.write_text(text)
    path.chmod(0o600)
    for words in (("rm", "parts", "--yes"), ("rotate", "parts")):
        refused = run("access", words[0], words[1], "--file", str(path), *words[2:])
        assert isinstance(refused.exception, BadConfig), refused.output
        assert (path.read_text(), refused.stdout) == (text, "")


def test_concurrent_rotations_keep_every_token(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    assert run("access", "add", "boss", "--file", str(path), "--admin", "*").exit_code == 0
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: rotate(str(path), "boss", None), range(6)))
    boss = read(str(path)).named("boss")
    assert boss is not None
    assert len(boss.tokens) == 7
