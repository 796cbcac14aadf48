"""Runs the pods of `compose/helm/rollbook` as containers, with TLS and the chart's ZooKeeper.

Emulates these parts of Kubernetes: `$(VAR)`, fields of a pod, variables of services, users and
groups, secrets of mode 0440 that belong to root and `fsGroup`, volumes with `lost+found`, a
read-only root, names of services, probes, and SIGTERM with its grace period.
"""

import json
import os
import re
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.deploy.cluster import Cluster
from tests.deploy.engine import CommandFailed, Engine
from tests.deploy.images import ROOT, Images, NotFetched
from tests.support.certificates import Authority

_PYTHON: Final = ROOT / "build" / "chart" / "bin" / "python"
_RENDER: Final = ROOT / "tests" / "architecture" / "chart_render.py"
_CHART: Final = ROOT / "compose" / "helm" / "rollbook"
_NETWORK: Final = "rollbook-chart"
_NAMESPACE: Final = "prod"
# The names in docs/deploy.md for this release and namespace.
_NAMES: Final = (
    "rollbook-log",
    "rollbook-log.prod.svc",
    "*.rollbook-log-servers.prod.svc",
    "*.rollbook-bookie.prod.svc",
    "rollbook-recovery.prod.svc",
)
_READY_WITHIN_S: Final = 90.0
_BOSS: Final = "boss --file /made/access.toml --admin '*' --read '*' --append '*' --operate"
_ROOT_MAY_WRITE: Final = ("zookeeper",)  # The image writes its settings file.


@dataclass(frozen=True)
class Pod:
    name: str
    owner: dict[str, Any]  # The StatefulSet, Deployment or Job.

    @property
    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.owner["spec"]["template"]["spec"]
        return found

    @property
    def container(self) -> dict[str, Any]:
        (found,) = self.spec["containers"]
        return dict(found)

    @property
    def is_job(self) -> bool:
        return bool(self.owner["kind"] == "Job")

    def settings(self) -> dict[str, str]:
        fields = {"metadata.name": self.name, "metadata.namespace": _NAMESPACE}
        return {
            each["name"]: each["value"]
            if "value" in each
            else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in self.container.get("env", ())
        }

    def arguments(self) -> list[str]:
        """The arguments with `$(VAR)` replaced, except for variables that are not set."""
        known = self.settings()
        return [
            re.sub(r"\$\((\w+)\)", lambda found: known.get(found[1], found[0]), each)
            for each in self.container.get("args", ())
        ]


def rendered(built: Images) -> list[dict[str, Any]]:
    """All objects of a release. Raises `NotFetched`."""
    if not _PYTHON.exists():
        raise NotFetched("there is no build/chart (make chart)")
    repository, _, tag = built.rollbook.partition(":")
    values = {
        "image": {"repository": repository, "tag": tag or "latest"},
        "zookeeper": {"enabled": True, "image": built.zookeeper},
        "tls": {"secret": "tls", "access": "access"},
    }
    done = subprocess.run(
        [_PYTHON, _RENDER, _CHART, "rollbook"],
        input=json.dumps({"all": values}),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    case = json.loads(done.stdout)["cases"]["all"]
    assert case["error"] == "", case["error"]
    found: list[dict[str, Any]] = case["objects"]
    return found


def pods_of(objects: list[dict[str, Any]]) -> Iterator[Pod]:
    for each in objects:
        name = each["metadata"]["name"]
        if each["kind"] == "StatefulSet":
            for number in range(each["spec"]["replicas"]):
                yield Pod(f"{name}-{number}", each)
        elif each["kind"] == "Deployment":
            for number in range(each["spec"]["replicas"]):
                yield Pod(f"{name}-5d4f8-{number}", each)
        elif each["kind"] == "Job":
            yield Pod(f"{name}-x2x1", each)


class Release:
    """The pods of a release in one network."""

    def __init__(self, engine: Engine, built: Images, folder: Path) -> None:
        self._engine = engine
        self._image = built.rollbook
        self._folder = folder
        objects = rendered(built)
        self._services = [each for each in objects if each["kind"] == "Service"]
        self.pods = list(pods_of(objects))
        self._make_secrets()

    def start(self) -> None:
        self._engine.docker("network", "create", _NETWORK)
        for pod in self.pods:
            self._engine.docker(*self._command(pod))

    def await_ready(self) -> float:
        """Waits until all startup and readiness probes pass and jobs have succeeded; returns the
        seconds.
        """
        started = time.monotonic()
        for pod in self.pods:
            left_s = _READY_WITHIN_S - (time.monotonic() - started)
            Cluster.until(partial(self._is_ready, pod), left_s, f"{pod.name} is ready")
        return time.monotonic() - started

    def require_live(self) -> None:
        for pod in self.pods:
            if not pod.is_job:
                assert self._passes(pod, "livenessProbe"), pod.name
                assert self._engine.inspect(pod.name, "{{.RestartCount}}") == "0", pod.name

    def require_confined(self) -> None:
        for pod in self.pods:
            if pod.is_job:
                continue
            user = str(pod.spec["securityContext"]["runAsUser"])
            status = self._engine.docker("exec", pod.name, "cat", "/proc/1/status")
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert fields["Uid"].split() == [user] * 4, pod.name
            assert int(fields["CapEff"], 16) == 0, pod.name
            assert fields["NoNewPrivs"] == "1", pod.name
            if pod.container["name"] not in _ROOT_MAY_WRITE:
                with suppress(CommandFailed):
                    self._engine.docker("exec", pod.name, "touch", "/opt/rollbook/written")
                    raise AssertionError(f"{pod.name} can write to its root")

    def append_and_read(self) -> None:
        """Appends and reads from inside the cluster, by the service's name, with CA and token."""
        server = ("--server", "log+tls://rollbook-log:7400", "--tls-authorities", "/tls/ca.crt")
        shown = (*server, "--token-file", "/access/token")
        self._shell("log", "create", "orders", *shown)
        self._shell("log", "append", "orders", *shown, text="paid 1\npaid 2\n")
        found = self._shell("log", "read", "orders", *shown, "-o", "raw")
        assert found == "paid 1\npaid 2", found

    def stop(self) -> dict[str, float]:
        """Stops each pod with SIGTERM; returns the seconds, which must be within its grace period."""
        took = {}
        for pod in self.pods:
            if pod.is_job:
                continue
            grace_s = pod.spec["terminationGracePeriodSeconds"]
            started = time.monotonic()
            self._engine.docker("stop", f"--time={grace_s}", pod.name, timeout_s=grace_s + 30)
            took[pod.name] = time.monotonic() - started
            code = self._engine.inspect(pod.name, "{{.State.ExitCode}}")
            assert code == ("143" if pod.container["name"] == "zookeeper" else "0"), (
                f"{pod.name} ended with {code}"
            )
            assert took[pod.name] < grace_s, f"{pod.name} took {took[pod.name]:.0f} s"
        return took

    def logs(self) -> str:
        parts = []
        for pod in self.pods:
            with suppress(CommandFailed):
                ask = f"docker logs --tail=12 {pod.name} 2>&1"
                parts.append(f"--- {pod.name}\n{self._engine.run('sh', '-c', ask)}")
        return "\n".join(parts)

    def remove(self) -> None:
        for pod in self.pods:
            with suppress(CommandFailed):
                self._engine.docker("rm", "--force", "--volumes", pod.name)
        for name in [name for pod in self.pods for name in self._claims(pod).values()]:
            with suppress(CommandFailed):
                self._engine.docker("volume", "rm", name)
        with suppress(CommandFailed):
            self._engine.docker("network", "rm", _NETWORK)

    # --- One pod ------------------------------------------------------------------------------

    def _command(self, pod: Pod) -> list[str]:
        container, context = pod.container, pod.spec["securityContext"]
        user, group = context["runAsUser"], context["runAsGroup"]
        settings = self._service_variables() | pod.settings()
        limits = container["resources"]["limits"]
        return [
            "run",
            "--detach",
            f"--name={pod.name}",
            f"--hostname={pod.name}",
            f"--network={_NETWORK}",
            *(f"--network-alias={each}" for each in self._names(pod)),
            f"--user={user}:{group}",
            f"--group-add={context['fsGroup']}",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges:true",
            *(
                ["--read-only"]
                if container["securityContext"].get("readOnlyRootFilesystem")
                else []
            ),
            f"--memory={limits['memory'].removesuffix('i').lower()}",
            f"--restart={'on-failure' if pod.is_job else 'no'}",
            *(f"--env={name}={value}" for name, value in settings.items()),
            *self._mounts(pod),
            container["image"],
            *pod.arguments(),
        ]

    def _service_variables(self) -> dict[str, str]:
        """The variables that Kubernetes sets if `enableServiceLinks` is on, which look like
        settings.
        """
        found = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_PORT": "tcp://10.0.0.1:443"}
        for each in self._services:
            name = each["metadata"]["name"].upper().replace("-", "_")
            found[f"{name}_SERVICE_HOST"] = "10.0.0.9"
            for port in each["spec"]["ports"]:
                number = str(port["port"])
                found[f"{name}_SERVICE_PORT_{port['name'].upper()}"] = number
                found[f"{name}_PORT_{number}_TCP_ADDR"] = "10.0.0.9"
                found[f"{name}_SERVICE_PORT"] = number
                found[f"{name}_PORT"] = f"tcp://10.0.0.9:{number}"
        return found

    def _names(self, pod: Pod) -> Iterator[str]:
        """The names of services that select the pod, and its own name below its headless service."""
        labels = pod.owner["spec"]["template"]["metadata"]["labels"]
        for each in self._services:
            name = each["metadata"]["name"]
            if each["spec"]["selector"].items() <= labels.items():
                yield from (name, f"{name}.{_NAMESPACE}.svc")
                if name == pod.owner["spec"].get("serviceName"):
                    yield f"{pod.name}.{name}.{_NAMESPACE}.svc"

    def _claims(self, pod: Pod) -> dict[str, str]:
        claims = pod.owner["spec"].get("volumeClaimTemplates", ())
        return {
            each["metadata"]["name"]: f"{each['metadata']['name']}-{pod.name}" for each in claims
        }

    def _mounts(self, pod: Pod) -> Iterator[str]:
        claims = self._claims(pod)
        volumes = {each["name"]: each for each in pod.spec.get("volumes", ())}
        for mount in pod.container["volumeMounts"]:
            name, path = mount["name"], mount["mountPath"]
            if name in claims:
                self._format(claims[name], pod.spec["securityContext"]["fsGroup"])
                yield f"--volume={claims[name]}:{path}"
            elif "emptyDir" in volumes[name]:
                yield f"--tmpfs={path}:mode=1777"
            else:
                secret = volumes[name]["secret"]["secretName"]
                yield f"--volume={self._folder / secret}:{path}:ro"

    def _format(self, volume: str, group: int) -> None:
        """Prepares a volume like a new disk that kubelet gave to the pod's group."""
        steps = f"mkdir -m 700 /new/lost+found && chown root:{group} /new && chmod 2775 /new"
        self._engine.docker(
            "run",
            "--rm",
            "--network=none",
            "--user=0",
            f"--volume={volume}:/new",
            "--entrypoint=sh",
            self._image,
            "-c",
            steps,
        )

    def _is_ready(self, pod: Pod) -> bool:
        state = json.loads(self._engine.inspect(pod.name, "{{json .State}}"))
        if pod.is_job:
            return bool(state["Status"] == "exited" and state["ExitCode"] == 0)
        assert state["Status"] == "running", f"{pod.name} ended with {state['ExitCode']}"
        return self._passes(pod, "startupProbe") and self._passes(pod, "readinessProbe")

    def _passes(self, pod: Pod, kind: str) -> bool:
        """Probes like kubelet: from the node, with no client certificate and no check of the
        server's.
        """
        probe = pod.container.get(kind)
        if probe is None:
            return True
        asked = probe.get("httpGet") or probe["tcpSocket"]
        ports = {each["name"]: each["containerPort"] for each in pod.container["ports"]}
        port = ports.get(asked["port"], asked["port"])
        address = self._engine.inspect(
            pod.name, "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        )
        if "tcpSocket" in probe:
            with suppress(CommandFailed):
                ask = f"exec 3<>/dev/tcp/{address}/{port}"
                self._engine.docker("exec", pod.name, "bash", "-c", ask)
                return True
            return False
        url = f"{asked['scheme'].lower()}://{address}:{port}{asked['path']}"
        believing = ssl.create_default_context()
        believing.check_hostname, believing.verify_mode = False, ssl.CERT_NONE
        with suppress(OSError):
            timeout_s = probe.get("timeoutSeconds", 1)
            with urllib.request.urlopen(url, timeout=timeout_s, context=believing) as answer:
                return bool(answer.status == 200)
        return False

    # --- Secrets ------------------------------------------------------------------------------

    def _make_secrets(self) -> None:
        made = self._folder / "made"
        made.mkdir()
        authority = Authority.make(made)
        tls = authority.issue("rollbook", ",".join(f"DNS:{each}" for each in _NAMES))
        token = os.urandom(32).hex()
        lines = self._engine.docker(
            "run",
            "--rm",
            "--network=none",
            "--tmpfs=/made:mode=1777",
            "--entrypoint=sh",
            self._image,
            "-c",
            f"umask 077; rollbook access add {_BOSS} >&2; cat /made/access.toml",
        )
        secrets = {
            "tls": {
                "tls.crt": Path(tls.certificate).read_text(),
                "tls.key": Path(tls.key).read_text(),
                "ca.crt": Path(authority.certificate).read_text(),
            },
            "access": {"access.toml": lines + "\n", "token": token + "\n"},
        }
        for secret, files in secrets.items():
            (self._folder / secret).mkdir()
            for name, text in files.items():
                path = self._folder / secret / name
                path.write_text(text)
                os.chown(path, 0, 10001)
                path.chmod(0o440)

    def _shell(self, *words: str, text: str | None = None) -> str:
        return self._engine.docker(
            "run",
            "--rm",
            "--interactive",
            f"--network={_NETWORK}",
            *(f"--volume={self._folder}/{each}:/{each}:ro" for each in ("tls", "access")),
            self._image,
            *words,
            text=text,
        )


@contextmanager
def installed(engine: Engine, built: Images, folder: Path) -> Iterator[Release]:
    release = Release(engine, built, folder)
    try:
        yield release
    finally:
        release.remove()
