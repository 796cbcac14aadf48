"""Models of the settings that a process shows over HTTP, shared by log servers, bookies and recovery servers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from rollbook.proto.runtime.prometheus_text import Metrics


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """The process that serves management and the dashboard."""

    name: str
    settings: Sequence[Mapping[str, str]] = ()
    metrics: Metrics = field(default_factory=Metrics)


class Setting(BaseModel):
    model_config = ConfigDict(extra="forbid")

    section: str = Field(examples=["storage"])
    name: str = Field(examples=["journal_dir"])
    value: str = Field(examples=["/var/lib/rollbook/journal"])
    source: str = Field(
        description="A flag, an environment variable, a place in a file, or `default`.",
        examples=["--journal-dir"],
    )


class EffectiveSettings(BaseModel):
    """The settings in force, without secrets."""

    model_config = ConfigDict(extra="forbid")

    settings: list[Setting]
