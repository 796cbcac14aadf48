"""G12: every installed package is known by name, version and hash."""

import re
import tomllib

from tests import sbom
from tests.architecture.source import ROOT

LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
BILL = sbom.bill(LOCK)


def test_sbom_lists_every_locked_package_with_its_hashes() -> None:
    """G12"""
    told = {
        (each["name"], each["version"]): {
            hashed["content"] for file in each["externalReferences"] for hashed in file["hashes"]
        }
        for each in BILL["components"]
    }
    locked = {
        (package["name"], package["version"]): {
            file["hash"].removeprefix("sha256:") for file in sbom.files_of(package)
        }
        for package in LOCK["package"]
        if package["name"] != "rollbook"
    }
    assert told == locked
    for hashes in told.values():
        assert hashes
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in hashes)


def test_sbom_requires_exactly_the_runtime_packages() -> None:
    """G12: the pinned packages are those that the SBOM marks as required."""
    pinned = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    required = {each["name"] for each in BILL["components"] if each["scope"] == "required"}
    assert required == set(pinned)
    scopes = {each["name"]: each["scope"] for each in BILL["components"]}
    assert (scopes["pyspark"], scopes["pytest"]) == ("optional", "excluded")


def test_sbom_dependencies_are_components() -> None:
    """G12"""
    known = {each["bom-ref"] for each in BILL["components"]}
    assert {each["ref"] for each in BILL["dependencies"]} == {*known, "rollbook"}
    assert all(known.issuperset(each["dependsOn"]) for each in BILL["dependencies"])
