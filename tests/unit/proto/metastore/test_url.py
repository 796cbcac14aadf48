import pytest

from rollbook.proto.errors import BadConfig
from rollbook.proto.formats.paths import own_root
from rollbook.proto.metastore.url import (
    Backend,
    LayoutHint,
    MetadataUrl,
    ZooKeeperOptions,
    shown_url,
)


@pytest.mark.parametrize(
    ("text", "hosts", "root", "beside", "layout"),
    [
        ("zk://h1", "h1:2181", "/ledgers", "/rollbook", None),
        ("zk://h1/", "h1:2181", "/ledgers", "/rollbook", None),
        ("zk://h1,h2:2182/ledgers", "h1:2181,h2:2182", "/ledgers", "/rollbook", None),
        (
            "zk://[::1]:99,10.0.0.1/a/ledgers",
            "[::1]:99,10.0.0.1:2181",
            "/a/ledgers",
            "/a/rollbook",
            None,
        ),
        ("zk://h/bk", "h:2181", "/bk", "/rollbook-bk", None),
        ("zk://h/a/bk/", "h:2181", "/a/bk", "/a/rollbook-bk", None),
        ("zk+null://h1:2181;h2:2181/ledgers", "h1:2181,h2:2181", "/ledgers", "/rollbook", None),
        ("zk+hierarchical://h/ledgers", "h:2181", "/ledgers", "/rollbook", LayoutHint.HIERARCHICAL),
        (
            "zk+longhierarchical://h",
            "h:2181",
            "/ledgers",
            "/rollbook",
            LayoutHint.LONG_HIERARCHICAL,
        ),
        ("zk+flat://h", "h:2181", "/ledgers", "/rollbook", LayoutHint.FLAT),
    ],
)
def test_zookeeper_url_is_parsed(
    text: str, hosts: str, root: str, beside: str, layout: LayoutHint | None
) -> None:
    url = MetadataUrl.parse(text)
    assert (url.backend, url.place, url.layout) == (Backend.ZOOKEEPER, hosts, layout)
    assert (url.ledgers_root, own_root(url.ledgers_root)) == (root, beside)
    assert MetadataUrl.parse(str(url)) == url


def test_sqlite_and_memory_urls_are_parsed() -> None:
    url = MetadataUrl.parse("sqlite:///var/lib/a%20b/meta.db")
    assert (url.backend, url.place) == (Backend.SQLITE, "/var/lib/a b/meta.db")
    assert (url.ledgers_root, own_root(url.ledgers_root)) == ("/ledgers", "/rollbook")
    assert [MetadataUrl.parse(text).place for text in ("memory:", "memory:two")] == ["", "two"]


def test_options_of_zookeeper_url_are_parsed() -> None:
    url = MetadataUrl.parse(
        "zk://h/ledgers?ca=/etc/ca.pem&cert=/etc/c.pem&key=/etc/k.pem&key_password=p%26q"
        "&auth=digest:user:pass:word&sasl=DIGEST-MD5:u:p"
    )
    assert url.options == ZooKeeperOptions(
        True,
        "/etc/ca.pem",
        "/etc/c.pem",
        "/etc/k.pem",
        "p&q",
        auth=("digest", "user:pass:word"),
        sasl=("DIGEST-MD5", "u", "p"),
    )
    assert MetadataUrl.parse("zk://h?tls=yes").options == ZooKeeperOptions(tls=True)
    assert MetadataUrl.parse("zk://h?sasl=GSSAPI").options.sasl == ("GSSAPI", "", "")


def test_secrets_are_never_shown() -> None:
    url = MetadataUrl.parse("zk://h?auth=digest:u:hush&key_password=hush&cert=c&sasl=X:u:hush")
    assert "hush" not in str(url) + repr(url)
    with pytest.raises(BadConfig) as caught:
        MetadataUrl.parse("redis://h?auth=hush")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "zk://user:hush@h/ledgers",
        "zk://user:hu,hush@h",
        "zk://user:hush/hush@h/ledgers",
        "zk://h1,user:hush@h2:99/a//b?auth=hush",
        "redis://user:hush@h",
        "user:hush@h:2181",
        "zk+tree://user:hush@h",
        "zk://user:hush@@h",
        "zk://hush\n:hush@h",
    ],
)
def test_credentials_before_hosts_are_refused_and_never_shown(text: str) -> None:
    with pytest.raises(BadConfig) as caught:
        MetadataUrl.parse(text)
    assert "hush" not in str(caught.value)
    assert "hush" not in shown_url(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("zk://h/a@b/ledgers?tls=yes", "zk://h/a@b/ledgers?…"),
        ("sqlite:///home/a@b/metadata.db", "sqlite:///home/a@b/metadata.db"),
        ("sqlite:///home/a@b/", "sqlite:///home/a@b/"),
        ("zk://user:hush@h/ledgers?auth=x", "zk://…@h/ledgers?…"),
    ],
)
def test_shown_url_hides_only_credentials_and_options(text: str, shown: str) -> None:
    assert shown_url(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h1:2181",
        "zk:h",
        "zk:/h",
        "http://h",
        "zk+tree://h",
        "sqlite+x:///a",
        "zk://",
        "zk:///ledgers",
        "zk://h1,,h2",
        "zk://h:0",
        "zk://h:70000",
        "zk://u@h",
        "zk://h/a//b",
        "zk://h/../x",
        "zk://h?colour=red",
        "zk://h?ca=",
        "zk://h?ca=a&ca=b",
        "zk://h?key=k",
        "zk://h?auth=digest",
        "zk://h?sasl=PLAIN:u",
        "zk://h?tls=no",
        "sqlite:",
        "sqlite://relative/path",
        "sqlite:///",
        "sqlite:///a/",
        "sqlite:///a%00",
        "sqlite:///a?x=1",
        "memory",
        "memory://",
        "memory:a/b",
        "memory:?x=1",
    ],
)
def test_invalid_url_is_refused(text: str) -> None:
    with pytest.raises(BadConfig):
        MetadataUrl.parse(text)
