"""The model of agents that name none: RICORDO_MODEL, else the best of a configured provider, of this machine, or the librarian.

Pure: it chooses by what providers have listed and what is known of their models.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ricordo.domain.ids import unique
from ricordo.domain.model import LIBRARIAN
from ricordo.llm.model_lists import KNOWN_MODELS, ModelList
from ricordo.llm.provider_sdks import install_command, missing_extra
from ricordo.llm.provider_table import Provider, address_of, variables_of

BUILT_IN = "built in, no language model; see `ricordo doctor`"
PREFERRED = {name: tuple(models.split()) for name, models in KNOWN_MODELS["preferred"].items()}
PREFERRED["azure"] = PREFERRED["openai"]
# Adapters of services without a list of models; their region and project are often set for other programs.
UNLISTED = ("bedrock", "vertex")
# What to do where a server has no model that calls tools.
_ADVICE = {
    "ollama": "Pull one: ollama pull qwen3:8b",
    "lmstudio": "Load one: lms get qwen/qwen3-8b",
    "vllm": "Start it with --enable-auto-tool-choice and --tool-call-parser.",
    "llamacpp": "Start it with --jinja.",
}
_DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2})$")


@dataclass(frozen=True, slots=True)
class DefaultModel:
    """The default model, and why it is. `advice` says what a better one needs; `fault` why this one cannot be used."""

    handle: str
    reason: str
    advice: tuple[str, ...] = ()
    fault: str | None = None

    @property
    def lines(self) -> list[str]:
        """What to tell an operator besides the model and the reason."""
        return (
            [f"RICORDO_MODEL={self.handle} cannot be used. {self.fault}"]
            if self.fault
            else list(self.advice)
        )


def undated(name: str) -> str:
    """Return a model's name without the date of its version."""
    return _DATED.sub("", name)


def choose(
    offers: Sequence[tuple[Provider, ModelList | None]], found: Collection[str] = ()
) -> DefaultModel:
    """The default where RICORDO_MODEL names none; the local servers `found` come last. An offer without a list was not read."""
    advice, candidates = [], list[tuple[int, DefaultModel]]()
    for provider, listed in offers:
        if provider.adapter in UNLISTED:
            continue
        is_found = provider.name in found
        reason = "found on this machine" if is_found else f"{variables_of(provider)} is set"
        names = _best_first(provider, listed)
        usable = [name for name in names if missing_extra(provider, name) is None]
        if usable:
            reason += "" if listed else ", but its models have not been listed"
            if usable[0] != names[0]:
                reason += f"; {names[0]} needs the extra `{missing_extra(provider, names[0])}`"
            rank = 2 if is_found else 0 if listed else 1
            candidates.append((rank, DefaultModel(f"{provider.name}/{usable[0]}", reason)))
        elif names:
            install = f"Install it with: {install_command(missing_extra(provider, names[0]))}"
            advice.append(f"{reason}, but its library is missing. {install}")
        elif listed and provider.name in _ADVICE:
            lacks = f"{provider.name} at {provider.base_url} has no model that calls tools."
            advice.append(f"{lacks} {_ADVICE[provider.name]}")
        else:
            fault = (
                "lists no model that is known to call tools"
                if listed
                else "has not listed its models"
            )
            advice.append(
                f"{reason}, but {provider.name} {fault}. Check it, or name a model in RICORDO_MODEL."
            )
    if candidates:
        return min(candidates, key=lambda each: each[0])[1]
    return DefaultModel(LIBRARIAN, BUILT_IN, tuple(advice))


def _best_first(provider: Provider, listed: ModelList | None) -> list[str]:
    """Return the names of a provider's models that an agent may get unasked."""
    preferred = PREFERRED.get(provider.name, ())
    is_hosted = provider.base_url == address_of(provider.name)
    if listed is None:
        return list(preferred) if is_hosted else []
    if provider.name == "azure" and provider.api_version is None:
        return []  # this version of its API lists what could be deployed, not what is
    able = [info for info in listed.chat if info.calls_tools is not False]
    known = [info for name in preferred for info in able if undated(info.name) == name]
    # Whoever runs a server of their own chose its models; a service lists many that are for something else.
    others = [info for info in able if info.calls_tools or not is_hosted]
    others.sort(key=lambda info: not info.calls_tools)
    return unique([info.name for info in (*known, *others)])
