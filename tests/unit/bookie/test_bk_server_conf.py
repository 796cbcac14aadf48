"""Translation of BookKeeper's `bk_server.conf`."""

import random
from pathlib import Path

import pytest

from rollbook.api.cli.server import bookie_settings
from rollbook.bookie.bk_server_conf import KEYS_OF, lines_of_keys, parse_properties, translate
from rollbook.bookie.bookie import addresses_of
from rollbook.bookie.config import BookieConfig
from rollbook.proto.errors import BadConfig
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import Address
from tests.messages import raises_message

LONG = "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory"


def address_of(interface: str | None, by_name: bool) -> str:
    addresses = {None: "10.9.9.9", "lo": "127.0.0.1", "eth0": "10.0.0.5"}
    names = {None: "host.example", "lo": "localhost", "eth0": "back.host.example"}
    return (names if by_name else addresses)[interface]


def translated(text: str) -> dict[str, dict[str, object]]:
    return translate(parse_properties(text), address_of).tables


def test_ignored_security_keys_are_listed_separately() -> None:
    """Keys that are switched off, or that have a meaning here, are not listed."""
    text = "bookieAuthProviderFactoryClass=org.example.Sasl\nzkEnableSecurity=false\nx=1\n"
    found = translate(parse_properties(text + "tlsClientAuthentication=true"), address_of)
    assert found.unguarded == ("bookieAuthProviderFactoryClass", "tlsClientAuthentication")
    assert {"x", "zkEnableSecurity", *found.unguarded} == set(found.ignored)
    pem = "tlsKeyStoreType=PEM\ntlsClientAuthentication=true\ntlsTrustStore=/ca.pem"
    assert translate(parse_properties(pem), address_of).unguarded == ()


# --- The format -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("a=1\nb=2\r\nc=3\rd=4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("a=1\na=2", {"a": "2"}),
        ("# a=1\n  ! b=2\n\n \t\nc=3", {"c": "3"}),
        ("a = 1\nb : 2\nc 3\nd\t=\t4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("a=1  ", {"a": "1  "}),
        ("a=1,\\\n   2,\\\n\t3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\\\\\nb=2", {"a": "1\\b=2"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        ("a\\ b=1\na\\=b=2\na\\:b=3", {"a b": "1", "a=b": "2", "a:b": "3"}),
        ("a=C:\\\\dir\\tx", {"a": "C:\\dir\tx"}),
        ("a=\\u00e9\\u20AC\\q", {"a": "é€q"}),
        ("é=ü", {"é": "ü"}),
    ],
)
def test_lines_are_read_as_java_reads_them(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text) == found


def test_line_of_a_key_is_its_last_occurrence() -> None:
    text = "# x\na=1\n\nb=1,\\\n  2\r\nc=3\na=2"
    assert lines_of_keys(text) == {"a": 7, "b": 4, "c": 6}


def escape(text: str) -> str:
    """Escapes a key or a value as Java does."""
    named = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    return "".join(
        named.get(c)
        or (f"\\{c}" if c in "\\=: #!" else c if " " < c < "\x7f" else f"\\u{ord(c):04x}")
        for c in text
    )


def test_properties_written_by_java_are_read_back() -> None:
    chance = random.Random(1)
    alphabet = "ab=:#! \\\t\n\r\fé€,"
    for _ in range(2000):
        wanted = {
            "".join(chance.choices(alphabet, k=chance.randrange(1, 8))): "".join(
                chance.choices(alphabet, k=chance.randrange(8))
            )
            for _ in range(chance.randrange(4))
        }
        text = "\n".join(f"{escape(key)}={escape(value)}" for key, value in wanted.items())
        assert parse_properties(text) == wanted


# --- The keys ---------------------------------------------------------------------------------

# Keys of the file that BookKeeper ships, with the defaults it sets.
SHIPPED = """
bookiePort=3181
allowMultipleDirsUnderSameDiskPartition=true
#listeningInterface=eth0
#advertisedAddress=
#allowLoopback=false
bookieDeathWatchInterval=1000
flushInterval=10000
allowStorageExpansion=false
useHostNameAsBookieID=false
useShortHostName=false
allowEphemeralPorts=false
enableLocalTransport=false
disableServerSocketBind=false
extraServerComponents=
ignoreExtraServerComponentsStartupFailures=false
enableBusyWait=false
numReadWorkerThreads=8
numAddWorkerThreads=1
numHighPriorityWorkerThreads=8
maxPendingReadRequestsPerThread=10000
maxPendingAddRequestsPerThread=10000
maxAddsInProgressLimit=0
serverTcpNoDelay=true
serverSockKeepalive=true
nettyMaxFrameSizeBytes=5242880
auditorPeriodicCheckInterval=604800
autoRecoveryDaemonEnabled=true
rwRereplicateBackoffMs=5000
bookieAuthProviderFactoryClass=
tlsProvider=OpenSSL
tlsProviderFactoryClass=
tlsClientAuthentication=false
tlsKeyStoreType=PKCS12
tlsKeyStore=
tlsTrustStore=
journalDirectories=/tmp/bk-txn
journalMaxSizeMB=2048
journalMaxBackups=5
journalSyncData=true
ledgerStorageClass=org.apache.bookkeeper.bookie.SortedLedgerStorage
ledgerDirectories=/tmp/bk-data
logSizeLimit=1073741824
minUsableSizeForEntryLogCreation=1288490188
minorCompactionThreshold=0.2
minorCompactionInterval=3600
compactionMaxOutstandingRequests=100000
majorCompactionThreshold=0.8
majorCompactionInterval=86400
isThrottleByBytes=false
compactionRateByBytes=1000000
gcWaitTime=1000
gcOverreplicatedLedgerWaitTime=86400000
verifyMetadataOnGC=false
readOnlyModeEnabled=true
diskUsageThreshold=0.95
diskUsageLwmThreshold=0.90
diskCheckInterval=10000
openFileLimit=0
pageLimit=0
zkLedgersRootPath=/ledgers
metadataServiceUri=zk+hierarchical://localhost:2181/ledgers
#zkServers=localhost:2181
zkTimeout=10000
zkEnableSecurity=false
httpServerEnabled=false
httpServerPort=8080
httpServerClass=org.apache.bookkeeper.http.vertx.VertxHttpServer
statsProviderClass=org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider
prometheusStatsHttpPort=8000
storage.range.store.dirs=data/bookkeeper/ranges
"""


def test_file_shipped_with_bookkeeper_is_translated() -> None:
    found = translate(parse_properties(SHIPPED), address_of)
    assert found.tables == {
        "bookie": {
            "metadata": "zk+hierarchical://localhost:2181/ledgers",
            "listen": "0.0.0.0:3181",
            "advertise": "10.9.9.9",
            "session_timeout_s": 10.0,
            "with_recovery": True,
        },
        "audit": {"ledgers_check_s": 604_800},
        "worker": {"retry_pause_s": 5.0},
        "storage": {"journal_dir": "/tmp/bk-txn", "ledger_dirs": ["/tmp/bk-data"]},
        "server": {"frame_bytes_max": 5 * 1024 * 1024},
        "space": {
            "gc_interval_s": 1.0,
            "surplus_interval_s": 86_400.0,
            "disk_check_interval_s": 10.0,
            "minor_compaction_threshold": 0.2,
            "minor_compaction_interval_s": 3600.0,
            "major_compaction_threshold": 0.8,
            "major_compaction_interval_s": 86400.0,
            "disk_usage_threshold": 0.95,
            "disk_usage_warn_threshold": 0.90,
            "disk_usage_low_water": 0.90,
        },
    }
    assert {"journalMaxSizeMB", "ledgerStorageClass", "storage.range.store.dirs"} <= set(
        found.ignored
    )
    assert "bookiePort" not in found.ignored
    assert "extraServerComponents" not in found.ignored  # An empty value changes nothing.


@pytest.mark.parametrize(
    ("text", "listen", "advertised"),
    [
        ("", "0.0.0.0:3181", "10.9.9.9"),
        ("bookiePort=7", "0.0.0.0:7", "10.9.9.9"),
        ("listeningInterface=eth0", "10.0.0.5:3181", "10.0.0.5"),
        ("listeningInterface=lo\nallowLoopback=true", "127.0.0.1:3181", "127.0.0.1"),
        ("advertisedAddress=bk.example", "0.0.0.0:3181", "bk.example"),
        ("advertisedAddress=127.0.0.1", "127.0.0.1:3181", "127.0.0.1"),
        ("advertisedAddress=::1", "[::1]:3181", "[::1]"),
        ("useHostNameAsBookieID=true", "0.0.0.0:3181", "host.example"),
        ("useHostNameAsBookieID=true\nuseShortHostName=true", "0.0.0.0:3181", "host"),
        ("useShortHostName=true", "0.0.0.0:3181", "10.9.9.9"),
        (
            "listeningInterface=eth0\nuseHostNameAsBookieID=true",
            "10.0.0.5:3181",
            "back.host.example",
        ),
        ("listeningInterface=lo\nuseHostNameAsBookieID=true", "127.0.0.1:3181", "localhost"),
        ("listeningInterface=default", "0.0.0.0:3181", "10.9.9.9"),
        ("listeningInterface=eth0\nadvertisedAddress=x", "10.0.0.5:3181", "x"),
        (
            "advertisedAddress=x.y\nuseHostNameAsBookieID=true\nuseShortHostName=true",
            "0.0.0.0:3181",
            "x.y",
        ),
    ],
)
def test_listen_and_advertised_addresses(text: str, listen: str, advertised: str) -> None:
    bookie = translated(text)["bookie"]
    assert (bookie["listen"], bookie["advertise"]) == (listen, advertised)


@pytest.mark.parametrize(
    ("text", "metadata"),
    [
        ("zkServers=a:1,b:2", "zk://a:1,b:2/ledgers"),
        ("zkServers=a:1,b:2\nzkLedgersRootPath=/x/y", "zk://a:1,b:2/x/y"),
        ("zkServers=a:1/chroot/\nzkLedgersRootPath=/x", "zk://a:1/chroot/x"),
        ("zkServers=a:1\nmetadataServiceUri=zk+null://b;c/d", "zk+null://b;c/d"),
        (f"zkServers=a:1\nledgerManagerFactoryClass={LONG}", "zk+longhierarchical://a:1/ledgers"),
        (
            f"zkServers=a:1\nledgerManagerType=flat\nledgerManagerFactoryClass={LONG}",
            "zk+longhierarchical://a:1/ledgers",
        ),
        ("zkServers=a:1\nledgerManagerType=hierarchical", "zk://a:1/ledgers"),
        ("zkServers=a:1\nledgerManagerType=ms", "zk://a:1/ledgers"),
        (f"metadataServiceUri=zk://b/d\nledgerManagerFactoryClass={LONG}", "zk://b/d"),
        ("metadataServiceUri=zk://b/d\nledgerManagerType=flat", "zk://b/d"),
        ("ledgerManagerType=flat", None),
    ],
)
def test_metadata_url(text: str, metadata: str | None) -> None:
    """AR7."""
    assert translated(text)["bookie"].get("metadata") == metadata


def test_ledger_manager_type_sets_no_layout() -> None:
    """BookKeeper ignores the type if there is a LAYOUT; here LAYOUT or the URL sets the layout."""
    found = translated("zkServers=a:1\nledgerManagerType=hierarchical")
    assert MetadataUrl.parse(str(found["bookie"]["metadata"])).layout is None


@pytest.mark.parametrize("name", ["org.example.Manager", LONG.replace(".Long", ".Legacy")])
def test_unknown_ledger_manager_class_is_refused(name: str) -> None:
    with raises_message(BadConfig) as refused:
        translated(f"zkServers=a:1\nledgerManagerFactoryClass={name}")
    assert refused.value.settings == ("ledgerManagerFactoryClass",)
    assert refused.value.next_step


def test_journal_and_ledger_directories() -> None:
    found = translated("journalDirectory=/j\nledgerDirectories=/a, /b,\\\n  /c")["storage"]
    assert found == {"journal_dir": "/j", "ledger_dirs": ["/a", "/b", "/c"]}
    assert translated("journalDirectory=/j\njournalDirectories=/k")["storage"] == {
        "journal_dir": "/k"
    }
    with raises_message(BadConfig):
        translated("journalDirectories=/j,/k")


def test_http_and_tls() -> None:
    bookie = translated("httpServerEnabled=true")["bookie"]
    # BookKeeper listens on 0.0.0.0, but this port has no authentication.
    assert bookie["http"] == "127.0.0.1:8080"
    bookie = translated("httpServerEnabled=true\nhttpServerHost=10.0.0.5\nhttpServerPort=1")[
        "bookie"
    ]
    assert bookie["http"] == "10.0.0.5:1"
    files = (
        "tlsCertificatePath=/c\ntlsKeyStore=/k\ntlsTrustStore=/t\ntlsClientAuthentication=true\n"
    )
    pem = translated(f"{files}tlsKeyStoreType=PEM")["bookie"]
    assert (pem["tls_certificate"], pem["tls_key"], pem["tls_authorities"]) == ("/c", "/k", "/t")
    assert "tls_certificate" not in translated(f"{files}tlsKeyStoreType=JKS")["bookie"]
    assert "tls_key" not in translated("tlsKeyStore=/k\ntlsKeyStoreType=PEM")["bookie"]


def test_disk_usage_thresholds_are_kept_consistent() -> None:
    assert translated("diskUsageThreshold=0.999")["space"] == {
        "disk_usage_threshold": 0.999,
        "disk_usage_warn_threshold": 0.90,
        "disk_usage_low_water": 0.999,
    }
    low = translated("diskUsageThreshold=0.5\ndiskUsageWarnThreshold=0.9")["space"]
    assert low["disk_usage_warn_threshold"] == 0.5


@pytest.mark.parametrize(
    "text",
    ["bookiePort=x", "zkTimeout=1.5s", "diskUsageThreshold=much", "forceReadOnlyBookie=perhaps"],
)
def test_invalid_value_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match=text.partition("=")[0]):
        translated(text)


def test_every_setting_lists_the_keys_it_depends_on() -> None:
    """Leaving out a key changes only settings that list this key."""
    whole = {
        **parse_properties(SHIPPED),
        **dict.fromkeys(("journalDirectories", "ledgerDirectories"), "/else"),
        **dict.fromkeys(("tlsCertificatePath", "tlsKeyStore", "tlsTrustStore"), "/file"),
        **dict.fromkeys(("httpServerEnabled", "tlsClientAuthentication"), "true"),
        "tlsKeyStoreType": "PEM",
        "forceReadOnlyBookie": "true",
        "isThrottleByBytes": "true",
        "bookieId": "b",
        "httpServerHost": "10.0.0.5",
        "dbStorage_readAheadCacheMaxSizeMb": "7",
        "bookiePort": "7",
        "httpServerPort": "8",
        "diskUsageThreshold": "0.8",
        "diskUsageWarnThreshold": "0.7",
        "diskUsageLwmThreshold": "0.6",
        "listeningInterface": "eth0",
        **dict.fromkeys(("useHostNameAsBookieID", "useShortHostName"), "true"),
        "advertisedAddress": "x",
        "auditorPeriodicBookieCheckInterval": "3600",
        "auditorLedgerVerificationPercentage": "5",
        "underreplicatedLedgerRecoveryGracePeriod": "600",
        "auditorPeriodicPlacementPolicyCheckInterval": "7200",
        "lostBookieRecoveryDelay": "60",
        "openLedgerRereplicationGracePeriod": "45000",
        "rereplicationEntryBatchSize": "100",
        "replicationRateByBytes": "1000",
    }

    def settings(properties: dict[str, str]) -> dict[str, object]:
        tables = translate(properties, address_of).tables.values()
        return {name: value for table in tables for name, value in table.items()}

    found = settings(whole)
    assert found.keys() == KEYS_OF.keys()
    for key in whole:
        changed = settings({each: value for each, value in whole.items() if each != key})
        differing = {name for name in found if found[name] != changed.get(name)}
        depend = {name for name, keys in KEYS_OF.items() if key in keys}
        assert differing <= depend, key


@pytest.mark.parametrize("seed", range(20))
def test_any_file_is_read_or_raises_bad_config(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie_settings, "address_of_this_host", address_of)
    chance = random.Random(seed)
    keys = [line.partition("=")[0] for line in SHIPPED.split() if "=" in line]
    keys += ["a(b", "*x", "[", "\\\\", "{0}", "%s", "z.k?", "é"]
    path = tmp_path / "bk_server.conf"
    for _ in range(200):
        lines = [
            f"{chance.choice(keys)}{chance.choice('=: ')}{''.join(chance.choices('0.x,/ -true:', k=5))}"
            for _ in range(4)
        ]
        path.write_text("\n".join(lines))
        try:
            bookie_settings.read_bookie_config(str(path))
        except BadConfig:
            pass


def test_listen_flag_also_changes_the_advertised_port() -> None:
    found = translated("bookiePort=7\nadvertisedAddress=h")["bookie"]
    config = BookieConfig("zk://z/l", listen="127.0.0.1:9", advertise=str(found["advertise"]))
    _, advertised, bookie_id = addresses_of(config)
    assert (advertised, bookie_id) == (Address("h", 9), "h:9")
