"""Restore an archive in one transaction, and report on it."""

from typing import IO, Any

from ricordo.domain.scope import Scope
from ricordo.features.documents.memory_archives.reading import opened_archive
from ricordo.features.documents.memory_archives.restore import RestoredMemory, restore
from ricordo.runtime import Runtime
from ricordo.storage.engine.store import Transaction


async def restore_archive(
    runtime: Runtime,
    scope: Scope,
    file: IO[bytes],
    user_name: str | None,
    most_bytes: int | None = None,
) -> RestoredMemory:
    """Restore an archive for this user, or for the archive's user.

    Args:
        runtime: The server.
        scope: The caller, who may create users and write the memory of each.
        file: The zip file, which can be read at any position.
        user_name: The id or identifier of the user; a new identifier makes a user.
        most_bytes: The limit of the unpacked archive in bytes; None sets no limit.

    Raises:
        Invalid, TooLong: if the archive cannot be read, or its history was changed.
        Conflict: if the user has memory on this server, or the server has a part of the archive
            already.
    """
    user_files = runtime.plugins.user_files()

    def work(tx: Transaction) -> RestoredMemory:
        # Open the archive inside the transaction, since a transaction may run again.
        file.seek(0)
        with opened_archive(file, most_bytes) as archive:
            return restore(tx, scope, archive, user_files, user_name)

    return await runtime.store.write(work)


def report_of(restored: RestoredMemory) -> dict[str, Any]:
    """Return the report of an import, in the form of all imports."""
    records = {name.removesuffix(".jsonl"): count for name, count in restored.records.items()}
    return {
        "source": f"memory of {restored.user.name}",
        "taken": {
            "blocks": restored.blocks,
            "versions": restored.versions,
            "proposals": restored.proposals,
            **records,
        },
        "left_out": [
            {"what": "part of the archive", "reason": reason, "count": 1, "names": []}
            for reason in restored.left_out
        ],
    }
