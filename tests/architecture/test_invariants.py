"""Each invariant has a tag such as `LS8`, is defined once, and is cited by code and by a test."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.architecture.source import PACKAGES, ROOT, Module, modules

_TAG: Final = re.compile(r"\b([A-Z]{1,3})(\d{1,2})\b(?: to \1(\d{1,2})\b)?")
_DEFINED: Final = re.compile(r"^- \*\*([A-Z]{1,3}\d{1,2})\*\* (.+(?:\n  .+)*)$", re.MULTILINE)
_REQUIRED: Final = re.compile(r"^\| ((?:AR|BL)\d+) \| ", re.MULTILINE)
_COMMENT: Final = re.compile(r"# .*")
# Invariants of the repository's files, which no code can cite.
_OF_FILES: Final = frozenset(("G11", "G12", "G13"))
# `S2` is a log service; `V2` and `V3` are BookKeeper's protocols.
_LOOKS_LIKE_A_TAG: Final = frozenset(("CRC32", "EXT4", "MD5", "S2", "SHA1", "V2", "V3"))


@cache
def pages() -> tuple[Path, ...]:
    """The pages that may define tags."""
    folders = [ROOT / folder for folder in (*PACKAGES, "docs", "examples", "tests")]
    return (
        *sorted(ROOT.glob("*.md")),
        *(p for each in folders for p in sorted(each.rglob("*.md"))),
    )


@cache
def definitions() -> tuple[tuple[str, str, Path], ...]:
    """Tag, text and page of each definition; indented lines continue the text."""
    return tuple(
        (tag, text, page.relative_to(ROOT))
        for page in pages()
        for tag, text in _DEFINED.findall(page.read_text())
    )


def defined_tags() -> dict[str, Path]:
    return {tag: page for tag, _, page in definitions()}


def tags_in(text: str) -> Iterator[str]:
    """The tags in a text; `B1 to B3` counts as three."""
    for prefix, first, last in _TAG.findall(text):
        yield from (f"{prefix}{number}" for number in range(int(first), int(last or first) + 1))


def cited_tags(folder: str) -> set[str]:
    """Tags in comments and strings. A variable named `B1` is not a citation."""
    return {tag for module in modules(folder) for text in _prose(module) for tag in tags_in(text)}


def _prose(module: Module) -> Iterator[str]:
    yield from _COMMENT.findall(module.text)
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _explanations(module: Module) -> Iterator[str]:
    """Comments and docstrings."""
    yield from (line for line in _COMMENT.findall(module.text) if "# type:" not in line)
    for node in module.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_every_invariant_is_defined_once() -> None:
    assert len(definitions()) > 200
    page_of: dict[str, Path] = {}
    for tag, _, page in definitions():
        assert tag not in page_of, f"{tag} is defined in {page_of[tag]} and in {page}"
        page_of[tag] = page


def test_a_prefix_belongs_to_one_page() -> None:
    """A prefix identifies its page. Requirements (`AR`, `BL`) are not invariants."""
    page_of: dict[str, Path] = {}
    for tag, _, page in definitions():
        prefix = tag.rstrip("0123456789")
        assert page_of.setdefault(prefix, page) == page, f"{prefix} is used in {page}, too"
    assert not {"AR", "BL"} & page_of.keys()


def test_every_invariant_is_a_sentence() -> None:
    for tag, text, page in definitions():
        assert text[0].isupper() or text[0] in "`\"'", f"{page}: {tag} must begin with a capital"
        assert text.rstrip().endswith((".", ".)", ":")), f"{page}: {tag} must end with a full stop"


def test_every_invariant_is_cited_by_code() -> None:
    cited = {tag for package in PACKAGES for tag in cited_tags(package)}
    orphans = defined_tags().keys() - cited - _OF_FILES
    assert not orphans, f"no code cites {sorted(orphans)}"


def test_every_invariant_is_cited_by_a_test() -> None:
    untested = defined_tags().keys() - cited_tags("tests")
    assert not untested, f"no test cites {sorted(untested)}"


def test_every_cited_tag_is_defined() -> None:
    """A cited tag must have a definition that the reader can look up."""
    required = set(_REQUIRED.findall((ROOT / "recovery" / "DESIGN.md").read_text()))
    known = {*defined_tags(), *required, *_LOOKS_LIKE_A_TAG}
    texts = [
        (module.path, text)
        for module in modules(*PACKAGES, "examples", "tests")
        if module.path.parts[:2] != ("tests", "bench")  # Ensemble sizes in benches look like tags.
        for text in _explanations(module)
    ]
    texts += [(page, page.read_text()) for page in pages() if page.name == "DESIGN.md"]
    strange = [
        (str(path), tag) for path, text in texts for tag in tags_in(text) if tag not in known
    ]
    assert not strange, "no page defines these tags"


_JUDGES: Final = (  # Tests that check whole processes, simulated or real, from outside.
    "chaos",
    "contract",
    "crash",
    "dashboard",
    "fuzz",
    "hostile",
    "interop",
    "regressions",
    "rest",
    "simulation",
    "spark",
)
# Rows of pages: tags that no test in _JUDGES checks, the reason, and the unit test that does.
_UNSEEN: Final = re.compile(
    r"^\| ([A-Z\d, ]+) \| .+ \| `(tests/[\w/]+\.py)(?:::\w+)?` \|$", re.MULTILINE
)


def unseen() -> dict[str, set[Path]]:
    """The tests named in the rows of each tag."""
    found: dict[str, set[Path]] = {}
    for page in pages():
        for tags, test in _UNSEEN.findall(page.read_text()):
            for tag in tags.split(", "):
                assert str(defined_tags().get(tag)) == str(page.relative_to(ROOT)), f"{page}: {tag}"
                found.setdefault(tag, set()).add(Path(test))
    return found


def test_every_invariant_has_an_outside_test_or_a_stated_reason() -> None:
    """A test in _JUDGES cites the tag, or a row names a unit test and the reason, but not both."""
    judged = {tag for judge in _JUDGES for tag in cited_tags(f"tests/{judge}")}
    shown = unseen()
    lost = defined_tags().keys() - judged - shown.keys()
    assert not lost, f"no test from outside and no row covers {sorted(lost)}"
    both = {tag for tag in judged & shown.keys() if not tag.startswith("G")}
    assert not both, f"remove the rows of {sorted(both)}: a test from outside cites them"


def test_unit_tests_named_for_invariants_cite_them() -> None:
    of = {module.path: module for module in modules("tests")}
    for tag, paths in unseen().items():
        for path in paths:
            assert path in of, f"{tag}: {path} does not exist"
            cited = {each for text in _prose(of[path]) for each in tags_in(text)}
            assert tag in cited, f"{path} does not cite {tag}"
