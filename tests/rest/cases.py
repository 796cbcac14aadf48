"""Requests generated from OpenAPI: valid, nearly valid and invalid ones.

Most parts of a case are valid, so that it is not refused at once. A few parts come from a list of
what people and programs send by mistake or on purpose.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

Json = Mapping[str, Any]

ODD_TEXTS: Final = (
    "",
    " ",
    "..",
    ".",
    "-1",
    "0",
    "1",
    "42",
    "9223372036854775807",
    "9223372036854775808",
    "1e9",
    "0x10",
    "1_000",
    "NaN",
    "null",
    "true",
    "latest",
    "earliest",
    "-10",
    "cursor:c",
    "cursor:none",
    "ts:2026-01-31T10:00:00Z",
    "ts:0001-01-01",
    "ago:15m",
    "ago:99999999w",
    "ago:",
    "a" * 300,
    "ä",
    "日本",
    "a/b",
    "%2F",
    "%00",
    "%",
    "a:seal",
    '"1"',
    '"',
    "*",
    'W/"1"',
    "\t",
    "text/event-stream",
    "application/x-ndjson",
    "application/vnd.rollbook.batch",
    "text/html",
    "auto",
    "never",
    "barrier",
    "cached",
    "stop",
    "skip",
    "base64",
    "json",
)
ODD_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**64),
    10**40,
    1.5,
    -0.0,
    1e308,
    "",
    "x",
    "..",
    "ä" * 100,
    "x" * 5000,
    [],
    {},
    [[]],
    [{}],
    {"a": {}},
    [None],
    {"": ""},
)
ODD_BODIES: Final = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b"\x00" * 100,
    b'"',
    b"{}",
    b"{}\n" * 20,
    b"\n\n",
    b'{"records":',
    b'{"records":[]}',
    b'{"records":[null]}',
    b"[" * 10_000,
    b"1" * 10_000,
    b'{"a":1,"a":2}',
    b'{"data":"\\ud800"}',
    b'{"data":"\\u0000"}\n',
    b"RBK\x01",
    b"RBK\x01" * 50,
)
_OFTEN: Final = {"query": 0.3, "header": 0.06}  # Several conditions rarely hold together.
# Short time-outs for requests that may wait.
_SMALL: Final = {"wait_ms": 50, "heartbeat_ms": 300}
_TIMEOUT: Final = "log-timeout-ms"


@dataclass(frozen=True)
class Case:
    operation: str
    method: str
    path: str  # Includes the query, as it is sent.
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        headers = " ".join(f"-H {name}: {value!r}" for name, value in self.headers.items())
        return f"{self.method} {self.path} {headers} {self.body[:200]!r}"


Known = Mapping[str, Sequence[str]]
"""Values of parameters that exist or nearly exist, by the parameter's name."""


def case_of(document: Json, chance: random.Random, known: Known, often: str = "") -> Case:
    """`document` has no references. Paths that end with `often` are chosen seven times as often."""
    paths = sorted(document["paths"])
    more = [each for each in paths if often and each.endswith(often)]
    path = chance.choice([*paths, *more * 6])
    method = chance.choice(sorted(document["paths"][path]))
    operation = document["paths"][path][method]
    oddness = chance.choice((0.0, 0.0, 0.05, 0.3))
    query: list[str] = []
    parameters = operation.get("parameters", ())
    headers = {}
    if any(each["name"].lower() == _TIMEOUT for each in parameters):
        headers[_TIMEOUT] = chance.choice(("50", "100", "1000"))
    for parameter in parameters:
        name, schema = parameter["name"], parameter.get("schema", {})
        is_odd = chance.random() < oddness
        if parameter["in"] == "path":
            text = chance.choice(ODD_TEXTS) if is_odd else _path_value(parameter, chance, known)
            path = path.replace(f"{{{name}}}", quote(text, safe=chance.choice(("", ":*%/"))))
        elif is_odd or parameter.get("required") or chance.random() < _OFTEN[parameter["in"]]:
            text = chance.choice(ODD_TEXTS) if is_odd else _text(name, schema, chance, known)
            if parameter["in"] == "query":
                query.append(f"{quote(name)}={quote(text)}")
            elif name.lower() != _TIMEOUT:
                headers[name.lower()] = _as_header(text)
    content = operation.get("requestBody", {}).get("content", {})
    body = b""
    if content and chance.random() < 0.95:
        kind = chance.choice(sorted(content))
        headers["content-type"] = kind if chance.random() >= oddness / 2 else "text/plain"
        is_odd = chance.random() < oddness
        body = chance.choice(ODD_BODIES) if is_odd else _body(kind, content[kind], chance, oddness)
    target = f"{path}?{'&'.join(query)}" if query else path
    return Case(operation["operationId"], method.upper(), target, headers, body)


def _as_header(text: str) -> str:
    return text.encode("latin-1", "replace").decode("latin-1").strip()


def _path_value(parameter: Json, chance: random.Random, known: Known) -> str:
    if parameter["name"] in known:
        return chance.choice(known[parameter["name"]])
    return str(value_of(parameter["schema"], chance, 0.0))


def _text(name: str, schema: Json, chance: random.Random, known: Known) -> str:
    if name in _SMALL:
        return str(_SMALL[name])
    if name in known:
        return chance.choice(known[name])
    if name in ("from", "at"):
        return chance.choice(("earliest", "latest", "0", "1", "-2", "ago:1m"))
    if name == "accept":
        return chance.choice(("*/*", "application/json", "application/vnd.rollbook.batch"))
    if name in ("if-match", "if-none-match"):
        return chance.choice(("*", '"0"', '"1"', '"3"'))
    value = value_of(schema, chance, 0.0)
    return value if isinstance(value, str) else json.dumps(value)


def _body(kind: str, content: Json, chance: random.Random, oddness: float) -> bytes:
    if kind == "application/json":
        value = value_of(content["schema"], chance, oddness)
        examples = _examples(content)
        if examples and chance.random() < 0.5:
            value = mutated(chance.choice(examples), chance, oddness)
        return json.dumps(value).encode()
    example = content.get("example", "")
    data = bytearray(example.encode() * chance.randrange(1, 5))
    if data and chance.random() < oddness:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def _examples(content: Json) -> list[Any]:
    """The example of a body, or those of its schema and one made of its fields' examples."""
    if "example" in content:
        return [content["example"]]
    schema = content["schema"]
    of_fields = {
        name: each["examples"][0]
        for name, each in schema.get("properties", {}).items()
        if "examples" in each
    }
    return [*schema.get("examples", ()), *([of_fields] if of_fields else [])]


def without_references(document: Json) -> Json:
    """Replaces each `$ref` by its target, merged with the keys next to it."""

    def resolve(value: Any) -> Any:
        if isinstance(value, list):
            return [resolve(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {name: resolve(each) for name, each in value.items() if name != "$ref"}
        if isinstance(value.get("$ref"), str):
            *_, group, name = value["$ref"].split("/")
            found = {**resolve(document["components"][group][name]), **found}
        return found

    found: Json = resolve(document)
    return found


def mutated(value: Any, chance: random.Random, oddness: float) -> Any:
    if chance.random() < oddness:
        return chance.choice(ODD_VALUES)
    if isinstance(value, dict):
        return {
            (chance.choice(ODD_TEXTS) if chance.random() < oddness / 4 else key): mutated(
                each, chance, oddness
            )
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [mutated(each, chance, oddness) for each in value]
    return value


def value_of(schema: Json, chance: random.Random, oddness: float) -> Any:
    """A value that fits the schema, or with probability `oddness` one that may not."""
    if chance.random() < oddness:
        return chance.choice(ODD_VALUES)
    if "anyOf" in schema:
        return value_of(chance.choice(schema["anyOf"]), chance, oddness)
    if "enum" in schema:
        return chance.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = chance.choice(kind)
    match kind:
        case "object":
            return _object(schema, chance, oddness)
        case "array":
            return [
                value_of(schema["items"], chance, oddness) for _ in range(chance.randrange(1, 4))
            ]
        case "integer":
            low, high = schema.get("minimum", 0), schema.get("maximum", 100)
            return chance.choice(
                (low, min(low + 1, high), chance.randint(low, min(low + 100, high)))
            )
        case "number":
            return chance.random()
        case "boolean":
            return chance.random() < 0.5
        case "null":
            return None
    if schema.get("contentEncoding") == "base64":
        return chance.choice(("", "AP8=", "eA=="))
    return chance.choice(("a", "b", "orders", "0"))


def _object(schema: Json, chance: random.Random, oddness: float) -> Any:
    found = {}
    needed = set(schema.get("required", ()))
    if "oneOf" in schema:
        needed |= set(chance.choice(schema["oneOf"])["required"])
    others = {name for each in schema.get("oneOf", ()) for name in each["required"]}
    for name, each in sorted(schema.get("properties", {}).items()):
        if name in needed or (name not in others and chance.random() < 0.3):
            found[name] = value_of(each, chance, oddness)
    return found


# --- Answers ----------------------------------------------------------------------------------


def misfits(value: Any, schema: Json, where: str = "answer") -> list[str]:
    """Why a value does not match a schema. Knows only the features that our schemas use."""
    if "anyOf" in schema:
        found = [misfits(value, each, where) for each in schema["anyOf"]]
        return [] if any(not each for each in found) else found[0]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r} is none of {schema['enum']}"]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [f"{where}: {value!r:.50} is no {kinds}"]
    if isinstance(value, list) and "items" in schema:
        return [text for each in value for text in misfits(each, schema["items"], f"{where}[]")]
    if isinstance(value, dict):
        wrong = [
            f"{where}: {name} is missing"
            for name in schema.get("required", ())
            if name not in value
        ]
        for name, each in schema.get("properties", {}).items():
            if name in value:
                wrong += misfits(value[name], each, f"{where}.{name}")
        return wrong
    return []


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "integer":
            return type(value) is int
        case "number":
            return type(value) in (int, float)
        case "boolean":
            return type(value) is bool
        case "null":
            return value is None
    return isinstance(value, {"object": dict, "array": list, "string": str}[kind])
