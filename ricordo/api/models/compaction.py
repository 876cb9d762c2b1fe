"""Request and response models of compaction: how an agent's windows are made smaller."""

from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import AliasChoices, Field, model_validator

from ricordo.api.models.base import (
    MAX_COUNT,
    From,
    Json,
    RequestModel,
    RequestPart,
    ResponseModel,
    or_none,
)
from ricordo.api.models.models import ModelSettingsRequest
from ricordo.domain.agent import CompactionMode, CompactionSettings

_NULL_MEANS_SOMETHING = ("model", "model_settings", "api_model_settings", "prompt", "clip_chars")


class CompactionSettingsRequest(RequestPart):
    """How windows are made smaller. A field that is left out has its default, or stays where there are settings already."""

    model: Annotated[
        str | None, Field(description="Handle of the model for summaries; null: the agent's own.")
    ] = None
    # The official client calls it so when it sends back what it read.
    model_settings: ModelSettingsRequest | None = Field(
        None, validation_alias=AliasChoices("model_settings", "api_model_settings")
    )
    prompt: Annotated[
        str | None, Field(max_length=100_000, description="In the place of the mode's own words.")
    ] = None
    prompt_acknowledgement: bool = False
    clip_chars: Annotated[
        int | None, Field(ge=0, le=MAX_COUNT, description="The longest summary; null: no limit.")
    ] = 50_000
    mode: CompactionMode = "sliding_window"
    sliding_window_percentage: Annotated[
        float, Field(ge=0, le=1, description="The share that leaves first, from 0 to 1.")
    ] = 0.3

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Clients send back what they read, where null says that nothing was chosen."""
        if not isinstance(value, dict):
            return value
        return {
            key: one
            for key, one in value.items()
            if one is not None or key in _NULL_MEANS_SOMETHING
        }

    @model_validator(mode="after")
    def _require_handle(self) -> Self:
        provider, _, name = ("x/x" if self.model is None else self.model).partition("/")
        if not (provider and name):
            raise ValueError(
                f'model must be a handle such as "openai/gpt-5-mini", not "{(self.model or "")[:80]}"'
            )
        return self

    def settings(self, base: CompactionSettings | None = None) -> CompactionSettings:
        """Return these settings over `base` (None: the defaults): what was not sent stays as it is there."""
        base = base or CompactionSettings()
        sent = {name: getattr(self, name) for name in self.model_fields_set}
        if "model_settings" in sent:
            own = self.model_settings
            sent["model_settings"] = (
                own.model_dump(exclude_unset=True, exclude_none=True) if own else {}
            )
        if "mode" in sent and sent["mode"] != base.mode and "prompt" not in sent:
            # The words of one mode do not fit another.
            sent["prompt"] = None
        return replace(base, **sent)


class CompactionSettingsResponse(ResponseModel):
    """How an agent's windows are made smaller; `model_settings` is null where there are none."""

    model: str | None
    model_settings: Annotated[Json | None, From(convert=or_none)]
    prompt: str | None
    prompt_acknowledgement: bool
    clip_chars: int | None
    mode: CompactionMode
    sliding_window_percentage: float


class CompactRequest(RequestModel):
    """How to compact; what is left out is as the agent has it."""

    compaction_settings: CompactionSettingsRequest | None = None
    agent_id: Annotated[str | None, Field(description="Whose conversation `default` is meant.")] = (
        None
    )


class CompactResponse(ResponseModel):
    """The summary that replaces the evicted messages, and how many messages are in the window."""

    summary: str
    num_messages_before: Annotated[int, From("messages_before")]
    num_messages_after: Annotated[int, From("messages_after")]
