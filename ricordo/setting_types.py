"""Types of settings that are checked when they are read, and the settings of features.

The types are keys, addresses and folders. A feature's settings are classes of `FeatureSettings`,
named in the field `settings` of its `Feature`.
"""

import errno
import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from ricordo.installed_plugins import load_part, read_entries, read_features

PREFIX = "RICORDO_"
_Settings = TypeVar("_Settings", bound="FeatureSettings")
PACKAGE = Path(__file__).resolve().parent
# Settings that core packages declare. They are names, since those packages import the settings.
CORE_OPTIONS = ("ricordo.sandbox.options:SandboxSettings",)


def _sendable(key: SecretStr) -> SecretStr:
    if not all("!" <= sign <= "~" for sign in key.get_secret_value()):
        raise ValueError("must be printable ASCII without spaces or line breaks")
    return key


def _address(url: str) -> str:
    if not is_address(url):
        raise ValueError("must be an address, such as http://host:8000 or https://host/path")
    return url


def _host(host: str) -> str:
    if host and not is_address(host if "://" in host else f"https://{host}"):
        raise ValueError("must be a host, such as my-index-abc123.svc.region.pinecone.io")
    return host


def absolute(path: Path) -> Path:
    """Return the absolute path, with `~` and links resolved.

    Args:
        path: The path; a relative one begins in the current folder.

    Raises:
        ValueError: The path begins with the home folder of an unknown user, or a link in it leads
            back to itself.
    """
    try:
        expanded = path.expanduser()
    except RuntimeError:
        raise ValueError(f"{path} is in the home folder of an unknown user") from None
    if _has_link_loop(expanded):
        raise ValueError(f"{path} leads through a symbolic link to itself")
    return expanded.resolve()


def _has_link_loop(path: Path) -> bool:
    # Before Python 3.13 `resolve` raises RuntimeError for a loop, later it returns the path.
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def is_address(url: str) -> bool:
    """Return True for an address with http or https, a host and no blanks.

    Args:
        url: Any text.
    """
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0  # raises ValueError if it is out of range
    except ValueError:
        return False
    has_space = any(sign.isspace() or not sign.isprintable() for sign in url)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and has_port and not has_space


def about(description: str, default: Any = None, **limits: Any) -> Any:
    """Return a field with its description.

    Args:
        description: The description, for `ricordo settings` and the pages of docs.
        default: The default value.
        **limits: Pydantic's limits, such as `ge`.
    """
    return Field(default, description=description, **limits)


Key = Annotated[SecretStr, AfterValidator(_sendable)]
Address = Annotated[str, AfterValidator(_address)]
Host = Annotated[str, AfterValidator(_host)]
Folder = Annotated[Path, AfterValidator(absolute)]


class FeatureSettings(BaseSettings):
    """The settings of one feature, read when needed.

    A field is set by the variable RICORDO_<NAME>, or by its alias.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", extra="ignore", env_ignore_empty=True
    )

    @classmethod
    def current(cls) -> Self:
        """Return the settings, read again only if their variables have changed.

        Reading takes a millisecond.
        """
        values = (os.environ.get(variable) for variable in variables_of(cls))
        settings: Self = _read_once(cls, *values)
        return settings


def variables_of(kind: type[BaseSettings], name: str | None = None) -> list[str]:
    """Return a setting's variables, the preferred one first.

    Args:
        kind: The class of the settings.
        name: The name of the field; None returns the variables of all fields.
    """
    variables: list[str] = []
    for field_name, field in kind.model_fields.items():
        if name not in (None, field_name):
            continue
        alias = field.validation_alias
        if isinstance(alias, AliasChoices):
            variables += [str(choice).upper() for choice in alias.choices]
        else:
            variables.append(f"{kind.model_config.get('env_prefix', '')}{field_name}".upper())
    return variables


@lru_cache(64)
def _read_once(kind: type[_Settings], *_values: str | None) -> _Settings:
    """Read these settings. The values of their variables only serve as the key of the cache."""
    return kind()


def feature_settings() -> list[type[FeatureSettings]]:
    """Return the settings that core packages, features and installed plugins declare.

    They are sorted by the names of their modules. Broken plugins are left out; the start of a
    server names them.
    """
    installed, _ = read_entries()
    parts: list[Any] = [*CORE_OPTIONS]
    for plugin in (*read_features(), *(plugin for _, plugin in installed)):
        declared = getattr(plugin, "settings", ())
        parts += declared() if callable(declared) else declared
    kinds = dict.fromkeys(load_part(part) for part in parts)
    return sorted(kinds, key=lambda kind: str(kind.__module__))
