from tests.unit.proto.cluster.conftest import no_pauses, rival, service, store

__all__ = ["no_pauses", "rival", "service", "store"]
