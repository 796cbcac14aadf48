"""Callbacks give no access to the network: hostile URLs, host names and literal addresses."""

import pytest

from rollbook.api.rest.callback_post import CallbackPost
from rollbook.api.rest.callback_target import (
    CallbackTarget,
    check_hosts,
    origin_of,
    parse_target,
    problem_of_address,
    require_allowed,
)
from rollbook.proto.errors import BadConfig, InvalidRequest

PUBLIC = "https://hooks.example.com/x"
REFUSED_URLS = (
    "",
    "x",
    "hooks.example.com",
    "ftp://hooks.example.com/",
    "file:///etc/passwd",
    "https://",
    "http://hooks.example.com/",
    "http://10.0.0.1/",
    "http://127.0.0.1.example.com/",
    "https://user:secret@hooks.example.com/",
    "https://hooks.example.com@10.0.0.1/",
    "https://hooks.example.com/#x",
    "https://hooks.example.com\\@10.0.0.1/",
    "https://hooks.example.com/\r\nhost: 10.0.0.1",
    "https://hooks.example.com/a b",
    "https://hooks.example.com/\x00",
    "https://hooks.example.com/\t",
    "https://h\u00f6ks.example.com/",
    "https://hooks.example.com:0/",
    "https://hooks.example.com:65536/",
    "https://h:99999999/",
    "https://[::1",
    "https://[fe80::1%25eth0]/",
    "https://hooks_example.com/",
    f"https://hooks.example.com/{'a' * 2_000}",
    " https://hooks.example.com/",
    "gopher://127.0.0.1/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://127.1/",
)


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_invalid_callback_url_is_refused(url: str) -> None:
    """CP1: no user, fragment or line end, and plain HTTP only to this machine."""
    with pytest.raises(InvalidRequest):
        parse_target(url)


def test_callback_url_is_parsed_into_its_parts() -> None:
    assert parse_target("HTTPS://Hooks.Example.com/A/b?c=%20d") == CallbackTarget(
        "https", "hooks.example.com", 443, "/A/b?c=%20d"
    )
    assert parse_target("https://hooks.example.com?x").path == "/?x"
    assert parse_target("http://[::1]:9000") == CallbackTarget("http", "[::1]", 9000, "/")
    assert origin_of("https://hooks.example.com:8443/secret") == "https://hooks.example.com:8443"
    assert origin_of("nonsense" * 10) == "nonsensenonsensenons"


def test_only_configured_callback_hosts_are_allowed() -> None:
    """CP2."""
    post = CallbackPost(["Hooks.example.com", "other.example.com:8443", "127.0.0.1:9000"])
    for allowed in (PUBLIC, "https://hooks.example.com:1/", "https://other.example.com:8443/"):
        post.require_allowed(allowed)
    post.require_allowed("http://127.0.0.1:9000/")
    for url in (
        "https://other.example.com/",
        "http://127.0.0.1:9001/",
        "http://localhost:9000/",
        "https://evil.example.com/",
        "https://hooks.example.com.evil.com/",
        "https://hooks.example.com./",
        "https://xhooks.example.com/",
    ):
        with pytest.raises(InvalidRequest, match="callback_hosts"):
            post.require_allowed(url)
    for wrong in ("https://hooks.example.com", "a b", "", "*", "h:x"):
        with pytest.raises(BadConfig):
            check_hosts([wrong])
    with pytest.raises(BadConfig, match="nowhere"):
        CallbackPost([], "/nowhere.pem")


def test_public_host_needs_public_and_localhost_local_addresses() -> None:
    target, local = parse_target(PUBLIC), parse_target("http://localhost/")
    for address in ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"):
        assert problem_of_address(target, address) is None
        assert problem_of_address(local, address) is not None
    assert problem_of_address(local, "127.0.0.1") is problem_of_address(local, "::1") is None


@pytest.mark.parametrize(
    "url", ["https://10.0.0.1/", "https://169.254.169.254/", "https://[fd00::1]/"]
)
def test_private_address_in_a_url_is_refused_even_if_configured(url: str) -> None:
    """No setting allows it, so the next step names none."""
    with pytest.raises(InvalidRequest) as refused:
        require_allowed(parse_target(url), [parse_target(url).host])
    assert "public" in refused.value.message
    assert "callback_hosts" not in refused.value.next_step


def test_refusal_of_a_callback_host_names_the_port() -> None:
    with pytest.raises(InvalidRequest, match="localhost:19001 is not one of"):
        require_allowed(parse_target("http://localhost:19001/"), ["localhost:19000"])


@pytest.mark.parametrize("host", ["10.0.0.1", "[fd00::1]:443", "hooks.example.com:0", "a b"])
def test_unreachable_callback_host_setting_is_refused(host: str) -> None:
    with pytest.raises(BadConfig, match="callback_hosts"):
        check_hosts([host])
