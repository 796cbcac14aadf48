"""The chart `compose/helm/rollbook` renders valid Kubernetes objects and valid commands."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import pytest

from rollbook import __version__
from rollbook.api.cli.server.recovery import RecoveryServerConfig
from rollbook.api.rest import bookie_admin_server, cluster_app, log_app
from rollbook.api.rest.callback_target import check_hosts
from rollbook.bookie.config import BookieConfig
from rollbook.logservice.config import LogServerConfig
from rollbook.proto.runtime.config import variables_of_flags
from tests.architecture.source import ROOT
from tests.architecture.test_alerts import ALERTS
from tests.architecture.test_readme import _parse
from tests.tally import missing_piece

FOLDER = ROOT / "compose" / "helm" / "rollbook"
PYTHON = ROOT / "build" / "chart" / "bin" / "python"
DEPLOY = (ROOT / "docs" / "deploy.md").read_text()

URL: Final = {"metadata": {"url": "zk://zk1,zk2,zk3/ledgers"}}
TLS: Final = {"tls": {"secret": "rollbook-tls", "access": "rollbook-access"}}
MONITORING: Final = {
    "monitoring": {
        "podMonitors": True,
        "rules": True,
        "dashboard": True,
        "labels": {"release": "prometheus"},
    }
}
PLACED: Final = {
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "disk", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"note": "one"},
    "env": {"ROLLBOOK_LOG_LEVEL": "debug"},
    "resources": {"limits": {"memory": "4Gi"}},
}
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "as it is": URL,
    "a trial": {"zookeeper": {"enabled": True, "storage": {"storageClass": "fast"}}},
    "TLS": {**URL, **TLS},
    "monitoring": {**URL, **MONITORING},
    "TLS and monitoring": {**URL, **TLS, **MONITORING},
    "callbacks": {
        **URL,
        **TLS,
        "recovery": {"callbackHosts": ["hooks.example.com", "other.example.com:8443"]},
    },
    "placed": {
        **URL,
        "bookie": {**PLACED, "replicas": 5, "journal": {"size": "1Ti", "storageClass": "fast"}},
        "log": PLACED,
        "recovery": PLACED,
        "image": {"repository": "example.com/rollbook", "tag": "1", "pullSecrets": ["registry"]},
        "spread": {"topologyKey": "topology.kubernetes.io/zone"},
    },
}
MISTAKES: Final[Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "no metadata": ({}, "metadata.url is empty: set it to your ZooKeeper, as in zk://zk1,zk2,zk3"),
    "another URL": (
        {"metadata": {"url": "http://x"}},
        '"http://x", which is not the URL of a ZooKeeper',
    ),
    "two stores": (
        {**URL, "zookeeper": {"enabled": True}},
        "exclude each other: leave one of them",
    ),
    "a misspelt table": ({**URL, "bookies": {}}, "additional properties 'bookies' not allowed"),
    "a misspelt name": (
        {**URL, "log": {"replica": 2}},
        "at '/log': additional properties 'replica' not allowed",
    ),
    "no bookie": ({**URL, "bookie": {"replicas": 0}}, "'/bookie/replicas': minimum: got 0, want 1"),
    "text for a number": (
        {**URL, "log": {"replicas": "2"}},
        "at '/log/replicas': got string, want integer",
    ),
    "text for yes": (
        {"zookeeper": {"enabled": "yes"}},
        "at '/zookeeper/enabled': got string, want boolean",
    ),
    "a size without a unit": (
        {**URL, "bookie": {"journal": {"size": "10 GB"}}},
        'bookie.journal.size is "10 GB": set a whole number and a unit, as in 10Gi',
    ),
    "half of TLS": (
        {**URL, "tls": {"secret": "rollbook-tls"}},
        "tls.secret and tls.access go together: set both, or none",
    ),
    "callbacks without TLS": (
        {**URL, "recovery": {"callbackHosts": ["hooks.example.com"]}},
        "recovery.callbackHosts needs tls.secret and tls.access",
    ),
    "two hosts in one": (
        {**URL, **TLS, "recovery": {"callbackHosts": ["a.example.com,b.example.com"]}},
        "at '/recovery/callbackHosts/0': 'a.example.com,b.example.com' does not match",
    ),
    "a variable of others": (
        {**URL, "log": {"env": {"JAVA_HOME": "/"}}},
        'log.env has "JAVA_HOME", which is not the name of a setting: names are as in ROLLBOOK_LOG_LEVEL',
    ),
    "a variable that is taken": (
        {**URL, "bookie": {"env": {"ROLLBOOK_LISTEN": ":1"}}},
        "bookie.env has ROLLBOOK_LISTEN, which the chart sets: leave it out",
    ),
    "a number as a variable": (
        {**URL, "bookie": {"env": {"ROLLBOOK_SPACE_GC_INTERVAL_S": 600}}},
        "at '/bookie/env/ROLLBOOK_SPACE_GC_INTERVAL_S': got number, want string",
    ),
    "another spread": (
        {**URL, "spread": {"whenUnsatisfiable": "Never"}},
        "at '/spread/whenUnsatisfiable': value must be one of 'ScheduleAnyway', 'DoNotSchedule'",
    ),
}
SHAPES: Final[Mapping[str, type[Any]]] = {
    "bookie": BookieConfig,
    "log": LogServerConfig,
    "recovery": RecoveryServerConfig,
}
OPEN_PATHS: Final = {
    "bookie": bookie_admin_server.OPEN_PATHS,
    "log": log_app.OPEN_PATHS,
    "recovery": cluster_app.OPEN_PATHS,
}


@cache
def _rendered() -> dict[str, Any]:
    """Renders all cases in one process, because loading Kubernetes' schemas takes most of the time."""
    if not PYTHON.exists():
        pytest.skip(missing_piece("helm", "there is no build/chart", "make chart"))
    cases = {**OPTIONS, **{name: values for name, (values, _) in MISTAKES.items()}}
    done = subprocess.run(
        [PYTHON, ROOT / "tests" / "architecture" / "chart_render.py", FOLDER],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _objects(case: str, *kinds: str) -> list[dict[str, Any]]:
    found = _rendered()["cases"][case]
    assert found["error"] == ""
    return [each for each in found["objects"] if not kinds or each["kind"] in kinds]


def _pods(case: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in _objects(case, "StatefulSet", "Deployment", "Job"):
        pod = each["spec"]["template"]["spec"]
        yield pod["containers"][0]["name"], pod


def _settings(container: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_chart_passes_helm_lint() -> None:
    assert _rendered()["lint"] == []


@pytest.mark.parametrize("case", OPTIONS)
def test_rendered_objects_are_valid_for_kubernetes(case: str) -> None:
    found = _rendered()["cases"][case]
    assert (found["error"], found["invalid"]) == ("", [])
    assert sorted(name for name, _ in _pods(case)) == sorted(
        [*SHAPES, "init", *(["zookeeper"] if case == "a trial" else [])]
    )


@pytest.mark.parametrize("case", MISTAKES)
def test_invalid_values_are_refused_with_a_short_error(case: str) -> None:
    error = _rendered()["cases"][case]["error"]
    assert MISTAKES[case][1] in error
    assert len(error) < 300


@pytest.mark.parametrize("case", OPTIONS)
def test_commands_and_variables_of_pods_exist(case: str) -> None:
    for name, pod in _pods(case):
        (container,) = pod["containers"]
        if name == "zookeeper":
            continue
        _parse(f"rollbook {' '.join(container['args'])}", case)
        if name == "init":
            continue
        assert container["args"][:2] == ["server", name]
        variables = variables_of_flags(SHAPES[name]).values()
        settings = _settings(container)
        for variable in settings:
            assert variable in variables or not variable.startswith("ROLLBOOK_"), variable
        for variable in re.findall(r"\$\((\w+)\)", " ".join(container["args"])):
            assert variable in settings


@pytest.mark.parametrize("case", OPTIONS)
def test_probes_use_paths_that_need_no_token(case: str) -> None:
    for name, pod in _pods(case):
        if name not in SHAPES:
            continue
        (container,) = pod["containers"]
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[kind]["httpGet"]
            assert asked["path"] in OPEN_PATHS[name]
            assert asked["scheme"] == ("HTTPS" if "tls" in OPTIONS[case] else "HTTP")
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        flag = "--rest" if name == "log" else "--http"
        assert f"{flag}=:{ports['http']}" in container["args"]


@pytest.mark.parametrize("case", OPTIONS)
def test_pods_run_unprivileged(case: str) -> None:
    for name, pod in _pods(case):
        (container,) = pod["containers"]
        assert not pod["enableServiceLinks"]
        assert not pod["automountServiceAccountToken"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["fsGroup"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        if name != "zookeeper":
            assert container["securityContext"]["readOnlyRootFilesystem"]
        for volume in pod.get("volumes", []):
            assert volume.get("secret", {}).get("defaultMode", 0o440) == 0o440


@pytest.mark.parametrize("case", OPTIONS)
def test_services_and_budgets_select_pods(case: str) -> None:
    pods = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in _objects(case, "StatefulSet", "Deployment")
    ]
    selectors = [each["spec"]["selector"] for each in _objects(case, "Service")]
    budgets = [
        each["spec"]["selector"]["matchLabels"] for each in _objects(case, "PodDisruptionBudget")
    ]
    assert len(budgets) == len(SHAPES)
    for selector in selectors + budgets:
        assert sum(selector.items() <= labels.items() for labels in pods) == 1
    names = [each["metadata"]["name"] for each in _objects(case, "Service")]
    for each in _objects(case, "StatefulSet"):
        assert each["spec"]["serviceName"] in names


def test_tls_values_encrypt_every_exposed_port() -> None:
    """Kubelet presents no client certificate, so no probed server may require one.

    Therefore no server gets `--tls-authorities`.
    """
    arguments = {name: pod["containers"][0]["args"] for name, pod in _pods("TLS")}
    for name in SHAPES:
        assert "-certificate=/etc/rollbook/tls/tls.crt" in " ".join(arguments[name])
        assert not any(each.startswith("--tls-authorities") for each in arguments[name])
        assert ("--insecure" in arguments[name]) == (name == "bookie")
    assert "--listen=127.0.0.1:3181" in arguments["bookie"]
    assert "--http-tls" in arguments["bookie"]
    for name in ("log", "recovery"):
        assert "--bookie-authorities=/etc/rollbook/tls/ca.crt" in arguments[name]
        assert "--access-file=/etc/rollbook/access/access.toml" in arguments[name]


def test_callback_hosts_are_those_of_the_values() -> None:
    flag = "--callback-hosts="
    for case, wanted in (
        ("callbacks", ["hooks.example.com", "other.example.com:8443"]),
        ("TLS", []),
    ):
        ((_, pod),) = [each for each in _pods(case) if each[0] == "recovery"]
        found = [each for each in pod["containers"][0]["args"] if each.startswith(flag)]
        hosts = found[0].removeprefix(flag).split(",") if found else []
        assert hosts == wanted
        check_hosts(hosts)


def test_rules_and_dashboard_equal_those_of_compose() -> None:
    (rules,) = _objects("monitoring", "PrometheusRule")
    (group,) = rules["spec"]["groups"]
    assert [each["alert"] for each in group["rules"]] == list(ALERTS)
    jobs = [
        relabeling["replacement"]
        for each in _objects("monitoring", "PodMonitor")
        for relabeling in each["spec"]["podMetricsEndpoints"][0]["relabelings"]
        if relabeling["targetLabel"] == "job"
    ]
    assert jobs == list(SHAPES)
    (dashboard,) = _objects("monitoring", "ConfigMap")
    assert json.loads(dashboard["data"]["rollbook.json"]) == json.loads(
        (ROOT / "compose" / "grafana" / "rollbook.json").read_text()
    )


def test_app_version_of_chart_is_the_package_version() -> None:
    assert f"\nappVersion: {__version__}\n" in (FOLDER / "Chart.yaml").read_text()


def test_values_are_in_the_schema_and_on_the_deploy_page() -> None:
    """Checks the first level only; the schema refuses unknown values on deeper levels."""
    values = re.findall(r"^(\w+):", (FOLDER / "values.yaml").read_text(), re.MULTILINE)
    schema = json.loads((FOLDER / "values.schema.json").read_text())
    assert sorted(values) == sorted(set(schema["properties"]) - {"global"})
    assert [each for each in values if f"`{each}" not in DEPLOY] == []
