"""Names in OpenAPI stay the same when a class is renamed."""

import pytest
from pydantic import BaseModel

from rollbook.api.grpc.protobuf_conversion import message_of
from rollbook.api.rest.bookie_models import LedgerPage, ReplayMark, RunState
from rollbook.api.rest.cluster_models import ClusterSummary
from rollbook.api.rest.message_schema import schema_of
from rollbook.api.rest.openapi_common_parts import name_by_title
from rollbook.logservice.messages import LogJournal


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (RunState, "State"),
        (ReplayMark, "Mark"),
        (LedgerPage, "Ledgers"),
        (ClusterSummary, "Cluster"),
    ],
)
def test_a_renamed_model_is_published_under_its_first_name(
    model: type[BaseModel], name: str
) -> None:
    schema = model.model_json_schema()
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    document = {
        "paths": {"/": [reference]},
        "components": {"schemas": {model.__name__: schema}},
    }
    name_by_title(document)
    assert document == {
        "paths": {"/": [{"$ref": f"#/components/schemas/{name}"}]},
        "components": {"schemas": {name: schema}},
    }


def test_a_renamed_message_is_published_under_its_first_name() -> None:
    assert schema_of(LogJournal)["title"] == "Journal"
    assert message_of(LogJournal).DESCRIPTOR.name == "Journal"
