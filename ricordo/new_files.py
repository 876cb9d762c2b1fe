"""Files that several processes may create at the same time, and that the first one creates."""

import os
from pathlib import Path

from filelock import FileLock

_PATIENCE = 10.0  # seconds to wait for the lock, which another process holds for a renaming


def create_once(draft: Path, path: Path) -> None:
    """Give a complete draft its final name, if no file has this name yet.

    The file at `path` is complete at every time, also after a kill. The draft may remain, so the
    caller deletes it.

    Args:
        draft: A file in the same folder, with the whole content.
        path: The final name.

    Raises:
        OSError: The folder cannot be written.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError:
        # Some file systems have no links. There a lock keeps another process from creating the file
        # between the check and the renaming.
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=_PATIENCE, mode=0o600):
            if not path.exists():
                draft.replace(path)
