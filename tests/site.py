"""Collects the pages of the site: `python -m tests.site FOLDER` writes them there as Markdown.

Pages of `docs/` are copied unchanged. Files of `examples/` to which they link are copied, too, and
a folder becomes one page, so that links work on the site as in the repository. References are
generated: HTTP from OpenAPI, the command line from its commands, gRPC from `proto/v1`. mkdocstrings
makes the reference of Python from docstrings (mkdocs.yml).
"""

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import click

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
_OUTSIDE: Final = re.compile(r"\]\(\.\./(examples/[^)#]+)")
_FENCES: Final = {".py": "python", ".sh": "sh", ".proto": "proto"}
_TAKEN: Final = "The same everywhere, and not repeated: "
_EVERYWHERE: Final = ("namespace", "log", "log-timeout-ms", "log-forward")
_WIDTH: Final = 96


def gather(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text()
        for outside in _OUTSIDE.findall(text):
            _put_example(ROOT / outside, folder / outside)
        (folder / page.name).write_text(_OUTSIDE.sub(_inside, text))
    shutil.copytree(DOCS / "pictures", folder / "pictures", dirs_exist_ok=True)
    for name, text in (("rest", rest()), ("commands", commands()), ("grpc", grpc())):
        (folder / f"reference-{name}.md").write_text(text)


def _inside(link: re.Match[str]) -> str:
    is_folder = (ROOT / link[1]).is_dir()
    return f"]({link[1]}{'.md' if is_folder else ''}"


def _put_example(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copyfile(source, target)
        return
    readme, *files = sorted(source.glob("*.*"), key=lambda path: (path.name != "README.md", path))
    blocks = [f"## `{path.name}`\n\n{_fenced(path)}" for path in files if path.suffix in _FENCES]
    target.with_name(f"{target.name}.md").write_text("\n".join([readme.read_text(), *blocks]))


def _fenced(path: Path) -> str:
    return f"```{_FENCES[path.suffix]}\n{path.read_text()}```\n"


# --- The command line ---------------------------------------------------------------------------


def commands() -> str:
    """The help of every command, with groups before their commands."""
    from rollbook.api.cli.main import rollbook

    pages = [
        "# Command line\n\nWhat `--help` says, of every command. Exit codes are in [operations](operations.md).\n"
    ]
    for context in _contexts(rollbook, "rollbook"):
        depth = "##" if context.parent is None or context.parent.parent is None else "###"
        told = context.command.get_help(context)
        pages.append(f"{depth} {context.command_path}\n\n```text\n{told}\n```\n")
    return "\n".join(pages)


def _contexts(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[click.Context]:
    context = click.Context(
        command,
        parent,
        name,
        **{"terminal_width": _WIDTH, "max_content_width": _WIDTH, **command.context_settings},
    )
    yield context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            if (found := command.get_command(context, each)) and not found.hidden:
                yield from _contexts(found, each, context)


# --- gRPC ---------------------------------------------------------------------------------------


def grpc() -> str:
    """The protobuf definitions with their comments."""
    title = "# gRPC\n\n`rollbook.v1`, as servers speak it; they answer reflection, too.\n"
    files = sorted((ROOT / "proto" / "v1").glob("*.proto"))
    return "\n".join([title, *(f"## {path.name}\n\n{_fenced(path)}" for path in files)])


# --- HTTP ---------------------------------------------------------------------------------------


def rest() -> str:
    """One section for each route, grouped by tag."""
    document = openapi()
    by_tag: dict[str, list[str]] = {}
    for prefix, paths in (
        ("", document["paths"]),
        ("management: ", openapi_of_management()["paths"]),
    ):
        for path, by_method in paths.items():
            for method, told in by_method.items():
                tag = prefix + str(told["tags"][0])
                by_tag.setdefault(tag, []).append(_route(method.upper(), path, told))
    pages = [
        "# HTTP\n\nMade from what servers say at `/openapi.json`: log servers, and below *management* recovery servers with `--http`. [HTTP](http.md) and [management](dashboard.md#management-over-http) show how they are used.\n",
        _TAKEN + "".join(f"`{name}`, " for name in _EVERYWHERE).rstrip(", ") + ".\n",
        _parameters([_anywhere(document, name) for name in _EVERYWHERE]),
        "Failures are `application/problem+json`; codes that are not listed with a route mean what HTTP says.\n",
    ]
    for tag, routes in by_tag.items():
        pages += [f"## {tag}\n", *routes]
    return "\n".join(pages)


def openapi() -> dict[str, Any]:
    """OpenAPI of a log server, whose routes are listed but not called."""
    from rollbook.api.rest.log_app import make_app
    from rollbook.api.rest.owner_routing import OwnerRouting

    nothing = cast(Any, None)
    return make_app(OwnerRouting(nothing, lambda _: ""), lambda: False, nothing).openapi()


def openapi_of_management() -> dict[str, Any]:
    from rollbook.api.rest.cluster_app import make_app

    nothing = cast(Any, None)
    return make_app(nothing, nothing, nothing, nothing).openapi()


def _route(method: str, path: str, told: Mapping[str, Any]) -> str:
    parts = [f"### {method} {path}\n", f"{told.get('description', told['summary'])}\n"]
    named = [each for each in told.get("parameters", ()) if each["name"] not in _EVERYWHERE]
    if named:
        parts.append(_parameters(named))
    if body := told.get("requestBody"):
        parts.append(f"Body: {_media(body['content'])}.\n")
    answers = [
        f"| {status} | {_cell(answer['description'])} | {_media(answer.get('content', {}))} |\n"
        for status, answer in sorted(told["responses"].items())
    ]
    parts.append("| answer | | as |\n|---|---|---|\n" + "".join(answers))
    return "\n".join(parts)


def _anywhere(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    routes = (told for each in document["paths"].values() for told in each.values())
    return next(
        each for told in routes for each in told.get("parameters", ()) if each["name"] == name
    )


def _parameters(named: list[Mapping[str, Any]]) -> str:
    rows = [
        f"| `{each['name']}` | {each['in']}{', required' if each.get('required') else ''} "
        f"| {_cell(_values(each['schema']))} | {_cell(each.get('description', ''))} |\n"
        for each in named
    ]
    return "| name | where | values | |\n|---|---|---|---|\n" + "".join(rows)


def _values(schema: Mapping[str, Any]) -> str:
    if several := schema.get("anyOf"):
        return " or ".join(_values(each) for each in several if each.get("type") != "null")
    if reference := schema.get("$ref"):
        return str(reference).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    bounds = [f"{word} `{schema[key]}`" for key, word in _BOUNDS.items() if key in schema]
    default = [f"else `{schema['default']}`"] if schema.get("default") not in (None, "") else []
    return ", ".join([str(schema.get("type", "any")), *bounds, *default])


_BOUNDS: Final = {"minimum": "from", "maximum": "to", "pattern": "like"}


def _media(content: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in content)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    gather(Path(sys.argv[1]))
