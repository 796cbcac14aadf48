"""The two base models for the values of our HTTP pages. Both refuse unknown fields."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class SnakeCaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CamelCaseModel(BaseModel):
    """Names as BookKeeper writes them. Values from our own code may have the names of our fields."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, extra="forbid")
