"""The first version of every block in a database that was written before there were versions."""

import re
from typing import Any

import orjson
from sqlalchemy import Connection, text

from ricordo.domain import deltas
from ricordo.domain.clock import SystemClock
from ricordo.domain.git_objects import blob_id, commit_body, object_id, signature, tree_of
from ricordo.domain.git_reading import fits_git
from ricordo.domain.scope import Actor

TAKER = Actor("system", "ricordo", "Ricordo")
REASON = "Taken over from before there were versions"
_AT_ONCE = 500
_BLOCKS = text(
    "SELECT seq, id, chain_id, label, value FROM blocks WHERE (chain_id, seq) > (:chain_id, :after)"
    " ORDER BY chain_id, seq LIMIT :most"
)
_LABELS = text("SELECT seq, id, chain_id, label FROM blocks ORDER BY chain_id, seq")
_RELABEL = text("UPDATE blocks SET label = :label WHERE seq = :seq")
_RELABEL_ATTACHED = text("UPDATE agents_blocks SET label = :label WHERE block_id = :id")
_UNFIT = re.compile(r"[^\w/ -]")
_COMMIT = text(
    "INSERT INTO commits (chain_id, number, id, parent, label, blob, author_kind, author_id, author_name, reason, created_at)"
    " VALUES (:chain_id, :number, :id, :parent, :label, :blob, :author_kind, :author_id, :author_name, :reason, :created_at)"
)
_BLOB = text("INSERT INTO blobs (chain_id, id, depth, data) VALUES (:chain_id, :id, 0, :data) ON CONFLICT DO NOTHING")
_HEAD = text("UPDATE blocks SET head = :head WHERE seq = :seq")
_CHAIN = text("UPDATE chains SET head = :head, versions = :versions, files = CAST(:files AS JSON) WHERE id = :chain_id")


def begin_history(connection: Connection) -> None:
    """Make a version of each block, chain by chain in the order in which the blocks were made."""
    now, files, head = SystemClock().now(), dict[str, bytes](), None
    chain_id, after = "", 0
    set_chain = (
        _CHAIN
        if connection.dialect.name == "postgresql"
        else text(str(_CHAIN).replace("CAST(:files AS JSON)", ":files"))
    )
    _rename_what_git_refuses(connection)
    while rows := connection.execute(_BLOCKS, {"chain_id": chain_id, "after": after, "most": _AT_ONCE}).all():
        for row in rows:
            if row.chain_id != chain_id:
                files, head = {}, None
            chain_id, after = row.chain_id, row.seq
            files[row.label] = blob_id(row.value)
            head = _version(connection, row, files, head, now)
            kept = {label: [blob.hex(), 0] for label, blob in files.items()}
            values = {"head": head, "versions": len(files), "files": orjson.dumps(kept).decode(), "chain_id": chain_id}
            connection.execute(set_chain, values)


def _rename_what_git_refuses(connection: Connection) -> None:
    """Give labels that no clone could hold a name as near as possible: they were allowed when blocks were no files yet."""
    labels = [(row.seq, row.id, row.chain_id, row.label) for row in connection.execute(_LABELS)]
    taken = {(chain_id, label) for _, _, chain_id, label in labels}
    for seq, id, chain_id, label in labels:
        if fits_git(label):
            continue
        plain = _UNFIT.sub("-", label)
        fitting = next(
            one
            for one in (plain, *(f"{plain}-{number}" for number in range(2, 1000)), id)
            if (chain_id, one) not in taken
        )
        taken.add((chain_id, fitting))
        connection.execute(_RELABEL, {"label": fitting, "seq": seq})
        connection.execute(_RELABEL_ATTACHED, {"label": fitting, "id": id})


def _version(connection: Connection, row: Any, files: dict[str, bytes], parent: bytes | None, now: int) -> bytes:
    body = commit_body(tree_of(files).id, (parent,) if parent else (), signature(TAKER), now, REASON)
    id, blob = object_id("commit", body), files[row.label]
    connection.execute(_BLOB, {"chain_id": row.chain_id, "id": blob, "data": deltas.pack(row.value.encode(), None)})
    connection.execute(
        _COMMIT,
        {
            "chain_id": row.chain_id,
            "number": len(files),
            "id": id,
            "parent": parent,
            "label": row.label,
            "blob": blob,
            "author_kind": TAKER.kind,
            "author_id": TAKER.id,
            "author_name": TAKER.name,
            "reason": REASON,
            "created_at": now,
        },
    )
    connection.execute(_HEAD, {"head": id, "seq": row.seq})
    return id
