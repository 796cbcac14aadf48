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
