"""The default model, for agents that name no model. Pure.

It is RICORDO_MODEL, else the best model of a configured provider or of this machine, and else the
librarian. The choice depends on the providers' lists and on known facts about their models.
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
# Adapters of services without a list of models. Their region and project are often set for other
# programs.
UNLISTED = ("bedrock", "vertex")
# Advice for a server without a model that calls tools.
_ADVICE = {
    "ollama": "Pull one: ollama pull qwen3:8b",
    "lmstudio": "Load one: lms get qwen/qwen3-8b",
    "vllm": "Start it with --enable-auto-tool-choice and --tool-call-parser.",
    "llamacpp": "Start it with --jinja.",
}
_DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2})$")


@dataclass(frozen=True, slots=True)
class DefaultModel:
    """The default model and the reason for it.

    `advice` tells how to get a better model; `fault` tells why this model cannot be used.
    """

    handle: str
    reason: str
    advice: tuple[str, ...] = ()
    fault: str | None = None

    @property
    def lines(self) -> list[str]:
        """Return the sentences for an operator about the fault, or else the advice."""
        if self.fault:
            return [f"RICORDO_MODEL={self.handle} cannot be used. {self.fault}"]
        return list(self.advice)


def undated(name: str) -> str:
    """Return a model's name without its version's date."""
    return _DATED.sub("", name)


def choose(
    offers: Sequence[tuple[Provider, ModelList | None]], local: Collection[str] = ()
) -> DefaultModel:
    """Return the default model if RICORDO_MODEL names none.

    `local` names the servers found on this machine, which come last. An offer without a list means
    that the list was not read.
    """
    advice: list[str] = []
    candidates: list[tuple[int, DefaultModel]] = []
    for provider, listed in offers:
        if provider.adapter in UNLISTED:
            continue
        is_local = provider.name in local
        reason = "found on this machine" if is_local else f"{variables_of(provider)} is set"
        names = _best_first(provider, listed)
        usable = [name for name in names if missing_extra(provider, name) is None]
        if not usable:
            advice.append(_advice(provider, listed, names, reason))
            continue
        if not listed:
            reason += ", but its models have not been listed"
        if usable[0] != names[0]:
            reason += f"; {names[0]} needs the extra `{missing_extra(provider, names[0])}`"
        rank = 0 if listed else 1
        model = DefaultModel(f"{provider.name}/{usable[0]}", reason)
        candidates.append((2 if is_local else rank, model))
    if candidates:
        return min(candidates, key=lambda candidate: candidate[0])[1]
    return DefaultModel(LIBRARIAN, BUILT_IN, tuple(advice))


def _advice(provider: Provider, listed: ModelList | None, names: Sequence[str], reason: str) -> str:
    """Return the sentence about a provider without a usable model."""
    if names:
        install = f"Install it with: {install_command(missing_extra(provider, names[0]))}"
        return f"{reason}, but its library is missing. {install}"
    if listed and provider.name in _ADVICE:
        lacks = f"{provider.name} at {provider.base_url} has no model that calls tools."
        return f"{lacks} {_ADVICE[provider.name]}"
    fault = "has not listed its models"
    if listed:
        fault = "lists no model that is known to call tools"
    return f"{reason}, but {provider.name} {fault}. Check it, or name a model in RICORDO_MODEL."


def _best_first(provider: Provider, listed: ModelList | None) -> list[str]:
    """Return a provider's models that an agent may get by default, best first."""
    preferred = PREFERRED.get(provider.name, ())
    is_hosted = provider.base_url == address_of(provider.name)
    if listed is None:
        return list(preferred) if is_hosted else []
    if provider.name == "azure" and provider.api_version is None:
        # This version of Azure's API lists models that could be deployed, not the deployments.
        return []
    able = [model for model in listed.chat if model.calls_tools is not False]
    best = [model for name in preferred for model in able if undated(model.name) == name]
    # The operator of a self-hosted server chose its models. A service also lists many models for
    # other uses.
    others = [model for model in able if model.calls_tools or not is_hosted]
    others.sort(key=lambda model: not model.calls_tools)
    return unique([model.name for model in (*best, *others)])
