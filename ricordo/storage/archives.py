"""Archives and their passages. An archive's row carries the count and the set of tags of its passages, for the prompt."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, bindparam, delete, insert, select

from ricordo.domain.passage import Archive, Passage
from ricordo.domain.scope import Scope
from ricordo.storage import search
from ricordo.storage.paging import Page, read_page
from ricordo.storage.rows import found, setter
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import agents_archives, archives, passages, passages_tags

COLUMNS = [column for column in archives.c if column.name != "seq"]
_SELECT = select(passages)
_IDS = each(bindparam("ids", type_=passages.c.metadata.type))
_BY_IDS = _SELECT.where(passages.c.id.op("IN")(_IDS))
_ARCHIVES_OF_AGENT = (
    select(*COLUMNS)
    .join(agents_archives, agents_archives.c.archive_id == archives.c.id)
    .where(agents_archives.c.agent_id == bindparam("agent_id"))
    .order_by(agents_archives.c.seq)
)
_INSERT, _ATTACH = insert(archives), insert(agents_archives)
_INSERT_PASSAGE, _INSERT_TAG = insert(passages), insert(passages_tags)
_COUNTED = setter(archives, "updated_at", where=archives.c.id == bindparam("archive_id")).values(
    passage_count=archives.c.passage_count + bindparam("added")
)
_COUNTED_AND_TAGGED = _COUNTED.values(tags=bindparam("new_tags"))
_TAGS_IN_USE = (
    select(passages_tags.c.tag)
    .where(passages_tags.c.archive_id == bindparam("archive_id"))
    .distinct()
    .order_by(passages_tags.c.tag)
)
_DELETE = delete(passages).where(passages.c.id == bindparam("passage_id"))


def insert_one(tx: Transaction, archive: Archive, *, owner: str, holding: Sequence[Passage] = ()) -> Archive:
    """Store a new archive with its first passages and attach it to the agent that owns it; returns it with count and tags."""
    tags = tuple(sorted({tag for passage in holding for tag in passage.tags}))
    archive = replace(archive, passage_count=len(holding), tags=tags)
    tx.run(_INSERT, {column.name: getattr(archive, column.name) for column in COLUMNS} | {"tags": list(archive.tags)})
    tx.run(_ATTACH, {"agent_id": owner, "archive_id": archive.id, "is_owner": True})
    _put(tx, archive, holding)
    return archive


def of_agent(tx: Transaction, agent_id: str) -> list[Archive]:
    """The archives attached to the agent, in the order of attachment."""
    return [from_values(row._asdict()) for row in tx.all(_ARCHIVES_OF_AGENT, {"agent_id": agent_id})]


def insert_passages(tx: Transaction, archive: Archive, new: Sequence[Passage]) -> Archive:
    """Store and index passages; returns the archive with its new count and tags."""
    if not new:
        return archive
    _put(tx, archive, new)
    return _recount(tx, archive, len(new), tagged=any(passage.tags for passage in new))


def _put(tx: Transaction, archive: Archive, new: Sequence[Passage]) -> None:
    if not new:
        return
    tx.run(_INSERT_PASSAGE, [_values(passage) for passage in new])
    tx.run(
        _INSERT_TAG,
        [{"passage_id": passage.id, "archive_id": archive.id, "tag": tag} for passage in new for tag in passage.tags],
    )
    search.index_passages(tx, [passage.id for passage in new])


def passages_by_ids(tx: Transaction, ids: Sequence[str]) -> list[Passage]:
    """The passages with these ids, in their order; ids that are gone are left out."""
    rows = {row.id: _passage(row) for row in tx.all(_BY_IDS, {"ids": list(ids)})}
    return [rows[id] for id in ids if id in rows]


def page_of_passages(
    tx: Transaction, archive_ids: Sequence[str], wanted: Page, *, search_text: str | None = None
) -> list[Passage]:
    """One page of the passages in these archives; `search_text` looks for a piece of the text."""
    statement = _SELECT.where(passages.c.archive_id.in_(archive_ids))
    if search_text:
        statement = statement.where(passages.c.text.icontains(search_text, autoescape=True))
    return [_passage(row) for row in read_page(tx, statement, passages, wanted)]


def delete_passage(tx: Transaction, scope: Scope, attached: Sequence[Archive], passage_id: str) -> None:
    """Delete one passage of these archives; raises NotFound."""
    held = {archive.id: archive for archive in attached if archive.organization_id == scope.organization_id}
    passage = next((p for p in passages_by_ids(tx, [passage_id]) if p.archive_id in held), None)
    passage = found(passage, "Passage", passage_id)
    archive = held[passage.archive_id]
    search.forget_passages(tx, [passage_id])
    tx.run(_DELETE, {"passage_id": passage_id})
    _recount(tx, archive, -1, tagged=bool(passage.tags))


def from_values(values: dict[str, Any]) -> Archive:
    """An archive from the columns of its row."""
    values["tags"] = tuple(values["tags"])
    return Archive(**values)


def _recount(tx: Transaction, archive: Archive, added: int, *, tagged: bool) -> Archive:
    now = tx.clock.now()
    values = {"archive_id": archive.id, "new_updated_at": now, "added": added}
    archive = replace(archive, passage_count=archive.passage_count + added, updated_at=now)
    if not tagged:
        tx.run(_COUNTED, values)
        return archive
    # Read anew: other agents may have filed under other tags since `archive` was loaded.
    tags = tuple(row.tag for row in tx.all(_TAGS_IN_USE, {"archive_id": archive.id}))
    tx.run(_COUNTED_AND_TAGGED, {**values, "new_tags": list(tags)})
    return replace(archive, tags=tags)


def _values(passage: Passage) -> dict[str, Any]:
    values = {column.name: getattr(passage, column.name) for column in passages.c if column.name != "seq"}
    return values | {"tags": list(passage.tags)}


def _passage(row: Row[Any]) -> Passage:
    values = row._asdict()
    values["tags"] = tuple(values["tags"])
    return Passage(**values)
