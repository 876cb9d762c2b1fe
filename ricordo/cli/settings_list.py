"""`ricordo settings`: all settings with their values, even if some are invalid.

Each setting is shown with its variable, default, current value and description.
"""

import os
import re
from typing import NamedTuple

import typer
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from ricordo.errors import Invalid
from ricordo.setting_types import feature_settings, variables_of
from ricordo.settings import ProviderSettings, Settings, load_settings, settings_file

_PASSWORD = re.compile(r"(?<=://)[^/@\s]*@")
_GROUPS: tuple[tuple[str, type[BaseSettings]], ...] = (
    (
        "An option of `ricordo serve` overrides the environment, which overrides a file .env in "
        "this folder.",
        Settings,
    ),
    (
        "Model providers. A provider without its variable is not called, except for model servers "
        "on this machine (RICORDO_FIND_LOCAL_MODELS).",
        ProviderSettings,
    ),
)


class ListedSetting(NamedTuple):
    """One setting. `value` is None if it is not set, and never contains a secret."""

    variable: str
    default: str
    value: str | None
    meaning: str


def show_settings() -> bool:
    """Print all settings, and errors to standard error; return True if all are valid."""
    features = [((kind.__doc__ or "").strip(), kind) for kind in feature_settings()]
    for title, kind in (*_GROUPS, *features):
        typer.echo(f"{title}\n")
        for setting in listed_settings(kind):
            current = "not set" if setting.value is None else setting.value
            if setting.default:
                is_default = setting.value is None
                current = (
                    f"{setting.default} (default)"
                    if is_default
                    else f"{current} (default: {setting.default})"
                )
            typer.echo(
                f"{typer.style(setting.variable, bold=True)} = {current}\n    {setting.meaning}\n"
            )
    try:
        load_settings()
    except Invalid as error:
        typer.echo(f"ricordo: {error}", err=True)
        return False
    return True


def listed_settings(kind: type[BaseSettings] = Settings) -> list[ListedSetting]:
    sources = (settings_file(), os.environ)
    set_variables = {
        name.upper(): text for source in sources for name, text in source.items() if text
    }
    listed = []
    for name, field in kind.model_fields.items():
        variables = variables_of(kind, name)
        variable = next((choice for choice in variables if choice in set_variables), variables[0])
        text = set_variables.get(variable)
        if text is not None:
            is_secret = SecretStr.__name__ in str(field.annotation)  # at any level of the type
            text = "(set, not shown)" if is_secret else _PASSWORD.sub("…@", text)
        default = "" if field.default is None else str(field.default)
        if isinstance(field.default, bool):
            default = default.lower()
        listed.append(ListedSetting(variable, default, text, field.description or ""))
    return listed
