import pytest

from tests.unit.api.rest.log_routes import Site, site


@pytest.fixture(scope="session")
def one_site() -> Site:
    """Shared by the session, since it is slow to make."""
    return site()


@pytest.fixture
def there(one_site: Site) -> Site:
    """The shared application, with an empty log for each test."""
    one_site.core.cluster.logs.clear()
    one_site.core.cluster.make("ns/log")
    one_site.core.asked.clear()
    return one_site
