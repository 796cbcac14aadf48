import random

import pytest

from rollbook.api.access.core.quotas import Meter, PrincipalAccount, Quotas, TokenBucket
from rollbook.proto.errors import BadConfig, Throttled
from tests.messages import raises_message

S = 1_000_000_000


def test_bucket_holds_at_most_one_second_of_rate() -> None:
    rate = TokenBucket(100)
    for _ in range(100):
        assert not rate.wait_ns(50 * S)
        rate.take(1, 50 * S)
    rate.take(1, 50 * S)  # An empty bucket still allows one take.
    assert rate.wait_ns(50 * S) == S // 100
    assert not rate.wait_ns(50 * S + S // 100)


def test_overdraft_is_waited_off() -> None:
    rate = TokenBucket(100)
    rate.take(1100, 0)
    assert rate.wait_ns(0) == 10 * S
    assert rate.wait_ns(9 * S) == S


@pytest.mark.parametrize("seed", range(20))
def test_rate_is_never_exceeded(seed: int) -> None:
    """G8: any interval admits at most its rate, one more second of rate and one take."""
    chance = random.Random(seed)
    per_s, largest = chance.choice([1, 7, 1000]), chance.choice([1, 10, 5000])
    rate, now_ns = TokenBucket(per_s), chance.randrange(100 * S)
    taken: list[tuple[int, int]] = []
    for _ in range(300):
        now_ns += chance.randrange(1, S // 2)
        if not rate.wait_ns(now_ns):
            amount = chance.randint(1, largest)
            rate.take(amount, now_ns)
            taken.append((now_ns, amount))
    for first in range(0, len(taken), 7):
        start, total = taken[first][0], 0
        for time, amount in taken[first:]:
            total += amount
            assert total <= per_s * ((time - start) / S + 1) + largest
    assert taken


def test_meter_throttles_until_its_debt_is_paid() -> None:
    meter = Meter(10, 1000)
    meter.take(1, 5000, 0)
    with pytest.raises(Throttled) as caught:
        meter.require(0)
    assert caught.value.ids["retry_after_ms"] == 4000
    assert caught.value.retryable
    meter.require(4 * S)
    assert not Meter(None, None).is_limited
    Meter(None, None).require(0)


def test_stream_beyond_the_quota_is_throttled() -> None:
    account = PrincipalAccount(Quotas(streams=2))
    with account.stream(), account.stream():
        with raises_message(Throttled), account.stream():
            pass
        assert account.streams == 2
    with account.stream():
        assert account.streams == 1


def test_zero_quota_is_refused() -> None:
    with raises_message(BadConfig):
        Quotas(streams=0)
