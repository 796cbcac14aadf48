"""Models of the settings that a process shows over HTTP, shared by log servers, bookies and recovery servers."""

from pydantic import BaseModel, ConfigDict, Field


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
