"""Installed plugins: packages with an entry point in the group `ricordo.plugins`."""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from ricordo.errors import Invalid

GROUP = "ricordo.plugins"


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
    """Return a plugin's part; import it if it is a name such as "weather.tools:forecast"."""
    if not isinstance(part, str):
        return part
    module, _, name = part.partition(":")
    return getattr(import_module(module), name)
