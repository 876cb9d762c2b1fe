"""What keeps the search index in order: which partitions need work, and the short transactions that do it.

`search.py` is the door for those who store and search; this one is for the jobs behind them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import String, bindparam, cast, delete, func, literal, null, select, union_all

from ricordo.domain.job import Job
from ricordo.search import schedule
from ricordo.search.query import Batch
from ricordo.search.write_buffer import unpack
from ricordo.storage import jobs
from ricordo.storage.search_tables import search_buffer, search_partitions, search_vectors
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import agents, archives, messages, passages

if TYPE_CHECKING:
    from ricordo.search.flush import Packed
    from ricordo.search.removing import Leaving, State, Write

EMBED = "search.embed"
SWEEP = "search.sweep"
# So many rows of a buffer are looked at together for what leaves the partition, as long as nobody outside has to hear of it.
LOOKED_AT = 4096

_IDS = each(bindparam("ids", type_=messages.c.parts.type))
_HOME = union_all(
    select(
        archives.c.organization_id,
        cast(archives.c.embedding, String).label("embedding"),
        cast(archives.c.vector_db, String).label("vector_db"),
    ).where(archives.c.id == bindparam("owner_id")),
    select(agents.c.organization_id, agents.c.embedding, null()).where(agents.c.id == bindparam("owner_id")),
)
_MESSAGES = select(
    messages.c.seq,
    messages.c.text,
    messages.c.name,
    messages.c.created_at,
    messages.c.role,
    messages.c.conversation_id.label("thread"),
    messages.c.user_id,
).where(messages.c.seq.op("IN")(_IDS))
_PASSAGES = select(
    passages.c.seq,
    passages.c.text,
    literal("").label("name"),
    passages.c.created_at,
    literal("").label("role"),
    literal("").label("thread"),
    passages.c.user_id,
    passages.c.tags,
).where(passages.c.seq.op("IN")(_IDS))
_OLDEST = (
    select(search_buffer.c.seq, search_buffer.c.document, search_buffer.c.data)
    .where(search_buffer.c.owner_id == bindparam("owner_id"))
    .order_by(search_buffer.c.seq)
    .limit(bindparam("most"))
)
_MODELS = (
    select(search_vectors.c.embedding)
    .join(search_partitions, search_partitions.c.seq == search_vectors.c.partition)
    .where(search_partitions.c.owner_id == bindparam("owner_id"))
    .distinct()
)
_PARTITION = select(search_partitions).where(search_partitions.c.owner_id == bindparam("owner_id"))
_PARTITION_HELD = _PARTITION.with_for_update()
_KNOWN = union_all(select(search_partitions.c.owner_id), select(search_buffer.c.owner_id)).subquery()
_SOME_OWNERS = (
    select(_KNOWN.c.owner_id)
    .where(_KNOWN.c.owner_id > bindparam("after"))
    .distinct()
    .order_by(_KNOWN.c.owner_id)
    .limit(bindparam("most"))
)
_STATES = select(search_partitions).where(search_partitions.c.owner_id.op("IN")(_IDS))
_BUFFERS = (
    select(search_buffer.c.owner_id, func.count().label("rows"))
    .where(search_buffer.c.owner_id.op("IN")(_IDS))
    .group_by(search_buffer.c.owner_id)
)
_DROP_MODEL = delete(search_vectors).where(
    search_vectors.c.partition == bindparam("partition"), search_vectors.c.embedding == bindparam("embedding")
)


@dataclass(frozen=True, slots=True)
class Home:
    """Whose documents a partition holds: the owner's organisation, the model it names, and where it wants its vectors kept."""

    organization_id: str
    embedding: str | None
    vector_db: str | None


@dataclass(frozen=True, slots=True)
class Document:
    """A message or passage as it is embedded, with what outside indexes filter by."""

    number: int
    text: str
    created_at: int
    role: str
    thread: str
    user_id: str | None
    tags: tuple[str, ...]


def kind_of(owner_id: str) -> str:
    """What kind of documents a partition holds, by the id of its owner."""
    return "messages" if owner_id.startswith("agent-") else "passages"


def flush(tx: Transaction, kind: str, owner_id: str) -> int:
    """Pack the oldest rows of a partition's buffer; returns how many they were."""
    from ricordo.search import flush as flushing

    return flushing.flush(tx, kind, owner_id)


def packed(tx: Transaction, kind: str, owner_id: str) -> "Packed | None":
    """The oldest rows of a partition's buffer, ready for `write_packed`; None where there is none. It only reads."""
    from ricordo.search import flush as flushing

    return flushing.packed(tx, kind, owner_id)


def has_few_waiting(tx: Transaction, owner_id: str) -> bool:
    """Whether rows wait in a partition's buffer, but fewer than one flush takes."""
    from ricordo.search import flush as flushing

    return 0 < flushing.waiting(tx, owner_id) < flushing.FLUSHED_AT_ONCE


def write_packed(tx: Transaction, packed: "Packed") -> bool:
    """Write what was packed; False, and nothing is changed, where another was quicker."""
    from ricordo.search import flush as flushing

    return flushing.write(tx, packed)


def taking_out(tx: Transaction, owner_id: str, *, is_told: bool) -> "Leaving | None":
    """What is to be taken out of a partition, by the oldest rows of its buffer; None where nothing is. It only reads.

    With `is_told` no more than `leaving` tells of, which an outside index has heard.
    """
    from ricordo.search import removing
    from ricordo.search.flush import FLUSHED_AT_ONCE

    return removing.leaving(tx, owner_id, FLUSHED_AT_ONCE if is_told else LOOKED_AT)


def write_step(tx: Transaction, owner_id: str, state: "State", write: "Write") -> "State | None":
    """Write a part of that, made when the partition was in this state; the state after it, None where it is another by now."""
    from ricordo.search import removing

    return removing.write(tx, owner_id, state, write)


def home_of(tx: Transaction, owner_id: str) -> Home | None:
    """What the partition's owner says of it; None where the owner is deleted."""
    row = tx.first(_HOME, {"owner_id": owner_id})
    return Home(row.organization_id, row.embedding, row.vector_db) if row else None


def next_batch(tx: Transaction, owner_id: str, embedding: str, most: int) -> Batch | None:
    """The next documents to embed with this model; None where all flushed ones have their vectors."""
    from ricordo.search import vector_store as vectors

    return vectors.next_batch(tx, owner_id, embedding, most)


def documents_of(tx: Transaction, batch: Batch) -> list[Document]:
    """The documents of a batch that are still there. A message is embedded with the name of who said it."""
    statement = _MESSAGES if batch.kind == "messages" else _PASSAGES
    rows = tx.all(statement, {"ids": [number for number in batch.documents if number is not None]})
    return [
        Document(
            row.seq,
            f"{row.name}: {row.text}" if row.name else row.text,
            row.created_at,
            row.role,
            row.thread,
            row.user_id,
            tuple(getattr(row, "tags", ())),
        )
        for row in rows
    ]


def add_vectors(tx: Transaction, batch: Batch, vectors: Mapping[int, Sequence[float]], size: int) -> bool:
    """Store the vectors, of this size, of a batch's documents by their numbers; True where the model now serves searches."""
    from ricordo.search import vector_store

    return vector_store.add_vectors(tx, batch, vectors, size)


def partition_of(tx: Transaction, owner_id: str) -> Any:
    """The row of the owner's partition; None where it has none yet."""
    return tx.first(_PARTITION, {"owner_id": owner_id})


def lock_partition(tx: Transaction, owner_id: str) -> Any:
    """The same, held until the transaction ends."""
    return tx.first(_PARTITION_HELD, {"owner_id": owner_id})


def delete_vectors(tx: Transaction, partition: Any, model: str) -> None:
    """Delete the vectors of one model from a partition that is held."""
    tx.run(_DROP_MODEL, {"partition": partition.seq, "embedding": model})


def drop_vectors_of(tx: Transaction, owner_id: str, model: str) -> None:
    """Delete the vectors of one model. If it serves, searches go on with words alone until there are new ones."""
    partition = lock_partition(tx, owner_id)
    if partition is None:
        return
    delete_vectors(tx, partition, model)
    if partition.embedding == model:
        from ricordo.search import vector_store

        vector_store.serve(tx, partition, None, 0)


def other_models(tx: Transaction, owner_id: str) -> list[str]:
    """The models whose vectors are kept though they do not serve."""
    partition = partition_of(tx, owner_id)
    rows = tx.all(_MODELS, {"owner_id": owner_id}) if partition and partition.embedding else []
    return [row.embedding for row in rows if row.embedding != partition.embedding]


def leaving(tx: Transaction, owner_id: str) -> tuple[list[int], list[str]]:
    """The documents that the next flush takes out of the partition, and the models that may have vectors of them."""
    from ricordo.search.flush import FLUSHED_AT_ONCE

    # Not the whole buffer, which may be long: each flush asks again.
    oldest = tx.all(_OLDEST, {"owner_id": owner_id, "most": FLUSHED_AT_ONCE})
    rows = [unpack(row.seq, row.document, row.data) for row in oldest]
    deleted = [row.document for row in rows if row.is_deleted]
    return deleted, [row.embedding for row in tx.all(_MODELS, {"owner_id": owner_id})] if deleted else []


def ask_to_embed(tx: Transaction, organization_id: str, owner_id: str) -> None:
    """Ask that the partition's documents get their vectors, unless somebody has asked."""
    job = Job(EMBED, organization_id, {"owner_id": owner_id}, key=f"{EMBED}:{owner_id}", is_single=True)
    jobs.add(tx, job)


def owners(tx: Transaction, after: str, most: int) -> list[str]:
    """The owners of partitions and buffers, in the order of their ids."""
    return [row.owner_id for row in tx.all(_SOME_OWNERS, {"after": after, "most": most})]


def ask_where_needed(tx: Transaction, owner_ids: Sequence[str], wanted: Callable[[str | None], str | None]) -> None:
    """Ask for the flushes and vectors that these partitions lack; `wanted` gives the model for what an owner names."""
    buffers = {row.owner_id: row.rows for row in tx.all(_BUFFERS, {"ids": list(owner_ids)})}
    states: dict[str, Any] = {row.owner_id: row for row in tx.all(_STATES, {"ids": list(owner_ids)})}
    for owner_id in owner_ids:
        home = home_of(tx, owner_id)
        if home is None:
            continue
        if buffers.get(owner_id):
            schedule.ask(tx, kind_of(owner_id), owner_id, home.organization_id)
        state, model = states.get(owner_id), wanted(home.embedding)
        if state and model and (state.embedding != model or state.vectors < state.documents):
            ask_to_embed(tx, home.organization_id, owner_id)
