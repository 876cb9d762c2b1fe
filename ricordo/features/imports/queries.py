"""What was taken already, in a table of its own, reports on it, and uploads that wait."""

from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from sqlalchemy import Column, LargeBinary, UniqueConstraint, bindparam, delete, insert, select

from ricordo.domain.ids import is_id
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
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
from ricordo.storage.schema.core_tables import jobs

# What was taken of one thing elsewhere, written in the transaction that took it. Its id is made of the organization, the source
# and the name it has there. Reports are sums of these rows.
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
# The bytes of an upload, by the id of the job that takes it in.
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
_PART = 1024 * 1024  # bytes of one row of an upload
_SHOWN = 5  # names of each reason in a report
_REFUSED = "refused"


@dataclass(slots=True)
class Outcome:
    """What was taken, in numbers by kind, and what was not: its kind, its name and the reason."""

    taken: dict[str, int] = field(default_factory=dict)
    left_out: list[tuple[str, str, str]] = field(default_factory=list)

    def take(self, kind: str, count: int = 1) -> None:
        self.taken[kind] = self.taken.get(kind, 0) + count

    def leave(self, kind: str, name: str, reason: str) -> None:
        self.left_out.append((kind, _shown(name)[:200], _shown(reason)[:500]))


def _shown(text: str) -> str:
    """What comes from elsewhere, without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


_ITEMS = select(imported_items.c.item, imported_items.c.outcome).where(
    equal(imported_items, "organization_id", "source")
)
_ORDERED = _ITEMS.order_by(imported_items.c.seq)
_PARTS = (
    select(import_parts.c.data).where(equal(import_parts, "job_id")).order_by(import_parts.c.number)
)
_OPEN_JOBS = select(jobs.c.id).where(jobs.c.status.in_(("waiting", "running")))
_DELETE_LEFT = delete(import_parts).where(import_parts.c.job_id.not_in(_OPEN_JOBS))
_DELETE_PARTS = delete(import_parts).where(import_parts.c.job_id == bindparam("of_job"))


def made_id(organization_id: str, kind: str, *names: str) -> str:
    """Return the id here of something that has this name elsewhere: always the same."""
    return f"{kind}-{UUID(bytes=uuid5(NAMESPACE_URL, '/'.join((organization_id, kind, *names))).bytes, version=4)}"


def kept_id(organization_id: str, kind: str, id: str) -> str:
    """Return the same id where it can be one here, else one that is made of it. Ids are unique among all organizations."""
    is_kept = organization_id == LOCAL_ORGANIZATION and is_id(id, kind)
    return id if is_kept else made_id(organization_id, kind, id)


def done_items(tx: Transaction, organization_id: str, source: str) -> dict[str, str]:
    """Return what was taken from a source, each with the state in which it was."""
    rows = tx.all(_ITEMS, {"organization_id": organization_id, "source": source})
    return {row.item: row.outcome["state"] for row in rows}


def insert_item(
    tx: Transaction,
    scope: Scope,
    source: str,
    item: str,
    outcome: Outcome,
    *,
    state: str = "",
    user_id: str | None = None,
) -> None:
    """Note that this was taken, in this state. Raises Collision where it was already, so that the transaction is undone."""
    row = {
        "id": made_id(scope.organization_id, "import", source, item),
        "organization_id": scope.organization_id,
        "source": source,
        "item": item,
        "outcome": {"taken": outcome.taken, "left_out": outcome.left_out, "state": state},
        "user_id": user_id,
        "created_at": tx.clock.now(),
    }
    tx.run(insert(imported_items), row)


def forget_items(
    tx: Transaction, organization_id: str, source: str, item: str | None = None
) -> None:
    """Forget that this was taken, or all of the source."""
    them = delete(imported_items).where(imported_items.c.organization_id == organization_id)
    them = them.where(imported_items.c.source == source)
    tx.run(them if item is None else them.where(imported_items.c.item == item))


def note_refused(tx: Transaction, scope: Scope, source: str, refused: Outcome) -> None:
    """Keep what could not be taken in the last run, which the next tries again."""
    forget_items(tx, scope.organization_id, source, _REFUSED)
    insert_item(tx, scope, source, _REFUSED, refused, user_id=scope.subject)


def report_of(tx: Transaction, organization_id: str, source: str) -> dict[str, Any]:
    """Return the report on all that was ever taken from a source, and what was left out."""
    taken: dict[str, int] = {}
    left: dict[tuple[str, str], list[str]] = {}
    for row in tx.all(_ORDERED, {"organization_id": organization_id, "source": source}):
        for kind, count in row.outcome["taken"].items():
            taken[kind] = taken.get(kind, 0) + count
        for kind, name, reason in row.outcome["left_out"]:
            left.setdefault((kind, reason), []).append(name)
    return {
        "source": source,
        "taken": dict(sorted(taken.items())),
        "left_out": [
            {
                "what": kind,
                "reason": reason,
                "count": len(names),
                "names": sorted(filter(None, names))[:_SHOWN],
            }
            for (kind, reason), names in sorted(left.items())
        ],
    }


def report_text(report: dict[str, Any]) -> str:
    lines = [f"Taken from {report['source'].partition(':')[0]}:"]
    lines += [f"  {count:,} {kind}" for kind, count in report["taken"].items()] or ["  nothing"]
    if report["left_out"]:
        lines.append("Left out:")
    for one in report["left_out"]:
        names = ", ".join(one["names"]) + (" …" if one["count"] > len(one["names"]) > 0 else "")
        lines.append(
            f"  {one['count']:,} {one['what']}{f' ({names})' if names else ''}: {one['reason']}"
        )
    return "\n".join(lines)


def insert_parts(tx: Transaction, job: Job, data: bytes) -> None:
    """Store the upload of a job, and delete those whose jobs were cancelled."""
    tx.run(_DELETE_LEFT)
    starts = range(0, max(len(data), 1), _PART)
    owned = {"job_id": job.id, "user_id": job.user_id}
    tx.run(
        insert(import_parts),
        [owned | {"number": at // _PART, "data": data[at : at + _PART]} for at in starts],
    )


def read_upload(tx: Transaction, job_id: str) -> bytes:
    return b"".join(row.data for row in tx.all(_PARTS, {"job_id": job_id}))


def delete_upload(tx: Transaction, job_id: str) -> None:
    tx.run(_DELETE_PARTS, {"of_job": job_id})
