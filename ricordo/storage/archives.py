"""Archives and their passages. An archive's row carries the count and the tags of its shared passages, for prompts.

What it says does not move with what is filed for one user: others see the archive too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlalchemy import delete, insert, select

from ricordo.domain.passage import Archive, Passage
from ricordo.domain.redaction import redact, redact_values
from ricordo.domain.scope import Scope
from ricordo.domain.text import normal_json, normal_text
from ricordo.errors import Forbidden
from ricordo.storage.agent_access import may_use
from ricordo.storage.engine.repository import Page, Repository, equal, found, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import (
    agents,
    agents_archives,
    archives,
    passages,
    passages_tags,
)

ROWS = Repository(Archive, archives)
_PASSAGES = Repository(Passage, passages, long="text")
# The archive of a folder of files has the folder's id. It is reached by the folder alone: the folder may be one user's.
FOLDER = "source-"
_NOT_FOLDER = f"{FOLDER}%"
_IS_ARCHIVE = archives.c.id.not_like(_NOT_FOLDER)
_VECTOR_DBS = select(archives.c.id, archives.c.vector_db).where(one_of(archives.c.id, "ids"))
_ATTACHED_ARCHIVES = ROWS.select.join(
    agents_archives, agents_archives.c.archive_id == archives.c.id
).where(equal(agents_archives, "agent_id"))
_OF_AGENT = _ATTACHED_ARCHIVES.order_by(agents_archives.c.seq)
# Taken before the count or the tags are changed; databases with one writer need no lock and take none.
_LOCK = ROWS.select.where(equal(archives, "id", "organization_id")).with_for_update()
# Of the agent's own attachment too: else one that is taken away at this very moment would be seen too late.
_LOCK_FOR_AGENT = _ATTACHED_ARCHIVES.where(
    equal(archives, "id", "organization_id")
).with_for_update()
_ATTACH = insert(agents_archives)
_ATTACHED = select(agents_archives.c.seq).where(equal(agents_archives, "agent_id", "archive_id"))
_DETACH = delete(agents_archives).where(equal(agents_archives, "agent_id", "archive_id"))
_INSERT_TAG = insert(passages_tags)
_TAG_IN_USE = select(passages_tags.c.tag).where(
    equal(passages_tags, "archive_id", "tag"), passages_tags.c.user_id.is_(None)
)
_DELETE = delete(passages).where(equal(passages, "id"))


def insert_one(
    tx: Transaction, archive: Archive, *, owner: str | None = None, holding: Sequence[Passage] = ()
) -> Archive:
    """Store an archive with passages, attached to its agent, not indexed (see `search.index.insert_archive`); returns it."""
    holding = redacted(holding)
    archive = replace(
        without_secrets(archive),
        passage_count=_shared(holding),
        tags=tuple(sorted(_shared_tags(holding))),
    )
    ROWS.insert(tx, archive)
    if owner:
        tx.run(_ATTACH, {"agent_id": owner, "archive_id": archive.id, "is_owner": True})
    _insert_passages(tx, archive, holding)
    return _as_seen(archive, holding, len(holding))


update = ROWS.updates("name", "description", "metadata", "updated_at")
_count = ROWS.updates("passage_count", "tags", "updated_at")
passages_by_ids, passages_by_numbers = _PASSAGES.by_ids, _PASSAGES.by_numbers


def page(
    tx: Transaction,
    scope: Scope,
    wanted: Page,
    *,
    agent_id: str | None = None,
    name: str | None = None,
) -> list[Archive]:
    """Return one page of archives, of those that are attached to this agent and of those with this very name."""
    attached = (
        select(agents_archives.c.archive_id)
        .join(agents, agents.c.id == agents_archives.c.agent_id)
        .where(agents_archives.c.agent_id == agent_id, *may_use(scope))
    )
    of_agent = archives.c.id.in_(attached) if agent_id else None
    return ROWS.page(
        tx,
        scope,
        wanted,
        _IS_ARCHIVE,
        of_agent,
        marked=lambda one: [one.c.id.not_like(_NOT_FOLDER)],
        name=name,
    )


def get(tx: Transaction, scope: Scope, id: str) -> Archive:
    """Return the archive with this id; raises NotFound, also for a folder's."""
    return found(None if id.startswith(FOLDER) else ROWS.find(tx, scope, id), "Archive", id)


def require_changes(scope: Scope, archive: Archive) -> None:
    """Raise Forbidden where the caller neither made the archive nor administers; one of an agent's own is for builders too."""
    is_of_user = (archive.created_by or "").startswith("user-")
    if scope.subject_id is None or scope.role == "admin" or archive.created_by == scope.user_id:
        return
    if is_of_user or scope.role != "developer":
        raise Forbidden(
            "Somebody else made this archive, so your key cannot change it. Ask them, or an administrator."
        )


def ids(tx: Transaction, scope: Scope) -> list[str]:
    return ROWS.ids(tx, scope, _IS_ARCHIVE)


def attach(tx: Transaction, agent_id: str, archive_id: str) -> None:
    values = {"agent_id": agent_id, "archive_id": archive_id}
    if tx.first(_ATTACHED, values) is None:
        tx.run(_ATTACH, {**values, "is_owner": False})


def detach(tx: Transaction, agent_id: str, archive_id: str) -> None:
    tx.run(_DETACH, {"agent_id": agent_id, "archive_id": archive_id})


def of_agent(tx: Transaction, agent_id: str) -> list[Archive]:
    return ROWS.all(tx, _OF_AGENT, {"agent_id": agent_id})


def insert_passages(
    tx: Transaction, archive: Archive, new: Sequence[Passage], *, attached_to: str | None = None
) -> tuple[Archive, Sequence[Passage]]:
    """Store passages without indexing; returns the archive and them, redacted (not a folder's). Raises NotFound where detached."""
    if not new:
        return archive, []
    count = archive.passage_count + len(new)
    # Read again: others may have filed under other tags, detached or deleted it, since `archive` was loaded.
    stored, known = new if archive.id.startswith(FOLDER) else redacted(new), archive.tags
    archive = _lock(tx, archive, attached_to)
    _insert_passages(tx, archive, stored)
    counted = _recount(tx, archive, _shared(stored), {*archive.tags, *_shared_tags(stored)})
    return _as_seen(counted, stored, count, known), stored


def _shared(some: Iterable[Passage]) -> int:
    return sum(passage.user_id is None for passage in some)


def _shared_tags(some: Iterable[Passage]) -> set[str]:
    return {tag for passage in some if passage.user_id is None for tag in passage.tags}


def _as_seen(
    archive: Archive, new: Iterable[Passage], count: int, known: Iterable[str] = ()
) -> Archive:
    """The archive as those see it who have just filed these passages, the last of so many, and knew these tags."""
    tags = {*archive.tags, *known, *(tag for one in new for tag in one.tags)}
    return replace(archive, passage_count=count, tags=tuple(sorted(tags)))


def _insert_passages(tx: Transaction, archive: Archive, new: Sequence[Passage]) -> None:
    _PASSAGES.insert(tx, *new)
    tags = [
        {"passage_id": one.id, "archive_id": archive.id, "user_id": one.user_id, "tag": tag}
        for one in new
        for tag in one.tags
    ]
    tx.run(_INSERT_TAG, tags)


def redacted(new: Iterable[Passage]) -> list[Passage]:
    """The passages, their texts, tags and metadata without secrets."""
    return [
        replace(
            one,
            text=redact(normal_text(one.text)).text,
            tags=tuple(dict.fromkeys(redact_values(normal_json(one.tags, "tags")))),
            metadata=redact_values(normal_json(one.metadata)),
        )
        for one in new
    ]


def without_secrets(archive: Archive) -> Archive:
    texts = {
        name: redact_values(normal_json(getattr(archive, name), name))
        for name in ("name", "description", "metadata")
    }
    return replace(archive, **texts)


def vector_dbs(tx: Transaction, archive_ids: Sequence[str]) -> dict[str, str | None]:
    return {row.id: row.vector_db for row in tx.all(_VECTOR_DBS, {"ids": list(archive_ids)})}


def page_of_passages(
    tx: Transaction,
    archive_ids: Sequence[str],
    wanted: Page,
    *,
    search_text: str | None = None,
    scope: Scope | None = None,
) -> list[Passage]:
    """Return one page of the passages in these archives; `search_text` looks for a piece of the text."""
    is_found = passages.c.text.icontains(search_text, autoescape=True) if search_text else None
    return _PASSAGES.page(tx, scope, wanted, passages.c.archive_id.in_(archive_ids), is_found)


def lock_passage(
    tx: Transaction, scope: Scope, attached: Sequence[Archive], passage_id: str
) -> tuple[Archive, Passage]:
    """Lock the one of these archives that has the passage, and return both; raises NotFound."""
    own = {
        archive.id: archive
        for archive in attached
        if archive.organization_id == scope.organization_id
    }
    passage = next(
        (
            p
            for p in passages_by_ids(tx, [passage_id])
            if p.archive_id in own and scope.sees(p.user_id)
        ),
        None,
    )
    passage = found(passage, "Passage", passage_id)
    scope.require_owns(passage.user_id)
    return _lock(tx, own[passage.archive_id]), passage


def delete_passage(tx: Transaction, archive: Archive, passage: Passage) -> None:
    tx.run(_DELETE, {"id": passage.id})
    own = _shared_tags([passage])
    unused = {
        tag for tag in own if not tx.first(_TAG_IN_USE, {"archive_id": archive.id, "tag": tag})
    }
    _recount(tx, archive, -_shared([passage]), set(archive.tags) - unused)


def _lock(tx: Transaction, archive: Archive, agent_id: str | None = None) -> Archive:
    ids = {"id": archive.id, "organization_id": archive.organization_id}
    row = (
        tx.first(_LOCK_FOR_AGENT, {**ids, "agent_id": agent_id})
        if agent_id
        else tx.first(_LOCK, ids)
    )
    return ROWS.of(found(row, "Archive", archive.id))


def _recount(tx: Transaction, archive: Archive, added: int, tags: Iterable[str]) -> Archive:
    if not added:
        return archive
    count, now = archive.passage_count + added, tx.clock.now()
    archive = replace(archive, passage_count=count, tags=tuple(sorted(tags)), updated_at=now)
    _count(tx, archive)
    return archive
