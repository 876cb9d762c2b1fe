"""`ricordo settings`: every setting with its variable, default, current value and sentence. Works where some are wrong, too."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import typer
from dotenv import dotenv_values
from pydantic import AliasChoices, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from ricordo.errors import Invalid
from ricordo.settings import PREFIX, ProviderSettings, Settings, VectorSettings, load_settings

_PASSWORD = re.compile(r"(?<=://)[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Listed:
    """One setting; `value` is None where it is not set, and never holds a secret."""

    variable: str
    default: str
    value: str | None
    meaning: str


def show_settings() -> bool:
    """Print them all; tells whether the current ones are valid, and says on the other channel what is not."""
    typer.echo("An option of `ricordo serve` counts before the environment, the environment before a file .env here.\n")
    for setting in listed_settings():
        _show(setting)
    typer.echo("Providers of models, by their usual variables. None is called that is not set.\n")
    for provider in listed_providers():
        _show(provider)
    typer.echo("Services that can keep vectors. One is called only for what chose it.\n")
    for service in _by_their_variables(VectorSettings):
        _show(service)
    try:
        load_settings()
    except Invalid as error:
        typer.echo(f"ricordo: {error}", err=True)
        return False
    return True


def listed_settings() -> list[Listed]:
    """Ricordo's own settings."""
    return [_listed(PREFIX + name.upper(), field) for name, field in Settings.model_fields.items()]


def listed_providers() -> list[Listed]:
    """The providers' variables; one with two names is listed by the name that is set."""
    return list(_by_their_variables(ProviderSettings))


def _by_their_variables(settings: type[BaseSettings]) -> Iterator[Listed]:
    given = _given()
    for name, field in settings.model_fields.items():
        alias = field.validation_alias
        names = [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]
        variable = next((choice for choice in names if choice.upper() in given), names[0]).upper()
        yield _listed(variable, field)


def _listed(variable: str, field: FieldInfo) -> Listed:
    value = _given().get(variable)
    if value is not None:
        is_secret = SecretStr in (field.annotation, *get_args(field.annotation))
        value = "(set, not shown)" if is_secret else _PASSWORD.sub("…@", value)
    default = "" if field.default is None else str(field.default)
    return Listed(
        variable, default.lower() if isinstance(field.default, bool) else default, value, field.description or ""
    )


def _given() -> dict[str, str]:
    """What is set in the environment or in `.env`, by variable in capitals; empty counts as not set."""
    given = {name.upper(): value for name, value in dotenv_values(".env").items() if value}
    return given | {name.upper(): value for name, value in os.environ.items() if value}


def _show(setting: Listed) -> None:
    current = "not set" if setting.value is None else setting.value
    if setting.default:
        current = f"{setting.default} (default)" if setting.value is None else f"{current} (default: {setting.default})"
    typer.echo(f"{typer.style(setting.variable, bold=True)} = {current}")
    typer.echo(f"    {setting.meaning}\n")
