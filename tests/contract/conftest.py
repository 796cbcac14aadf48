from collections.abc import AsyncIterator

import pytest

from tests.contract.stores import MemorySite, Site


@pytest.fixture(params=["memory"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    own = MemorySite()
    yield own
    await own.close()
