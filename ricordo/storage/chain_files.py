"""Cache folders for one chain's memory in the data folder, such as its git repository.

All files of a chain are named `repositories/<chain id>.<kind>`. Every writer holds the lock of the
chain.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ricordo.errors import Unavailable

FOLDER = "repositories"
# Name of a file with the chain's id, in a repository that is a remote of a chain.
OWNER_FILE = "ricordo-owner"
PATIENCE = 60.0  # seconds to wait for another writer of the chain's folders


def lock_path(data_dir: Path, chain_id: str) -> Path:
    """Return the path of the lock that writers of a chain's folders hold.

    Args:
        data_dir: The server's data folder.
        chain_id: The chain.
    """
    return data_dir / FOLDER / f"{chain_id}.lock"


def delete_chain_files(data_dir: Path, chain_id: str) -> list[Path]:
    """Delete the cache folders of a chain, and return their paths.

    The chain may be deleted, or its folders are damaged and will be built again.

    Args:
        data_dir: The server's data folder.
        chain_id: The chain.

    Raises:
        Unavailable: Another process uses them for more than a minute.
    """
    lock = lock_path(data_dir, chain_id)
    if not lock.parent.exists():
        return []
    try:
        with FileLock(lock, timeout=PATIENCE):
            folders = [path for path in sorted(lock.parent.glob(f"{chain_id}.*")) if path != lock]
            for path in folders:
                with suppress(FileNotFoundError):
                    shutil.rmtree(path)
    except Timeout:
        raise Unavailable(
            "The repository of this memory is being read. Try again in a minute."
        ) from None
    lock.unlink(missing_ok=True)
    return folders
