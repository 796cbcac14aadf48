"""Each invariant has a tag, as `LS8`: it is defined once, the code that keeps it cites it, and so does a test."""

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
# Promises of the repository, which no code keeps.
_OF_FILES: Final = frozenset(("G11", "G12", "G13"))
# `S2` is a log service; `V2` and `V3` are BookKeeper's protocols.
_LOOKS_LIKE_A_TAG: Final = frozenset(("CRC32", "EXT4", "MD5", "S2", "SHA1", "V2", "V3"))


@cache
def pages() -> tuple[Path, ...]:
    """That may define tags: each page of the product."""
    folders = [ROOT / folder for folder in (*PACKAGES, "docs", "examples", "tests")]
    return (
        *sorted(ROOT.glob("*.md")),
        *(p for each in folders for p in sorted(each.rglob("*.md"))),
    )


@cache
def definitions() -> tuple[tuple[str, str, Path], ...]:
    """Tag, text and page of each; the text may go on in lines that are indented."""
    return tuple(
        (tag, text, page.relative_to(ROOT))
        for page in pages()
        for tag, text in _DEFINED.findall(page.read_text())
    )


def defined_tags() -> dict[str, Path]:
    return {tag: page for tag, _, page in definitions()}


def tags_in(text: str) -> Iterator[str]:
    """`B1 to B3` are three."""
    for prefix, first, last in _TAG.findall(text):
        yield from (f"{prefix}{number}" for number in range(int(first), int(last or first) + 1))


def cited_tags(folder: str) -> set[str]:
    """In comments, docstrings and messages: a bookie that a test calls `B1` cites nothing."""
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
    """So that a tag leads to its page; and requirements (`AR`, `BL`) are no invariants."""
    page_of: dict[str, Path] = {}
    for tag, _, page in definitions():
        prefix = tag.rstrip("0123456789")
        assert page_of.setdefault(prefix, page) == page, f"{prefix} is used in {page}, too"
    assert not {"AR", "BL"} & page_of.keys()


def test_every_invariant_is_a_sentence() -> None:
    for tag, text, page in definitions():
        assert text[0].isupper() or text[0] in "`\"'", f"{page}: {tag}"
        assert text.rstrip().endswith((".", ".)", ":")), f"{page}: {tag} ends with a full stop"


def test_every_invariant_is_kept_by_code() -> None:
    cited = {tag for package in PACKAGES for tag in cited_tags(package)}
    orphans = defined_tags().keys() - cited - _OF_FILES
    assert not orphans, f"no code cites {sorted(orphans)}"


def test_every_invariant_has_a_test() -> None:
    untested = defined_tags().keys() - cited_tags("tests")
    assert not untested, f"no test cites {sorted(untested)}"


def test_every_tag_that_is_cited_is_defined() -> None:
    """A tag of a rule that is gone leads a reader nowhere."""
    required = set(_REQUIRED.findall((ROOT / "recovery" / "DESIGN.md").read_text()))
    known = {*defined_tags(), *required, *_LOOKS_LIKE_A_TAG}
    texts = [
        (module.path, text)
        for module in modules(*PACKAGES, "examples", "tests")
        if module.path.parts[:2] != ("tests", "bench")  # Sizes of ensembles look like tags there.
        for text in _explanations(module)
    ]
    texts += [(page, page.read_text()) for page in pages() if page.name == "DESIGN.md"]
    strange = [
        (str(path), tag) for path, text in texts for tag in tags_in(text) if tag not in known
    ]
    assert not strange, "no page defines these"


_JUDGES: Final = (  # Tests that see whole processes, simulated or real, from outside.
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
# The tags that a page says no judge sees, and the test that shows them instead.
_UNSEEN: Final = re.compile(
    r"^\| ([A-Z\d, ]+) \| .+ \| `(tests/[\w/]+\.py)(?:::\w+)?` \|$", re.MULTILINE
)


def unseen() -> dict[str, set[Path]]:
    """By tag: the tests of its rows."""
    found: dict[str, set[Path]] = {}
    for page in pages():
        for tags, test in _UNSEEN.findall(page.read_text()):
            for tag in tags.split(", "):
                assert str(defined_tags().get(tag)) == str(page.relative_to(ROOT)), f"{page}: {tag}"
                found.setdefault(tag, set()).add(Path(test))
    return found


def test_every_invariant_is_seen_from_outside_or_its_page_says_why_not() -> None:
    """A checker, a planted bug or a whole run cites it; or a row names the unit test that does, and the reason."""
    judged = {tag for judge in _JUDGES for tag in cited_tags(f"tests/{judge}")}
    shown = unseen()
    lost = defined_tags().keys() - judged - shown.keys()
    assert not lost, f"who sees it if these break? {sorted(lost)}"
    both = {tag for tag in judged & shown.keys() if not tag.startswith("G")}
    assert not both, f"a judge does see {sorted(both)}"


def test_every_test_that_a_page_names_for_an_invariant_cites_it() -> None:
    of = {module.path: module for module in modules("tests")}
    for tag, paths in unseen().items():
        for path in paths:
            assert path in of, f"{tag}: {path} is not there"
            cited = {each for text in _prose(of[path]) for each in tags_in(text)}
            assert tag in cited, f"{path} does not cite {tag}"
