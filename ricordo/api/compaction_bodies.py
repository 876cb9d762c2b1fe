"""How a window is made smaller, as callers say it: `compaction_settings` in bodies, and back on the wire."""

from dataclasses import asdict, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ricordo.domain.compaction import CompactionMode, CompactionSettings

_MOST = 1_000_000_000
_NULL_MEANS_SOMETHING = ("model", "model_settings", "prompt", "clip_chars")


class SummaryReasoning(BaseModel):
    """How hard the model thinks."""

    model_config = ConfigDict(extra="ignore")

    reasoning_effort: str | None = None


class SummaryThinking(BaseModel):
    """How long the model may think."""

    model_config = ConfigDict(extra="ignore")

    type: str | None = None
    budget_tokens: int | None = Field(None, ge=0, le=_MOST)


class SummaryModelSettings(BaseModel):
    """How to ask the model for summaries; a setting that is not named here is passed on to its provider."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    provider_type: str | None = None
    temperature: float | None = Field(None, allow_inf_nan=False)
    max_output_tokens: int | None = Field(None, ge=1, le=_MOST)
    parallel_tool_calls: bool | None = None
    reasoning: SummaryReasoning | None = None
    thinking: SummaryThinking | None = None


class CompactionSettingsBody(BaseModel):
    """How windows are made smaller; a field that is left out has its default, or stays where there are settings already."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: Annotated[str | None, Field(description="Handle of the model for summaries; null: the agent's own.")] = None
    model_settings: SummaryModelSettings | None = None
    prompt: Annotated[str | None, Field(max_length=100_000, description="In the place of the mode's own words.")] = None
    prompt_acknowledgement: bool = False
    clip_chars: Annotated[int | None, Field(ge=0, le=_MOST, description="The longest summary; null: no limit.")] = (
        50_000
    )
    mode: CompactionMode = "sliding_window"
    sliding_window_percentage: Annotated[
        float, Field(ge=0, le=1, allow_inf_nan=False, description="The share that leaves first, from 0 to 1.")
    ] = 0.3

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Clients send back what they read, where null says that nothing was chosen."""
        if not isinstance(value, dict):
            return value
        return {key: one for key, one in value.items() if one is not None or key in _NULL_MEANS_SOMETHING}

    @model_validator(mode="after")
    def _require_handle(self) -> "CompactionSettingsBody":
        provider, _, name = ("x/x" if self.model is None else self.model).partition("/")
        if not (provider and name):
            raise ValueError(f'model must be a handle such as "openai/gpt-5-mini", not "{(self.model or "")[:80]}"')
        return self

    def settings(self, base: CompactionSettings | None = None) -> CompactionSettings:
        """These settings over `base` (None: the defaults): what was not sent stays as it is there."""
        base = base or CompactionSettings()
        sent = {name: getattr(self, name) for name in self.model_fields_set}
        if "model_settings" in sent:
            sent["model_settings"] = (
                self.model_settings.model_dump(exclude_unset=True, exclude_none=True) if self.model_settings else {}
            )
        if "mode" in sent and sent["mode"] != base.mode and "prompt" not in sent:
            # The words of one mode do not fit another.
            sent["prompt"] = None
        return replace(base, **sent)


def settings_to_json(settings: CompactionSettings) -> dict[str, Any]:
    """The settings as they are kept among an agent's own: `CompactionSettings(**settings_to_json(…))` reads them."""
    return asdict(settings)


def settings_to_wire(settings: CompactionSettings) -> dict[str, Any]:
    """The settings as clients expect them; `model_settings` is null where there are none."""
    return {**asdict(settings), "model_settings": settings.model_settings or None}
