"""`ricordo settings`: all settings with variable, default, current value and description, even if some are invalid."""

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
class ListedSetting:
    """One setting; `value` is None if it is not set, and never holds a secret."""

    variable: str
    default: str
    value: str | None
    meaning: str


def show_settings() -> bool:
    """Print all settings; returns whether they are valid, and prints what is not to standard error."""
    typer.echo("An option of `ricordo serve` overrides the environment, which overrides a file .env in this folder.\n")
    for setting in listed_settings():
        _show(setting)
    typer.echo("Model providers. A provider without its variable is never called.\n")
    for provider in listed_providers():
        _show(provider)
    typer.echo("Vector databases. One is called only for archives that use it.\n")
    for service in _by_their_variables(VectorSettings):
        _show(service)
    try:
        load_settings()
    except Invalid as error:
        typer.echo(f"ricordo: {error}", err=True)
        return False
    return True


def listed_settings() -> list[ListedSetting]:
    return [_listed(PREFIX + name.upper(), field) for name, field in Settings.model_fields.items()]


def listed_providers() -> list[ListedSetting]:
    return list(_by_their_variables(ProviderSettings))


def _by_their_variables(settings: type[BaseSettings]) -> Iterator[ListedSetting]:
    given = _given()
    for name, field in settings.model_fields.items():
        alias = field.validation_alias
        names = [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]
        variable = next((choice for choice in names if choice.upper() in given), names[0]).upper()
        yield _listed(variable, field)


def _listed(variable: str, field: FieldInfo) -> ListedSetting:
    value = _given().get(variable)
    if value is not None:
        is_secret = SecretStr in (field.annotation, *get_args(field.annotation))
        value = "(set, not shown)" if is_secret else _PASSWORD.sub("…@", value)
    default = "" if field.default is None else str(field.default)
    return ListedSetting(
        variable, default.lower() if isinstance(field.default, bool) else default, value, field.description or ""
    )


def _given() -> dict[str, str]:
    given = {name.upper(): value for name, value in dotenv_values(".env").items() if value}
    return given | {name.upper(): value for name, value in os.environ.items() if value}


def _show(setting: ListedSetting) -> None:
    current = "not set" if setting.value is None else setting.value
    if setting.default:
        current = f"{setting.default} (default)" if setting.value is None else f"{current} (default: {setting.default})"
    typer.echo(f"{typer.style(setting.variable, bold=True)} = {current}")
    typer.echo(f"    {setting.meaning}\n")
