"""The texts of a chain's versions and proposals, each under its git id, kept as what differs from an older one."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import bindparam, select

from ricordo.domain import deltas
from ricordo.domain.git_objects import blob_id
from ricordo.errors import Conflict, NotFound
from ricordo.storage.engine.repository import Missing
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.memory_tables import blobs, is_in_chain, number_of_chain

# A text, its depth and itself: what a new one may be stored as a difference from.
Base = tuple[bytes, int, str]

_INSERT = Missing(blobs).values(chain=number_of_chain())
_DEPTH = select(blobs.c.depth).where(is_in_chain(blobs), blobs.c.id == bindparam("blob"))
_TEXTS = select(blobs.c.chain, blobs.c.id, blobs.c.base, blobs.c.data)
_LINE = _TEXTS.where(is_in_chain(blobs), blobs.c.id == bindparam("blob")).cte("line", recursive=True)
_LINE = _LINE.union_all(_TEXTS.where(blobs.c.chain == _LINE.c.chain, blobs.c.id == _LINE.c.base))
_LINEAGE = select(_LINE.c.id, _LINE.c.base, _LINE.c.data)


def put(tx: Transaction, chain_id: str, text: str, base: Base | None) -> tuple[bytes, int]:
    """Store a text unless the chain has it; returns its id and how many steps it is from one that is stored whole."""
    id = blob_id(text)
    depth = base[1] + 1 if base else 0
    if base is None or depth >= deltas.DEEPEST:
        base, depth = None, 0
    data = deltas.pack(text.encode(), base[2].encode() if base else None)
    row = {"chain_id": chain_id, "id": id, "base": base[0] if base else None, "depth": depth, "data": data}
    if not tx.run(_INSERT, row):
        depth = tx.first(_DEPTH, {"chain_id": chain_id, "blob": id}).depth
    return id, depth


def put_first(tx: Transaction, chain_id: str, texts: Iterable[str]) -> None:
    """Store the first texts of a chain, each whole, at once."""
    rows = [
        {"chain_id": chain_id, "id": blob_id(text), "base": None, "depth": 0, "data": deltas.pack(text.encode(), None)}
        for text in dict.fromkeys(texts)
    ]
    tx.run(_INSERT, rows)


def read_all(tx: Transaction, chain_id: str, ids: Iterable[bytes]) -> dict[bytes, str]:
    """Return texts of the chain by their ids, in fewer statements than one by one. Raises as `read` does."""
    wanted = dict.fromkeys(ids)
    rows: dict[bytes, Any] = {}
    texts: dict[bytes, bytes] = {}
    for id in wanted:
        if id not in rows:
            rows |= {row.id: row for row in tx.all(_LINEAGE, {"chain_id": chain_id, "blob": id})}
        line = [id]
        while line[-1] in rows and line[-1] not in texts and rows[line[-1]].base is not None:
            line.append(rows[line[-1]].base)
        if line[-1] not in rows:
            raise NotFound(f"There is no text {id.hex()} in this memory.")
        for one in reversed(line):
            if one not in texts:
                row = rows[one]
                texts[one] = deltas.unpack(row.data, texts.get(row.base))
    if damaged := next((id for id in wanted if blob_id(texts[id].decode()) != id), None):
        raise Conflict(f"The stored text {damaged.hex()} is damaged. Restore a backup.")
    return {id: texts[id].decode() for id in wanted}


def read(tx: Transaction, chain_id: str, id: bytes) -> str:
    """Return a text of the chain. Raises NotFound, Conflict where the stored text is damaged."""
    return read_all(tx, chain_id, [id])[id]
