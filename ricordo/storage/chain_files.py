"""Folders in the data folder that hold one chain's memory as a cache, such as its git repository: their names, and deletion.

All that belongs to a chain is called `repositories/<chain id>.<what>`; whoever writes there holds the lock of the chain.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ricordo.errors import Unavailable

FOLDER = "repositories"
# In a repository that is a remote of a chain: its id.
OWNER_FILE = "ricordo-owner"
PATIENCE = 60.0  # seconds to wait while another request writes there


def lock_path(data_dir: Path, chain_id: str) -> Path:
    return data_dir / FOLDER / f"{chain_id}.lock"


def delete_chain_files(data_dir: Path, chain_id: str) -> list[Path]:
    """Delete the folders of a chain, after the chain itself; returns which there were. Raises Unavailable if long in use."""
    lock = lock_path(data_dir, chain_id)
    if not lock.parent.exists():
        return []
    try:
        with FileLock(lock, timeout=PATIENCE):
            found = [path for path in sorted(lock.parent.glob(f"{chain_id}.*")) if path != lock]
            for path in found:
                with suppress(FileNotFoundError):
                    shutil.rmtree(path)
    except Timeout:
        raise Unavailable(
            "The repository of this memory is being read. Try again in a minute."
        ) from None
    lock.unlink(missing_ok=True)
    return found
