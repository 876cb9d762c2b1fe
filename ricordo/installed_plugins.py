"""Plugins by name: the built-in features, and packages with an entry point `ricordo.plugins`."""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from ricordo.errors import Invalid

GROUP = "ricordo.plugins"
# Where the built-in features are listed. It is a name, since the core imports no feature.
FEATURES = "ricordo.features:FEATURES"


def read_feature(name: str) -> Any:
    """Return the `Feature` that a package of `ricordo.features` declares.

    Args:
        name: The name of the package, such as "groups".

    Raises:
        Invalid: The package is not installed.
    """
    module = f"ricordo.features.{name}"
    try:
        return import_module(module).feature
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise Invalid(
            f"Feature {name} is in the list of features, but its package is not installed. "
            "Install it, or remove its name from ricordo/features/__init__.py."
        ) from None


def read_features() -> list[Any]:
    """Return the built-in features, without those whose package is missing."""
    features = []
    for name in load_part(FEATURES):
        try:
            features.append(read_feature(name))
        except Invalid:
            continue  # `load_plugins` reports the missing package at a start
    return features


def read_entries() -> tuple[list[tuple[str, Any]], list[Invalid]]:
    """Return the installed plugins with their names, and an error for each broken one."""
    plugins: list[tuple[str, Any]] = []
    faults: list[Invalid] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            plugins.append((entry.name, entry.load()))
        except Exception as error:
            fault = Invalid(
                f'Plugin "{entry.name}" ({entry.value}) cannot be loaded: {error}. Remove it or '
                "repair it."
            )
            fault.__cause__ = error
            faults.append(fault)
    return plugins, faults


def load_part(part: Any) -> Any:
    """Return a part of a plugin, imported if it is given by name.

    Args:
        part: The part itself, or `module:name`, such as "weather.tools:forecast".

    Raises:
        ImportError: The module cannot be imported.
        AttributeError: The module has no such name.
    """
    if not isinstance(part, str):
        return part
    module, _, name = part.partition(":")
    return getattr(import_module(module), name)
