"""System prompts by key: those that come with Ricordo, and those an operator puts into a folder of the data folder."""

import re
from pathlib import Path

from ricordo.errors import Invalid, NotFound, Unavailable
from ricordo.prompt.texts import BUILT_IN, text

FOLDER = "system_prompts"  # in the data folder
REFERENCE = "prompt:"
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def chosen_system(system: str | None, usual: str, data_dir: Path) -> str:
    """The system prompt that was asked for: its words, `prompt:<key>` for one kept by that key, None for the `usual` key's.

    Raises what `system_text` does.
    """
    if system is not None and not system.startswith(REFERENCE):
        return system
    return system_text(usual if system is None else system.removeprefix(REFERENCE).strip(), data_dir / FOLDER)


def system_text(key: str, folder: Path) -> str:
    """The prompt with this key: a built-in one, else `<folder>/<key>.txt`. Raises NotFound, Invalid, Unavailable."""
    if key in BUILT_IN:
        return text(key)
    if not _KEY.fullmatch(key):
        raise Invalid(
            f'"{key[:80]}" cannot be the key of a system prompt. Use letters, digits, "_", "-" and ".", at most 100 of them.'
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        custom = (folder / f"{key}.txt").read_text("utf-8").strip()
    except FileNotFoundError:
        raise NotFound(
            f'There is no system prompt "{key}". Put it into {FOLDER}/{key}.txt in the data folder, or use one of: '
            f"{', '.join(BUILT_IN)}."
        ) from None
    except UnicodeDecodeError:
        raise Invalid(f"{FOLDER}/{key}.txt is not UTF-8 text. Save it as UTF-8.") from None
    except OSError as error:
        raise Unavailable(f"{FOLDER}/{key}.txt cannot be read: {error.strerror}. See to its permissions.") from error
    if not custom:
        raise Invalid(f"{FOLDER}/{key}.txt is empty. Write the prompt into it.")
    return custom
