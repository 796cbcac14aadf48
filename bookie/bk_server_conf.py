"""Reads BookKeeper's `bk_server.conf` as our configuration.

The file is a Java properties file: lines of `key = value`, where `:` or a blank may replace `=`.
Comments begin with `#` or `!`. A backslash escapes a character, or continues the line at its end.
A key has the same meaning as in BookKeeper. Keys that Rollbook does not use are reported once and
ignored, since any file that BookKeeper accepts must be accepted.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rollbook.proto.errors import BadConfig
from rollbook.proto.formats.layout import layout_of_class
from rollbook.proto.loopback_addresses import is_loopback
from rollbook.proto.metastore.url import LayoutHint

N = TypeVar("N", int, float)

_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_BLANKS: Final = " \t\f"

# Keys that restrict access: if such a key is ignored, access or metadata that BookKeeper protects
# may be open.
_GUARDS: Final = (
    "bookieAuthProviderFactoryClass",
    "tlsProviderFactoryClass",
    "tlsClientAuthentication",
    "authorizedRoles",
    "httpServerTlsEnable",
    "zkEnableSecurity",
)
_DEFAULT_PORT: Final = 3181
_DEFAULT_HTTP_PORT: Final = 8080
_DEFAULT_ROOT: Final = "/ledgers"
_DEFAULT_INTERFACE: Final = "default"  # BookKeeper uses this name for "no particular interface".
_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104  # As BookKeeper does; refused later unless allowed.
_WARN: Final = 0.90
_MIB: Final = 1024 * 1024


# --- File format ------------------------------------------------------------------------------


def parse_properties(text: str) -> dict[str, str]:
    """Reads properties as Java does: if a key is given twice, the last line counts."""
    return {key: value for _, key, value in _pairs(text)}


def lines_of_keys(text: str) -> dict[str, int]:
    """Returns, for each key, the number of the line that counts."""
    return {key: number for number, key, _ in _pairs(text)}


def _pairs(text: str) -> Iterator[tuple[int, str, str]]:
    for number, line in _logical_lines(text):
        match = _KEY.match(line)
        assert match  # The pattern matches any line.
        yield number, _unescape(match[1]), _unescape(line[match.end() :])


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    lines = iter(enumerate(re.split(r"\r\n|\r|\n", text), 1))
    for number, line in lines:
        line = line.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        while _goes_on(line):
            line = line[:-1] + next(lines, (0, ""))[1].lstrip(_BLANKS)
        yield number, line


def _goes_on(line: str) -> bool:
    """Returns whether the line ends with an odd number of backslashes: in an even number, each pair
    is an escaped backslash."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        what = match[1]
        return chr(int(what[1:], 16)) if len(what) == 5 else _NAMED.get(what, what)

    return _ESCAPE.sub(plain, text)


# --- Keys -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Translated:
    tables: dict[str, dict[str, Any]]  # The settings, in the form of our TOML file's tables.
    ignored: tuple[str, ...]  # Keys that Rollbook does not use.
    unguarded: tuple[str, ...]  # The ignored keys that restrict access in BookKeeper.


class _Keys:
    """Reads keys, and knows which keys were never read."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        # BookKeeper treats an empty value like a missing key.
        self._left = {key: value.strip() for key, value in properties.items() if value.strip()}

    @property
    def left(self) -> tuple[str, ...]:
        return tuple(self._left)

    def text(self, key: str, default: str = "") -> str:
        return self._left.pop(key, default)

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.text(key).split(",") if part.strip())

    def integer(self, key: str) -> int | None:
        return self._number(key, int)

    def number(self, key: str) -> float | None:
        return self._number(key, float)

    def flag(self, key: str) -> bool:
        text = self.text(key, "false").lower()
        if text not in _TRUE | _FALSE:
            raise BadConfig(f"{key} is {text!r}, but should be true or false", settings=(key,))
        return text in _TRUE

    def _number(self, key: str, kind: Callable[[str], N]) -> N | None:
        text = self.text(key)
        if not text:
            return None
        try:
            return kind(text)
        except ValueError:
            raise BadConfig(f"{key} is {text!r}, but should be a number", settings=(key,)) from None


_TRUE: Final = frozenset(("true", "yes", "on", "t", "y", "1"))
_FALSE: Final = frozenset(("false", "no", "off", "f", "n", "0"))
_OFF: Final = _FALSE | {""}


# Error messages about our settings name these keys.
KEYS_OF: Final = {
    "metadata": (
        "metadataServiceUri",
        "zkServers",
        "zkLedgersRootPath",
        "ledgerManagerFactoryClass",
    ),
    "bookie_id": ("bookieId",),
    "listen": ("listeningInterface", "bookiePort"),
    "advertise": (
        "advertisedAddress",
        "listeningInterface",
        "useHostNameAsBookieID",
        "useShortHostName",
    ),
    "session_timeout_s": ("zkTimeout",),
    "read_only": ("forceReadOnlyBookie",),
    "with_recovery": ("autoRecoveryDaemonEnabled",),
    "bookie_check_s": ("auditorPeriodicBookieCheckInterval",),
    "ledgers_check_s": ("auditorPeriodicCheckInterval",),
    "ledgers_check_percent": ("auditorLedgerVerificationPercentage",),
    "overdue_s": ("underreplicatedLedgerRecoveryGracePeriod",),
    "placement_check_s": ("auditorPeriodicPlacementPolicyCheckInterval",),
    "lost_bookie_delay_s": ("lostBookieRecoveryDelay",),
    "grace_s": ("openLedgerRereplicationGracePeriod",),
    "entries_at_once": ("rereplicationEntryBatchSize",),
    "bytes_per_s_max": ("replicationRateByBytes",),
    "retry_pause_s": ("rwRereplicateBackoffMs",),
    "http": ("httpServerHost", "httpServerPort", "httpServerEnabled"),
    "tls_certificate": ("tlsCertificatePath", "tlsKeyStoreType"),
    "tls_key": ("tlsKeyStore", "tlsKeyStoreType", "tlsCertificatePath"),
    "tls_authorities": ("tlsTrustStore", "tlsClientAuthentication", "tlsKeyStoreType"),
    "journal_dir": ("journalDirectories", "journalDirectory"),
    "ledger_dirs": ("ledgerDirectories",),
    "cache_bytes": ("dbStorage_readAheadCacheMaxSizeMb",),
    "gc_interval_s": ("gcWaitTime",),
    "surplus_interval_s": ("gcOverreplicatedLedgerWaitTime",),
    "disk_check_interval_s": ("diskCheckInterval",),
    "minor_compaction_threshold": ("minorCompactionThreshold",),
    "minor_compaction_interval_s": ("minorCompactionInterval",),
    "major_compaction_threshold": ("majorCompactionThreshold",),
    "major_compaction_interval_s": ("majorCompactionInterval",),
    "compaction_bytes_per_s": ("compactionRateByBytes", "isThrottleByBytes"),
    "disk_usage_threshold": ("diskUsageThreshold",),
    "disk_usage_warn_threshold": ("diskUsageWarnThreshold", "diskUsageThreshold"),
    "disk_usage_low_water": ("diskUsageLwmThreshold", "diskUsageThreshold"),
    "frame_bytes_max": ("nettyMaxFrameSizeBytes",),
}


def translate(
    properties: Mapping[str, str], address_of: Callable[[str | None, bool], str]
) -> Translated:
    """`address_of(interface, by_name)` returns this host's address or name, on the interface if one
    is given.

    Raises `BadConfig` on an invalid value.
    """
    keys = _Keys(properties)
    # `maxBatchReadSize` is not used, because it only protects a bookie's memory from large batches.
    # We make batches in steps, as large as the frame, the client's limit and the available memory
    # allow (`request_handlers.py`).
    tables = {
        "bookie": {**_place(keys, address_of), **_doors(keys)},
        "storage": _storage(keys),
        "space": _space(keys),
        "server": _given(frame_bytes_max=keys.integer("nettyMaxFrameSizeBytes")),
        "audit": _audit(keys),
        "worker": _worker(keys),
    }
    if keys.flag("autoRecoveryDaemonEnabled"):
        tables["bookie"]["with_recovery"] = True
    unguarded = [key for key in _GUARDS if properties.get(key, "").strip().lower() not in _OFF]
    return Translated(tables, keys.left, tuple(key for key in unguarded if key in keys.left))


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", [])}


def _place(keys: _Keys, address_of: Callable[[str | None, bool], str]) -> dict[str, Any]:
    """Returns the addresses of the bookie: BookKeeper listens on all interfaces unless the file
    names one, and its id is the address or name of its host there."""
    port = keys.integer("bookiePort")
    port = _DEFAULT_PORT if port is None else port
    named = keys.text("listeningInterface")
    interface = None if named in ("", _DEFAULT_INTERFACE) else named
    by_name, is_short = keys.flag("useHostNameAsBookieID"), keys.flag("useShortHostName")
    with BadConfig.about("listeningInterface", "useHostNameAsBookieID"):
        advertised = keys.text("advertisedAddress")
        if not advertised:
            advertised = address_of(interface, by_name)
            if by_name and is_short:
                advertised = advertised.partition(".")[0]
        host = address_of(interface, False) if interface else _EVERYWHERE
    if host == _EVERYWHERE and is_loopback(advertised):
        host = advertised  # Other hosts could not reach a loopback address anyway.
    timeout_ms = keys.integer("zkTimeout")
    return _given(
        metadata=_metadata(keys),
        bookie_id=keys.text("bookieId"),
        listen=_join(host, port),
        # The advertised port is the port of `listen`, wherever that is set.
        advertise=_bracketed(advertised),
        session_timeout_s=None if timeout_ms is None else timeout_ms / 1000,
        read_only=keys.flag("forceReadOnlyBookie") or None,
    )


def _metadata(keys: _Keys) -> str:
    """Returns the metadata URI, or makes it from the keys of older files.

    The class of the ledger manager is such a key, and is ignored if there is a URI. The type
    of the ledger manager is not used: BookKeeper ignores the type if there is a LAYOUT, but a URL
    with a type would require that type.
    """
    uri = keys.text("metadataServiceUri")
    servers = ",".join(keys.texts("zkServers"))
    root = keys.text("zkLedgersRootPath", _DEFAULT_ROOT)
    if uri or not servers:
        return uri
    layout = _layout_of_class(keys)
    scheme = f"zk+{layout}" if layout else "zk"
    hosts, slash, chroot = servers.partition("/")
    return f"{scheme}://{hosts}{slash}{chroot.rstrip('/')}{root}"


def _layout_of_class(keys: _Keys) -> str:
    key = "ledgerManagerFactoryClass"
    name = keys.text(key)
    if not name:
        return ""
    layout = layout_of_class(name)
    if layout is None or layout.value not in {hint.value for hint in LayoutHint}:
        raise BadConfig(
            f"{key} is {name!r}, which is not a layout that a metadata URL can name",
            settings=(key,),
            next_step="remove it: the cluster's LAYOUT names the layout",
        )
    return layout.value


def _doors(keys: _Keys) -> dict[str, Any]:
    http: dict[str, Any] = {}
    host, port = keys.text("httpServerHost"), keys.integer("httpServerPort")
    if keys.flag("httpServerEnabled"):
        # BookKeeper's HTTP is open to all hosts by default, without a token.
        http["http"] = _join(host or "127.0.0.1", _DEFAULT_HTTP_PORT if port is None else port)
    if keys.text("tlsKeyStoreType").upper() != "PEM":
        return http  # Java's own key store formats cannot be used here.
    certificate, key = keys.text("tlsCertificatePath"), keys.text("tlsKeyStore")
    trusted = keys.text("tlsTrustStore")
    return http | _given(
        tls_certificate=certificate,
        tls_key=key if certificate else "",  # BookKeeper ignores the key unless TLS is requested.
        tls_authorities=trusted if keys.flag("tlsClientAuthentication") else "",
    )


def _storage(keys: _Keys) -> dict[str, Any]:
    several, older = keys.texts("journalDirectories"), keys.texts("journalDirectory")
    journals, key = (several, "journalDirectories") if several else (older, "journalDirectory")
    if len(journals) > 1:
        raise BadConfig(
            f"{key} names several directories, but a bookie has one journal directory",
            settings=(key,),
            next_step="name the fastest disk's",
        )
    cache_mib = keys.integer("dbStorage_readAheadCacheMaxSizeMb")
    # `journalMaxSizeMB` is not used as `journal_file_bytes`: our file is allocated at its full size
    # when it begins, and is replayed as a whole. BookKeeper's usual 2 GiB only limits a file that
    # grows.
    return _given(
        journal_dir=journals[0] if journals else None,
        ledger_dirs=list(keys.texts("ledgerDirectories")),
        cache_bytes=None if cache_mib is None else cache_mib * _MIB,
    )


def _space(keys: _Keys) -> dict[str, Any]:
    """Reads the settings of disk space: Java gives garbage collection and disk checks in ms,
    compaction in s; 0 or less means never."""
    gc_ms, check_ms = keys.integer("gcWaitTime"), keys.integer("diskCheckInterval")
    surplus_ms = keys.integer("gcOverreplicatedLedgerWaitTime")
    rate = keys.integer("compactionRateByBytes")
    # If the flag is off, BookKeeper's rate is in entries, not in bytes.
    counts_bytes = keys.flag("isThrottleByBytes")
    given = _given(
        gc_interval_s=None if gc_ms is None else gc_ms / 1000,
        surplus_interval_s=None if surplus_ms is None else max(0, surplus_ms) / 1000,
        disk_check_interval_s=None if check_ms is None else check_ms / 1000,
        minor_compaction_threshold=keys.number("minorCompactionThreshold"),
        minor_compaction_interval_s=keys.number("minorCompactionInterval"),
        major_compaction_threshold=keys.number("majorCompactionThreshold"),
        major_compaction_interval_s=keys.number("majorCompactionInterval"),
        compaction_bytes_per_s=rate if counts_bytes else None,
        disk_usage_threshold=keys.number("diskUsageThreshold"),
        disk_usage_warn_threshold=keys.number("diskUsageWarnThreshold"),
        disk_usage_low_water=keys.number("diskUsageLwmThreshold"),
    )
    if (threshold := given.get("disk_usage_threshold")) is not None:
        for name, default in (("warn_threshold", _WARN), ("low_water", threshold)):
            name = f"disk_usage_{name}"
            given[name] = min(given.get(name, default), threshold)
    return given


def _audit(keys: _Keys) -> dict[str, Any]:
    """Reads the settings of audits: Java gives checks and delays in s; 0 or less means never."""
    return _given(
        bookie_check_s=_at_least_0(keys.integer("auditorPeriodicBookieCheckInterval")),
        ledgers_check_s=_at_least_0(keys.integer("auditorPeriodicCheckInterval")),
        ledgers_check_percent=keys.number("auditorLedgerVerificationPercentage"),
        overdue_s=_at_least_0(keys.integer("underreplicatedLedgerRecoveryGracePeriod")),
        placement_check_s=_at_least_0(keys.integer("auditorPeriodicPlacementPolicyCheckInterval")),
        lost_bookie_delay_s=_at_least_0(keys.integer("lostBookieRecoveryDelay")),
    )


def _worker(keys: _Keys) -> dict[str, Any]:
    """Reads the settings of the recovery worker: Java gives these times in ms; a rate of 0 or less
    means no limit."""
    grace_ms, pause_ms = (
        keys.integer("openLedgerRereplicationGracePeriod"),
        keys.integer("rwRereplicateBackoffMs"),
    )
    return _given(
        grace_s=None if grace_ms is None else grace_ms / 1000,
        entries_at_once=keys.integer("rereplicationEntryBatchSize"),
        bytes_per_s_max=_at_least_0(keys.integer("replicationRateByBytes")),
        retry_pause_s=None if pause_ms is None else pause_ms / 1000,
    )


def _at_least_0(number: int | None) -> int | None:
    return None if number is None else max(0, number)


def _join(host: str, port: int) -> str:
    return f"{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
