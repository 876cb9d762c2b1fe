"""Records of imported items, reports on them, and waiting uploads."""

from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from sqlalchemy import Column, LargeBinary, UniqueConstraint, bindparam, delete, insert, select

from ricordo.domain.ids import is_id
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.storage import jobs
from ricordo.storage.engine.repository import equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import (
    json_value,
    numbers,
    root,
    seq,
    strings,
    table,
    timestamps,
)

# One row for each imported item, written in the transaction that imports it. Its id is computed
# from the organization, the source and the item's name in the source. Reports are sums of these
# rows.
imported_items = table(
    "imported_items",
    *root(),
    *strings("source", null=False, erasure="keep"),
    *strings("item", null=False),
    json_value("outcome"),
    *strings("user_id"),
    *timestamps("created_at"),
    UniqueConstraint("organization_id", "source", "item"),
    erasure="delete",
)
# The bytes of an upload, by the id of the job that imports it.
import_parts = table(
    "import_parts",
    seq(),
    *strings("job_id", null=False, erasure="keep"),
    *strings("user_id"),
    *numbers("number"),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("job_id", "number"),
    erasure="delete",
)
TABLES = (imported_items, import_parts)
_PART = 1024 * 1024  # bytes in one row of an upload
_MOST_NAMES = 5  # the most names that a report gives for each reason
# The item that holds the refusals of the last run. No item of an export has an empty name.
_REFUSED = ""
_FORMER_REFUSED = "refused"  # its name in older records; a chat may have it too


@dataclass(slots=True)
class Outcome:
    """Counts of imported items by kind, and the items that were left out.

    Each item that was left out has a kind, a name and a reason.
    """

    counts: dict[str, int] = field(default_factory=dict)
    left_out: list[tuple[str, str, str]] = field(default_factory=list)

    def take(self, kind: str, count: int = 1) -> None:
        """Count imported items.

        Args:
            kind: The kind in the report, such as "agents".
            count: The number of items.
        """
        self.counts[kind] = self.counts.get(kind, 0) + count

    def leave(self, kind: str, name: str, reason: str) -> None:
        """Note an item that was left out.

        Args:
            kind: The kind in the report, such as "agents".
            name: The name of the item for people, cut to 200 characters; "" for none.
            reason: The reason as a sentence, cut to 500 characters.
        """
        self.left_out.append((kind, _printable(name)[:200], _printable(reason)[:500]))


def _printable(text: str) -> str:
    """Return a text from elsewhere without control characters that a terminal would obey."""
    return "".join(character if character.isprintable() else " " for character in text)


_ITEMS = select(imported_items.c.item, imported_items.c.outcome).where(
    equal(imported_items, "organization_id", "source")
)
_ITEM = _ITEMS.where(equal(imported_items, "item"))
_ORDERED = _ITEMS.order_by(imported_items.c.seq)
_PARTS = (
    select(import_parts.c.data).where(equal(import_parts, "job_id")).order_by(import_parts.c.number)
)
_DELETE_LEFT = delete(import_parts).where(import_parts.c.job_id.not_in(jobs.OPEN_IDS))
_DELETE_PARTS = delete(import_parts).where(import_parts.c.job_id == bindparam("of_job"))


def made_id(organization_id: str, kind: str, *names: str) -> str:
    """Return an id that is computed from an item's name in its source.

    The same name always has the same id.

    Args:
        organization_id: The organization that gets the item.
        kind: The prefix of the id, such as "agent".
        *names: The parts of the name.
    """
    hashed = uuid5(NAMESPACE_URL, "/".join((organization_id, kind, *names)))
    return f"{kind}-{UUID(bytes=hashed.bytes, version=4)}"


def kept_id(organization_id: str, kind: str, id: str) -> str:
    """Return the item's id in its source if this server can use it, else a computed id.

    Ids are unique among all organizations, so only the local organization gets ids of a source.

    Args:
        organization_id: The organization that gets the item.
        kind: The prefix of the id, such as "agent".
        id: The id in the source; another form than this server's is replaced.
    """
    is_kept = organization_id == LOCAL_ORGANIZATION and is_id(id, kind)
    if is_kept:
        return id
    return made_id(organization_id, kind, id)


def done_items(tx: Transaction, organization_id: str, source: str) -> dict[str, str]:
    """Return the items imported from a source, each with its state at the time of import.

    Args:
        tx: The transaction, or a read.
        organization_id: The organization that got the items.
        source: The source, such as "letta".
    """
    rows = tx.all(_ITEMS, {"organization_id": organization_id, "source": source})
    return {row.item: row.outcome["state"] for row in rows}


def insert_item(
    tx: Transaction,
    scope: Scope,
    source: str,
    *,
    item: str,
    outcome: Outcome,
    state: str = "",
    user_id: str | None = None,
) -> None:
    """Record that the item was imported in this state.

    Args:
        tx: The transaction that imports the item.
        scope: The caller, whose organization gets the item.
        source: The source, such as "letta".
        item: The name of the item in the source.
        outcome: The counts, and the parts that were left out.
        state: A text that a later import compares, to detect a change of the item in the source.
        user_id: The user with whom the record is erased, or None.

    Raises:
        Collision: It was recorded before; that undoes the transaction.
    """
    row = {
        "id": made_id(scope.organization_id, "import", source, item),
        "organization_id": scope.organization_id,
        "source": source,
        "item": item,
        "outcome": {"taken": outcome.counts, "left_out": outcome.left_out, "state": state},
        "user_id": user_id,
        "created_at": tx.clock.now(),
    }
    tx.run(insert(imported_items), row)


def forget_items(
    tx: Transaction, organization_id: str, source: str, item: str | None = None
) -> None:
    """Delete the record of this item, or of all items of the source.

    Args:
        tx: The transaction.
        organization_id: The organization that got the items.
        source: The source, such as "letta".
        item: The name of the item in the source; None for all.
    """
    statement = delete(imported_items).where(imported_items.c.organization_id == organization_id)
    statement = statement.where(imported_items.c.source == source)
    if item is not None:
        statement = statement.where(imported_items.c.item == item)
    tx.run(statement)


def note_refused(tx: Transaction, scope: Scope, source: str, refused: Outcome) -> None:
    """Record the items that the last run could not import.

    They replace those of the run before. The next run tries them again.

    Args:
        tx: The transaction.
        scope: The caller, whose organization gets the items.
        source: The source, such as "letta".
        refused: The items with the reasons.
    """
    forget_items(tx, scope.organization_id, source, _REFUSED)
    parameters = {"organization_id": scope.organization_id, "source": source}
    former = tx.first(_ITEM, parameters | {"item": _FORMER_REFUSED})
    if former and not former.outcome["taken"]:
        forget_items(tx, scope.organization_id, source, _FORMER_REFUSED)
    insert_item(tx, scope, source, item=_REFUSED, outcome=refused, user_id=scope.subject)


def report_of(tx: Transaction, organization_id: str, source: str) -> dict[str, Any]:
    """Return the report on all imports from a source.

    Args:
        tx: The transaction, or a read.
        organization_id: The organization that got the items.
        source: The source, such as "letta".

    Returns:
        The `source`; `taken`, the counts by kind; and `left_out`: for each kind (`what`) and
        `reason` the `count` and at most five `names`.
    """
    counts: dict[str, int] = {}
    names_by_reason: dict[tuple[str, str], list[str]] = {}
    for row in tx.all(_ORDERED, {"organization_id": organization_id, "source": source}):
        for kind, count in row.outcome["taken"].items():
            counts[kind] = counts.get(kind, 0) + count
        for kind, name, reason in row.outcome["left_out"]:
            names_by_reason.setdefault((kind, reason), []).append(name)
    return {
        "source": source,
        "taken": dict(sorted(counts.items())),
        "left_out": [
            {
                "what": kind,
                "reason": reason,
                "count": len(names),
                "names": sorted(filter(None, names))[:_MOST_NAMES],
            }
            for (kind, reason), names in sorted(names_by_reason.items())
        ],
    }


def report_text(report: dict[str, Any]) -> str:
    """Return the report as lines for a terminal.

    Args:
        report: The report, from `report_of`.
    """
    lines = [f"Imported from {report['source'].partition(':')[0]}:"]
    lines += [f"  {count:,} {kind}" for kind, count in report["taken"].items()] or ["  nothing"]
    if report["left_out"]:
        lines.append("Left out:")
    for entry in report["left_out"]:
        names = ", ".join(entry["names"]) + (
            " …" if entry["count"] > len(entry["names"]) > 0 else ""
        )
        in_brackets = f" ({names})" if names else ""
        lines.append(f"  {entry['count']:,} {entry['what']}{in_brackets}: {entry['reason']}")
    return "\n".join(lines)


def insert_parts(tx: Transaction, job: Job, upload: bytes) -> None:
    """Store the upload of a job.

    Args:
        tx: The transaction.
        job: The job that imports the upload.
        upload: The bytes of the upload, which are stored in rows of 1 MB.
    """
    starts = range(0, max(len(upload), 1), _PART)
    owner_fields = {"job_id": job.id, "user_id": job.user_id}
    tx.run(
        insert(import_parts),
        [
            owner_fields | {"number": start // _PART, "data": upload[start : start + _PART]}
            for start in starts
        ],
    )


def delete_left_uploads(tx: Transaction) -> None:
    """Delete the uploads whose job has ended or was deleted."""
    tx.run(_DELETE_LEFT)


def read_upload(tx: Transaction, job_id: str) -> bytes:
    """Return the bytes of a job's upload, which are empty if it has no upload.

    Args:
        tx: The transaction, or a read.
        job_id: The job that imports the upload.
    """
    return b"".join(row.data for row in tx.all(_PARTS, {"job_id": job_id}))


def delete_upload(tx: Transaction, job_id: str) -> None:
    """Delete the upload of a job.

    Args:
        tx: The transaction.
        job_id: The job that imported the upload.
    """
    tx.run(_DELETE_PARTS, {"of_job": job_id})
