"""Request and response models of compaction."""

from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import AliasChoices, Field, model_validator

from ricordo.api.models.base import (
    MAX_COUNT,
    From,
    RequestModel,
    RequestPart,
    ResponseModel,
    or_none,
)
from ricordo.api.models.models import ModelSettingsRequest
from ricordo.domain.agent import CompactionMode, CompactionSettings
from ricordo.domain.text import Json

_NULLABLE = ("model", "model_settings", "api_model_settings", "prompt", "clip_chars")


class CompactionSettingsRequest(RequestPart):
    """The settings of compaction.

    An omitted field keeps its setting, but another `mode` without a `prompt` gets that mode's own
    prompt. For a new agent, omitted fields get their defaults.
    """

    model: Annotated[
        str | None, Field(description="Handle of the model for summaries; null: the agent's model.")
    ] = None
    # The official client uses the second name when it sends back an answer.
    model_settings: ModelSettingsRequest | None = Field(
        None, validation_alias=AliasChoices("model_settings", "api_model_settings")
    )
    prompt: Annotated[
        str | None, Field(max_length=100_000, description="Replaces the mode's prompt.")
    ] = None
    prompt_acknowledgement: bool = False
    clip_chars: Annotated[
        int | None,
        Field(ge=0, le=MAX_COUNT, description="The most characters of a summary; null: no limit."),
    ] = 50_000
    mode: CompactionMode = "sliding_window"
    sliding_window_percentage: Annotated[
        float, Field(ge=0, le=1, description="The share of the window to evict first, from 0 to 1.")
    ] = 0.3

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        """Leave out nulls, which clients send back for settings that nobody chose."""
        if not isinstance(body, dict):
            return body
        return {
            name: field for name, field in body.items() if field is not None or name in _NULLABLE
        }

    @model_validator(mode="after")
    def _require_handle(self) -> Self:
        if self.model is None:
            return self
        provider, _, name = self.model.partition("/")
        if not (provider and name):
            raise ValueError(
                f'model must be a handle such as "openai/gpt-5-mini", not "{self.model[:80]}"'
            )
        return self

    def settings(self, base: CompactionSettings | None = None) -> CompactionSettings:
        """Return `base` (None: the defaults) with these settings.

        Settings that were not sent keep their values, except the prompt if the mode changes.
        """
        base = base or CompactionSettings()
        changes = {name: getattr(self, name) for name in self.model_fields_set}
        if "model_settings" in changes:
            changes["model_settings"] = {}
            if self.model_settings:
                changes["model_settings"] = self.model_settings.model_dump(
                    exclude_unset=True, exclude_none=True
                )
        if changes.get("mode", base.mode) != base.mode and "prompt" not in changes:
            # The prompt of one mode does not suit another mode.
            changes["prompt"] = None
        return replace(base, **changes)


class CompactionSettingsResponse(ResponseModel):
    """An agent's settings of compaction; `model_settings` is null if none are set."""

    model: str | None
    model_settings: Annotated[Json | None, From(convert=or_none)]
    prompt: str | None
    prompt_acknowledgement: bool
    clip_chars: int | None
    mode: CompactionMode
    sliding_window_percentage: float


class CompactRequest(RequestModel):
    """A request for a compaction; the agent's settings replace omitted fields."""

    compaction_settings: CompactionSettingsRequest | None = None
    agent_id: Annotated[
        str | None, Field(description="The agent of the conversation `default`.")
    ] = None


class CompactResponse(ResponseModel):
    """The summary of the evicted messages, and how many messages the window had and has."""

    summary: str
    num_messages_before: Annotated[int, From("messages_before")]
    num_messages_after: Annotated[int, From("messages_after")]
