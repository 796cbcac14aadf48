"""A network of its own for each process of a run, with a router between them that can drop packets.

    conductor = the router ── 10.77.1.0/24 ── bk-1
                           ├─ 10.77.2.0/24 ── bk-2
                           └─ …

Each host is an unnamed network namespace, held by an idle process; it disappears, with its wires, when
the last process in it ends. The caller must have its own namespace, too (`unshare --net`): it becomes
the router. A cut is a rule of its routing table that drops packets from one address to another, in one
direction: no reset, no ICMP, as when a cable is pulled.

Where that is not possible, `Loopback` puts all processes at 127.0.0.1, where nothing can be cut.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final, Protocol

from tests.support.processes import Child, Family

HOW_TO_ENABLE: Final = (
    "Linux, root, and the programs ip, unshare and nsenter (iproute2, util-linux)"
)
_TOOLS: Final = ("ip", "unshare", "nsenter")
_PREFERENCE: Final = (
    10  # Priority of the rules: before the kernel's, which are moved to a later one.
)
_LOCAL_PREFERENCE: Final = 20_000
ALONE: Final = ("unshare", "--net", "--mount", "--")
"""Prefix of the command of a router process; its mounts disappear with it."""


def why_not() -> str | None:
    """Why processes cannot be put into networks of their own here; None if they can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"there is no program {missing[0]}"
    if os.geteuid() != 0:
        return "it needs root"
    script = (
        "echo 1 > /proc/sys/net/ipv4/ip_forward"
        " && ip link add name one type veth peer name two && ip rule add from 10.77.0.1 blackhole"
    )
    done = subprocess.run([*ALONE, "sh", "-c", script], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"namespaces fail: {done.stderr.strip()}"


class Network(Protocol):
    can_cut: bool

    def address(self, host: str) -> str: ...

    def prefix(self, host: str) -> Sequence[str]:
        """The prefix of a command that runs it on this host."""

    def cut(self, source: str, target: str) -> int:
        """Drops all packets from `source` to `target`; returns a number for `mend`."""

    def mend(self, number: int) -> None: ...


class Loopback:
    can_cut = False

    def address(self, _host: str) -> str:
        return "127.0.0.1"

    def prefix(self, _host: str) -> Sequence[str]:
        return ()

    def cut(self, _source: str, _target: str) -> int:
        raise NotImplementedError

    def mend(self, _number: int) -> None:
        raise NotImplementedError


class Namespaces:
    can_cut = True

    def __init__(self, children: Family, hosts: Sequence[str]) -> None:
        self._numbers = {host: number for number, host in enumerate(hosts, 1)}
        self._holders: dict[str, Child] = {}
        self._cuts: dict[int, None] = {}
        with open("/proc/sys/net/ipv4/ip_forward", "w") as forwarding:
            forwarding.write("1")
        _ip("link", "set", "lo", "up")
        # Ours come first, even for packets to the router itself.
        _ip("rule", "add", "pref", str(_LOCAL_PREFERENCE), "lookup", "local")
        _ip("rule", "del", "pref", "0")
        for host in hosts:
            self._add(children, host)

    def _add(self, children: Family, host: str) -> None:
        holder = children.start(*ALONE, "sh", "-c", "echo ready; exec cat")
        assert holder.line() == "ready"  # The process is in its own namespace now.
        self._holders[host] = holder
        number, wire = self._numbers[host], f"to-{host}"
        _ip(
            "link",
            "add",
            "name",
            wire,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(holder.pid),
        )
        _ip("address", "add", f"10.77.{number}.1/24", "dev", wire)
        _ip("link", "set", wire, "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{self.address(host)}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", f"10.77.{number}.1"),
        ):
            _run(*self.prefix(host), "ip", *command)

    def address(self, host: str) -> str:
        return f"10.77.{self._numbers[host]}.2"

    def prefix(self, host: str) -> Sequence[str]:
        return ("nsenter", f"--net=/proc/{self._holders[host].pid}/ns/net", "--")

    def cut(self, source: str, target: str) -> int:
        number = max(self._cuts, default=_PREFERENCE) + 1
        self._cuts[number] = None
        addresses = ("from", self.address(source), "to", self.address(target))
        _ip("rule", "add", "pref", str(number), *addresses, "blackhole")
        return number

    def mend(self, number: int) -> None:
        _ip("rule", "del", "pref", str(number))
        del self._cuts[number]


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
