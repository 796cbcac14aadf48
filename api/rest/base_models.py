"""The two base models for the values of our HTTP pages. Both refuse unknown fields."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class SnakeCaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CamelCaseModel(BaseModel):
    """A model whose fields have BookKeeper's names. Our own code may set them by the names in snake_case."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, extra="forbid")
