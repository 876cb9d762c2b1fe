"""Versions, texts and git objects with the number of their chain in place of its id, and nothing that can be told from the rest."""

from typing import Any

from sqlalchemy import Connection, text

from ricordo.storage.columns import PackedId
from ricordo.storage.store import from_json

_AT_ONCE = 500
_COMMITS = text(
    "SELECT old.*, chains.seq AS chain FROM old_commits AS old JOIN chains ON chains.id = old.chain_id"
    " WHERE (old.chain_id, old.number) > (:chain_id, :number) ORDER BY old.chain_id, old.number LIMIT :most"
)
_NAMES = (
    *(
        "seq",
        "chain",
        "number",
        "id",
        "parent",
        "other_parent",
        "label",
        "old_label",
        "blob",
        "author_kind",
        "author_id",
    ),
    *("author_name", "reason", "approved_by", "proposal_id", "run_id", "step_id", "is_untrusted", "created_at"),
)
_PUT = text(f"INSERT INTO commits ({', '.join(_NAMES)}) VALUES ({', '.join(f':{name}' for name in _NAMES)})")  # noqa: S608
# What is copied as it is, but for the chain.
_COLUMNS = {"blobs": "id, base, depth, data", "git_objects": "id, kind, data"}
_LOG = text("SELECT seq, CAST(changed AS TEXT) AS changed FROM blocks_log WHERE seq > :after ORDER BY seq LIMIT :most")
_SET_DELETED = text("UPDATE blocks_log SET deleted_label = :label WHERE seq = :seq")
_RUN, _STEP = PackedId("run"), PackedId("step")


def shorten_history(connection: Connection) -> None:
    """Fill the new tables from the old ones."""
    _copy_versions(connection)
    for table, columns in _COLUMNS.items():
        copied = (
            f"INSERT INTO {table} (seq, chain, {columns})"  # noqa: S608 - our own names
            f" SELECT old.seq, chains.seq, {', '.join(f'old.{name}' for name in columns.split(', '))}"
            f" FROM old_{table} AS old JOIN chains ON chains.id = old.chain_id WHERE old.seq > :after AND old.seq <= :until"
        )
        newest = connection.execute(text(f"SELECT coalesce(max(seq), 0) FROM old_{table}")).scalar_one()  # noqa: S608
        for after in range(0, newest, _AT_ONCE):
            connection.execute(text(copied), {"after": after, "until": after + _AT_ONCE})
    _name_deletions(connection)


def _copy_versions(connection: Connection) -> None:
    chain_id, number, tip = "", 0, None
    while rows := connection.execute(_COMMITS, {"chain_id": chain_id, "number": number, "most": _AT_ONCE}).all():
        shortened: list[dict[str, Any]] = []
        for row in rows:
            before = tip if row.chain_id == chain_id else None
            chain_id, number, tip = row.chain_id, row.number, row.id
            shortened.append(
                {
                    **row._asdict(),
                    "parent": None if row.parent == before else row.parent,
                    "run_id": _RUN.pack(row.run_id),
                    "step_id": _STEP.pack(row.step_id),
                }
            )
        connection.execute(_PUT, shortened)


def _name_deletions(connection: Connection) -> None:
    after = 0
    while rows := connection.execute(_LOG, {"after": after, "most": _AT_ONCE}).all():
        after = rows[-1].seq
        # Read here: PostgreSQL refuses to look into a JSON that holds an escaped NUL anywhere.
        changed = [(row.seq, from_json(row.changed)) for row in rows]
        if values := [{"seq": seq, "label": one["label"]} for seq, one in changed if "deleted" in one]:
            connection.execute(_SET_DELETED, values)
