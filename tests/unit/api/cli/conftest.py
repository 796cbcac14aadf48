from tests.support.zookeeper import zookeeper, zookeeper_server

__all__ = ["zookeeper", "zookeeper_server"]
