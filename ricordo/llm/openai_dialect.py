"""Differences between servers that speak OpenAI's chat completions. Pure.

Sources: the providers' own documents and the errors of their servers.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from ricordo.domain.model import MemoryInPrompt, ModelRequest, ModelSettings

Effort = Literal["field", "openrouter", "deepseek", "magistral", "together", "template", "none"]
Replay = Literal["nothing", "field", "details", "chunks"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The deviations of a server from the format.

    `effort` says how the reasoning effort is set, and `efforts` are its levels. `replays` says how
    earlier reasoning is sent back, and `provider` marks that reasoning. With
    `reads_special_tokens`, the server reads special tokens in texts as tokens. `memory_in_prompt`
    says when the memory in the prompt is rendered again. A server that reuses its work on an
    unchanged beginning is faster with "lazy" (figures: docs/internals/speed.md).
    """

    provider: str = ""
    max_tokens_name: str = "max_tokens"
    takes_user: bool = True
    takes_stream_options: bool = True
    takes_parallel: bool = True
    takes_temperature: bool = True
    takes_verbosity: bool = False
    takes_strict: bool = False
    reads_special_tokens: bool = True
    forces_tools: bool = True
    forces_by_name: bool = True
    thinks_unasked: bool = False
    short_call_ids: bool = False
    answers_before_user: bool = False
    effort: Effort = "field"
    efforts: tuple[str, ...] = ()
    replays: Replay = "nothing"
    memory_in_prompt: MemoryInPrompt = "step"


_OPENAI = Dialect(
    max_tokens_name="max_completion_tokens",
    takes_strict=True,
    reads_special_tokens=False,
    memory_in_prompt="lazy",
)
_LOW_TO_HIGH = ("low", "medium", "high")
_BY_KIND = {
    # Anthropic's adapter reads only this field of its dialect.
    "anthropic": Dialect(memory_in_prompt="lazy"),
    # Mistral refuses unknown fields, call ids other than nine letters or digits, and a user's
    # message right after a tool's.
    "mistral": Dialect(
        takes_user=False,
        takes_stream_options=False,
        short_call_ids=True,
        answers_before_user=True,
        effort="none",
        replays="chunks",
    ),
    # LM Studio accepts tool_choice only as a string.
    "lmstudio": Dialect(forces_by_name=False, memory_in_prompt="lazy"),
    # DeepSeek refuses calls in the transcript if the reasoning before them is not sent with them.
    # Empty reasoning must be sent too.
    "deepseek": Dialect(effort="deepseek", replays="field"),
    "openrouter": Dialect(effort="openrouter", replays="details"),
    "together": Dialect(effort="together"),
    "ollama": Dialect(efforts=("none", *_LOW_TO_HIGH), memory_in_prompt="lazy"),
    "vllm": Dialect(effort="template", efforts=_LOW_TO_HIGH, memory_in_prompt="lazy"),
    "llamacpp": Dialect(effort="template", efforts=_LOW_TO_HIGH, memory_in_prompt="lazy"),
    "groq": Dialect(effort="none", takes_strict=True),
    "xai": Dialect(effort="none"),
}
# OpenAI's reasoning models: they take no temperature, and o1 to o4 no `parallel_tool_calls`.
_OPENAI_THINKS = re.compile(r"^(?:o\d|gpt-[5-9](?!\.?\d*-chat))")
OPENAI_ADDRESS = "https://api.openai.com/v1"
_OPENAI_ADDRESS = re.compile(r"^https://(?:[a-z]{2}\.)?api\.openai\.com(?:/|$)")
# Exceptions for some models of a server, by a pattern of their names; the first match counts.
_BY_MODEL: tuple[tuple[str, re.Pattern[str], dict[str, Any]], ...] = tuple(
    (kind, re.compile(pattern), changes)
    for kind, pattern, changes in (
        ("mistral", r"^magistral", {"effort": "magistral"}),
        (
            "mistral",
            r"^mistral-(?:small|medium)-(?:latest|26|27)",
            {"effort": "field", "efforts": ("none", "high")},
        ),
        ("groq", r"gpt-oss", {"effort": "field", "efforts": _LOW_TO_HIGH}),
        ("groq", r"qwen3", {"effort": "field", "efforts": ("none", "default")}),
        (
            "xai",
            r"^grok-(?:3-mini|(?:4\.[2-9]|[5-9]).*-mini)",
            {"effort": "field", "efforts": ("low", "high")},
        ),
        ("xai", r"^grok-(?:4\.[2-9]|[5-9])", {"effort": "field"}),
        # A model that always reasons cannot be forced to call a tool.
        ("deepseek", r"^deepseek-reasoner", {"forces_tools": False, "thinks_unasked": True}),
        ("deepseek", r"^deepseek-(?:flash|v[4-9])", {"thinks_unasked": True}),
    )
)
_NEAREST = {
    "none": ("none", "minimal", "low"),
    "minimal": ("minimal", "low"),
    "low": ("low",),
    "medium": ("medium", "high", "low"),
    "high": ("high",),
    "xhigh": ("xhigh", "high"),
    "max": ("max", "xhigh", "high"),
}


def thinks_at_openai(model: str) -> bool:
    return _OPENAI_THINKS.match(model) is not None


@lru_cache(maxsize=1024)
def is_openai(base_url: str) -> bool:
    return _OPENAI_ADDRESS.match(base_url) is not None


def is_providers_own(base_url: str) -> bool:
    """Return whether this is a server of OpenAI or Anthropic, which read no special tokens."""
    return is_openai(base_url) or base_url.startswith("https://api.anthropic.com")


@lru_cache(maxsize=1024)
def dialect_of(endpoint_type: str, base_url: str, model: str = "", provider: str = "") -> Dialect:
    """Return the dialect of one of the models at an address.

    Args:
        endpoint_type: The kind of server, such as "ollama". Unknown kinds get the plain format.
        base_url: The server's address. OpenAI's address decides alone.
        model: The model's name, since some models deviate from their server.
        provider: The name that marks the model's reasoning; by default the kind of server.
    """
    if is_openai(base_url) or endpoint_type == "azure":
        dialect = _openai(model)
    else:
        rows = (
            row
            for kind, pattern, row in _BY_MODEL
            if kind == endpoint_type and pattern.search(model.lower())
        )
        dialect = replace(_BY_KIND.get(endpoint_type, Dialect()), **next(rows, {}))
    return replace(dialect, provider=provider or endpoint_type)


def _openai(model: str) -> Dialect:
    if not thinks_at_openai(model):
        if model.startswith(("gpt-", "chatgpt-")):
            return replace(_OPENAI, effort="none")
        # An Azure deployment may have any name, so a setting of effort is sent unchanged.
        return _OPENAI
    return replace(
        _OPENAI,
        takes_temperature=False,
        takes_parallel=not model.startswith("o"),
        takes_verbosity=model.startswith("gpt"),
    )


def thinking_fields(
    settings: ModelSettings, dialect: Dialect, *, must_call: bool
) -> dict[str, Any]:
    """Return the fields that set the reasoning effort.

    There are none if the server has no such field.

    Args:
        settings: The agent's settings, with the effort and the reasoning budget in tokens.
        dialect: The dialect of the model.
        must_call: Whether the model must call a tool in this request.
    """
    effort = settings.reasoning_effort
    budget = settings.max_reasoning_tokens
    if dialect.effort == "openrouter":
        return _openrouter(effort, budget)
    if dialect.effort == "deepseek":
        return _deepseek(effort, dialect, must_call)
    if effort is None or dialect.effort == "none":
        return {}
    match dialect.effort:
        case "magistral":
            if effort == "none":
                return {}
            return {"prompt_mode": "reasoning"}
        case "together" if effort == "none":
            return {"reasoning": {"enabled": False}}
        case "template" if effort == "none":
            return {"chat_template_kwargs": {"enable_thinking": False}}
        case _:
            return {"reasoning_effort": _nearest(effort, dialect.efforts)}


def _openrouter(effort: str | None, budget: int | None) -> dict[str, Any]:
    if budget and effort != "none":
        return {"reasoning": {"max_tokens": budget}}
    if effort:
        return {"reasoning": {"effort": effort}}
    return {}


def _deepseek(effort: str | None, dialect: Dialect, must_call: bool) -> dict[str, Any]:
    is_forced = must_call and dialect.thinks_unasked and dialect.forces_tools
    if effort == "none" or (effort is None and is_forced):
        # DeepSeek cannot be forced to call a tool while it reasons.
        return {"thinking": {"type": "disabled"}}
    if effort is None:
        return {}
    return {
        "thinking": {"type": "enabled"},
        "reasoning_effort": _nearest(effort, ("low", "high", "max")),
    }


def can_force(request: ModelRequest, dialect: Dialect) -> bool:
    """Return whether the server may be forced to call a tool.

    If it may not, its model chooses.
    """
    effort = request.settings.reasoning_effort
    is_reasoning = dialect.effort == "deepseek" and effort not in (None, "none")
    return dialect.forces_tools and not is_reasoning


def _nearest(effort: str, levels: tuple[str, ...]) -> str:
    if not levels or effort in levels:
        return effort
    if "default" in levels:
        return "default"
    return next((level for level in _NEAREST.get(effort, ()) if level in levels), levels[-1])
