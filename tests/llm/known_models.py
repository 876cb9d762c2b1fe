"""Models of given providers, a clock for them, and model lists as providers send them."""

from typing import Any

from ricordo.llm.policy import CallPolicy
from ricordo.llm.provider_table import Provider
from ricordo.llm.registry.models import Models
from ricordo.settings import ProviderSettings, Settings
from tests.support.model_server import Answer

NONE: dict[str, Any] = dict.fromkeys(ProviderSettings.model_fields)
OPENED: list[Models] = []


class Now:
    """A clock of seconds that is set by hand."""

    seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def models(
    settings: Settings | None = None, extra: tuple[Provider, ...] = (), **fields: Any
) -> Models:
    configured = {name: fields.pop(name) for name in tuple(fields) if name in NONE}
    providers = ProviderSettings(_env_file=None, **NONE | configured)
    fields.setdefault("local_servers", ())
    made = Models(
        settings or Settings(_env_file=None), providers, extra, policy=CallPolicy(0, 5), **fields
    )
    OPENED.append(made)
    return made


def tags(*names: str) -> Answer:
    return Answer({"models": [{"name": name, "model": name} for name in names]})


def rows(*names: str) -> Answer:
    return Answer({"data": [{"id": name, "object": "model"} for name in names]})
