import pytest

from tests.unit.api.rest.log_routes import Site, site


@pytest.fixture(scope="session")
def one_site() -> Site:
    """It takes a while to make."""
    return site()


@pytest.fixture
def there(one_site: Site) -> Site:
    """One application for all tests, with an empty log in each."""
    one_site.core.cluster.logs.clear()
    one_site.core.cluster.make("ns/log")
    one_site.core.asked.clear()
    return one_site
