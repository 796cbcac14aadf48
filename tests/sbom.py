"""The software bill of materials as CycloneDX 1.5: `python -m tests.sbom > sbom.json`.

It depends only on uv.lock and the list of vendored files, so that the same lock gives the same
bytes. Packages that Rollbook needs to run are `required`, those of its extras `optional`, and those
of tests and pages `excluded`. Each package has the hashes of all files that the lock allows.
"""

import json
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_OURS: Final = "rollbook"
_VENDORED: Final = ROOT / "api" / "dashboard" / "vendor" / "vendored.json"

Json = dict[str, Any]


def bill(lock: Json) -> Json:
    ours, packages = _by_name(lock)
    required = _closure(_names(ours["dependencies"]), packages)
    extras = ours.get("optional-dependencies", {}).values()
    optional = _closure([name for each in extras for name in _names(each)], packages)

    def scope(name: str) -> str:
        return "required" if name in required else "optional" if name in optional else "excluded"

    def needs(package: Json) -> list[str]:
        names = _names(package.get("dependencies", ()))
        return sorted({_reference(each) for name in names for each in packages[name]})

    every = [each for name in sorted(packages) for each in packages[name]]
    us = {"type": "application", "bom-ref": _OURS, "name": _OURS, "version": ours["version"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": us},
        "components": [{**_component(each), "scope": scope(each["name"])} for each in every],
        "dependencies": [
            {"ref": _OURS, "dependsOn": needs(ours)},
            *({"ref": _reference(each), "dependsOn": needs(each)} for each in every),
        ],
    }


def _by_name(lock: Json) -> tuple[Json, dict[str, list[Json]]]:
    """Rollbook and all other packages by name; a name may have several versions."""
    packages: dict[str, list[Json]] = {}
    for each in lock["package"]:
        packages.setdefault(each["name"], []).append(each)
    (ours,) = packages.pop(_OURS)
    return ours, packages


def files_of(package: Json) -> list[Json]:
    source = [package["sdist"]] if "sdist" in package else []
    return [*source, *package.get("wheels", ())]


def _component(package: Json) -> Json:
    return {
        "type": "library",
        "bom-ref": _reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": _reference(package),
        "externalReferences": [
            {
                "type": "distribution",
                "url": file["url"],
                "hashes": [{"alg": "SHA-256", "content": file["hash"].removeprefix("sha256:")}],
            }
            for file in files_of(package)
        ],
    }


def vendored() -> list[Json]:
    """Third-party files in this repository, which the dashboard serves."""
    listed: list[Json] = json.loads(_VENDORED.read_text())
    return [
        {
            "type": "library",
            "bom-ref": f"vendored:{each['name']}@{each['version']}",
            "name": each["name"],
            "version": each["version"],
            "scope": "required",
            "licenses": [{"license": {"id": each["license"]}}],
            "hashes": [{"alg": "SHA-256", "content": digest} for digest in each["files"].values()],
        }
        for each in listed
    ]


def _reference(package: Json) -> str:
    return f"pkg:pypi/{package['name']}@{package['version']}"


def _names(dependencies: Iterable[Json]) -> list[str]:
    return [each["name"] for each in dependencies]


def _closure(names: list[str], packages: dict[str, list[Json]]) -> set[str]:
    """The packages and everything that they need on any system."""
    found: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += [
                needed for each in packages[name] for needed in _names(each.get("dependencies", ()))
            ]
    return found


if __name__ == "__main__":
    found = bill(tomllib.loads((ROOT / "uv.lock").read_text()))
    found["components"] += vendored()
    json.dump(found, sys.stdout, indent=1)
    print()
