"""The first version of every block in a database that was written before there were versions."""

import re
from bisect import bisect_left
from typing import Any

import orjson
from sqlalchemy import Connection, text

from ricordo.domain import deltas
from ricordo.domain.clock import SystemClock
from ricordo.domain.git_objects import blob_id, commit_body, object_id, path_of, signature
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


class _GrowingTree:
    """A tree that gains one file at a time: to make it anew for each of ten thousand would take minutes."""

    def __init__(self) -> None:
        self._entries: list[tuple[bytes, bytes]] = []
        self._folders: dict[str, _GrowingTree] = {}

    def put(self, label: str, blob: bytes) -> bytes:
        """The tree's id with this text under this label."""
        name, slash, rest = label.partition("/")
        if slash:
            folder = self._folders.setdefault(name, _GrowingTree()).put(rest, blob)
            raw = name.encode()
            entry = (raw + b"/", b"40000 " + raw + b"\0" + folder)
        else:
            raw = path_of(name).encode()
            entry = (raw, b"100644 " + raw + b"\0" + blob)
        place = bisect_left(self._entries, entry[:1])
        is_there = place < len(self._entries) and self._entries[place][0] == entry[0]
        self._entries[place : place + is_there] = [entry]
        return object_id("tree", b"".join([body for _, body in self._entries]))


class _Beginning:
    """The history of one chain, which gets a version of each of its blocks."""

    def __init__(self, connection: Connection, chain_id: str, now: int) -> None:
        self.chain_id = chain_id
        self._connection = connection
        self._now = now
        self._files: dict[str, bytes] = {}
        self._tree = _GrowingTree()
        self._head: bytes | None = None

    def add(self, row: Any) -> None:
        """Make the version that begins this block."""
        run = self._connection.execute
        blob, parents = blob_id(row.value), (self._head,) if self._head else ()
        self._files[row.label] = blob
        body = commit_body(self._tree.put(row.label, blob), parents, signature(TAKER), self._now, REASON)
        id = object_id("commit", body)
        run(_BLOB, {"chain_id": self.chain_id, "id": blob, "data": deltas.pack(row.value.encode(), None)})
        version = {"number": len(self._files), "id": id, "parent": self._head, "label": row.label, "blob": blob}
        author = {"author_kind": TAKER.kind, "author_id": TAKER.id, "author_name": TAKER.name}
        cause = {**author, "reason": REASON, "created_at": self._now}
        run(_COMMIT, {"chain_id": self.chain_id, **version, **cause})
        run(_HEAD, {"head": id, "seq": row.seq})
        self._head = id

    def end(self) -> None:
        """Store the chain's tip, once: its tree grows with every block."""
        kept = {label: [blob.hex(), 0] for label, blob in self._files.items()}
        values = {"head": self._head, "versions": len(kept), "files": orjson.dumps(kept).decode()}
        self._connection.execute(_chain_setter(self._connection), {**values, "chain_id": self.chain_id})


def begin_history(connection: Connection) -> None:
    """Make a version of each block, chain by chain in the order in which the blocks were made."""
    now, after = SystemClock().now(), 0
    chain: _Beginning | None = None
    _rename_what_git_refuses(connection)
    while rows := connection.execute(
        _BLOCKS, {"chain_id": chain.chain_id if chain else "", "after": after, "most": _AT_ONCE}
    ).all():
        for row in rows:
            if chain is None or chain.chain_id != row.chain_id:
                if chain:
                    chain.end()
                chain = _Beginning(connection, row.chain_id, now)
            chain.add(row)
            after = row.seq
    if chain:
        chain.end()


def _chain_setter(connection: Connection) -> Any:
    if connection.dialect.name == "postgresql":
        return _CHAIN
    return text(str(_CHAIN).replace("CAST(:files AS JSON)", ":files"))


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
