"""Renders `compose/helm/rollbook` for each set of values on standard input, and prints the results.

The environment of `make chart` runs this (`build/chart`), so it imports nothing from Rollbook.
Input: `{NAME: VALUES}`. Output:
`{"lint": [ERROR], "cases": {NAME: {"objects": […], "invalid": […], "error": TEXT}}}`.
"""

import importlib
import json
import sys
from functools import cache
from typing import Any

RELEASES = ("1.34", "1.35", "1.36", "1.37")
OF_THE_OPERATOR = "monitoring.coreos.com/v1"  # Kubernetes has no schema for it.


def main(folder: str, release: str = "demo") -> None:
    helm: Any = importlib.import_module("helm_python")
    chart = helm.Chart.load(folder)
    cases = {
        name: _rendered(helm, chart, values, release)
        for name, values in json.load(sys.stdin).items()
    }
    json.dump({"lint": helm.lint(folder)["errors"], "cases": cases}, sys.stdout)


def _rendered(helm: Any, chart: Any, values: dict[str, Any], release: str) -> dict[str, Any]:
    yaml: Any = importlib.import_module("yaml")
    try:
        files = chart.render(values, name=release, namespace="prod")
    except helm.HelmError as error:
        return {"objects": [], "invalid": [], "error": str(error)}
    objects = [
        each
        for name, text in files.items()
        if name.endswith(".yaml")
        for each in yaml.safe_load_all(text)
        if each
    ]
    invalid = [problem for each in objects for problem in _problems(json.dumps(each))]
    return {"objects": objects, "invalid": invalid, "error": ""}


@cache  # Most resources are the same in several cases.
def _problems(text: str) -> list[str]:
    validator: Any = importlib.import_module("kubernetes_validate")
    resource = json.loads(text)
    if resource["apiVersion"] == OF_THE_OPERATOR:
        return []
    found = []
    for release in RELEASES:
        try:
            validator.validate(resource, release, strict=True)
        except (validator.ValidationError, validator.SchemaNotFoundError) as error:
            found.append(f"{release} {resource['kind']} {resource['metadata']['name']}: {error!r}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
