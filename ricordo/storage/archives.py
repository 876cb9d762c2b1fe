"""Archives and their passages.

An archive's row has the count and tags of its shared passages, for prompts. Passages about one user
do not change the row, since other users see the archive too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, delete, func, insert, select

from ricordo.domain.passage import Archive, Passage
from ricordo.domain.redaction import redact, redact_values
from ricordo.domain.scope import Scope
from ricordo.domain.text import normal_json, normal_text
from ricordo.errors import Forbidden
from ricordo.storage.agent_access import may_use
from ricordo.storage.engine.repository import Page, Repository, equal, one_of, require_found
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
# The archive of a folder of files has the folder's id. The archive is reached only through the
# folder, since the folder may belong to one user.
FOLDER = "source-"
_NOT_FOLDER = f"{FOLDER}%"
_IS_ARCHIVE = archives.c.id.not_like(_NOT_FOLDER)
_VECTOR_DBS = select(archives.c.id, archives.c.vector_db).where(one_of(archives.c.id, "ids"))
_ATTACHED_ARCHIVES = ROWS.select.join(
    agents_archives, agents_archives.c.archive_id == archives.c.id
).where(equal(agents_archives, "agent_id"))
_OF_AGENT = _ATTACHED_ARCHIVES.order_by(agents_archives.c.seq)
_LOCK_PASSAGE = select(passages.c.id).where(equal(passages, "id")).with_for_update()
# Lock the archive before its count or tags change; databases with one writer need no lock.
_LOCK = ROWS.select.where(equal(archives, "id", "organization_id")).with_for_update()
# Also lock the attachment, which another transaction may be removing.
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
    tx: Transaction,
    archive: Archive,
    *,
    owner: str | None = None,
    new_passages: Sequence[Passage] = (),
) -> Archive:
    """Store an archive with its passages, attached to its agent, and return it.

    The passages are not indexed here (see `search.index.insert_archive`).

    Args:
        tx: The transaction.
        archive: The new archive; its count and tags are computed here.
        owner: The id of the agent that owns it and gets it attached; None attaches it to no agent.
        new_passages: Passages of this archive; secrets in them are redacted.

    Returns:
        The archive with the count and the tags of all these passages.
    """
    new_passages = redacted(new_passages)
    archive = replace(
        without_secrets(archive),
        passage_count=_count_shared(new_passages),
        tags=tuple(sorted(_shared_tags(new_passages))),
    )
    ROWS.insert(tx, archive)
    if owner:
        tx.run(_ATTACH, {"agent_id": owner, "archive_id": archive.id, "is_owner": True})
    _insert_passages(tx, archive, new_passages)
    return _as_seen(archive, new_passages, len(new_passages))


update = ROWS.updates("name", "description", "metadata", "updated_at")
_rewrite_passage = _PASSAGES.updates("text", "metadata")
_count = ROWS.updates("passage_count", "tags", "updated_at")
passages_by_ids = _PASSAGES.by_ids
passages_by_numbers = _PASSAGES.by_numbers


def visible_passages(tx: Transaction, scope: Scope, ids: Sequence[str]) -> list[Passage]:
    """Return the passages with these ids that the caller may see, in order.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        ids: The passages.
    """
    return [
        passage
        for passage in passages_by_ids(tx, ids)
        if passage.organization_id == scope.organization_id and scope.sees(passage.user_id)
    ]


def page(
    tx: Transaction,
    scope: Scope,
    page: Page,
    *,
    agent_id: str | None = None,
    name: str | None = None,
) -> list[Archive]:
    """Return one page of archives, without those of folders.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list.
        agent_id: Only archives that are attached to this agent. None or "": any.
        name: Only archives with exactly this name. None: any.
    """
    attached = (
        select(agents_archives.c.archive_id)
        .join(agents, agents.c.id == agents_archives.c.agent_id)
        .where(agents_archives.c.agent_id == agent_id, *may_use(scope))
    )
    if agent_id:
        of_agent = archives.c.id.in_(attached)
    else:
        of_agent = None
    return ROWS.page(
        tx,
        scope,
        page,
        _IS_ARCHIVE,
        of_agent,
        marked=lambda archive: [archive.c.id.not_like(_NOT_FOLDER)],
        name=name,
    )


def get(tx: Transaction, scope: Scope, id: str) -> Archive:
    """Return the archive with this id.

    Args:
        tx: The transaction.
        scope: The caller.
        id: The archive's id.

    Raises:
        NotFound: There is no such archive, or it belongs to a folder of files.
    """
    return require_found(None if id.startswith(FOLDER) else ROWS.find(tx, scope, id), "Archive", id)


def get_for_change(tx: Transaction, scope: Scope, id: str) -> Archive:
    """Lock the archive until this transaction ends, and return it. Raises NotFound."""
    return _lock(tx, get(tx, scope, id))


def require_changes(scope: Scope, archive: Archive) -> None:
    """Raise Forbidden unless the caller may change the archive.

    Its creator, administrators and callers who see the whole organization may change it. Developers
    may also change archives that no user created, such as those of agents.

    Args:
        scope: The caller.
        archive: The archive, which the caller sees.

    Raises:
        Forbidden: The caller may not change it.
    """
    if scope.subject_id is None or scope.role == "admin" or archive.created_by == scope.user_id:
        return
    if (archive.created_by or "").startswith("user-"):
        raise Forbidden(
            "Another user created this archive, so your key cannot change it. Ask that user, or "
            "an administrator."
        )
    if scope.role != "developer":
        raise Forbidden(
            "No user created this archive, so only developers and administrators may change it. "
            "Ask one of them."
        )


def ids(tx: Transaction, scope: Scope) -> list[str]:
    """Return the ids of the organization's archives, without those of folders, the oldest first.

    Args:
        tx: The transaction.
        scope: The caller.
    """
    return ROWS.ids(tx, scope, _IS_ARCHIVE)


def attach(tx: Transaction, agent_id: str, archive_id: str) -> None:
    """Attach the archive to the agent, unless it is attached already.

    The agent does not become the archive's owner.

    Args:
        tx: The transaction.
        agent_id: A stored agent; the caller's access to it is checked before.
        archive_id: A stored archive; checked before too.
    """
    parameters = {"agent_id": agent_id, "archive_id": archive_id}
    if tx.first(_ATTACHED, parameters) is None:
        tx.run(_ATTACH, {**parameters, "is_owner": False})


def detach(tx: Transaction, agent_id: str, archive_id: str) -> None:
    """Detach the archive from the agent, if it is attached.

    Args:
        tx: The transaction.
        agent_id: The agent; the caller's access to it is checked before.
        archive_id: The archive. Its passages stay.
    """
    tx.run(_DETACH, {"agent_id": agent_id, "archive_id": archive_id})


def of_agent(tx: Transaction, agent_id: str) -> list[Archive]:
    """Return the archives that are attached to the agent, in order of attachment.

    Args:
        tx: The transaction.
        agent_id: The agent; the caller's access to it is checked before.
    """
    return ROWS.all(tx, _OF_AGENT, {"agent_id": agent_id})


def insert_passages(
    tx: Transaction,
    archive: Archive,
    passages_to_add: Sequence[Passage],
    *,
    attached_to: str | None = None,
) -> tuple[Archive, Sequence[Passage]]:
    """Store passages without indexing them.

    Args:
        tx: The transaction.
        archive: The archive as the caller loaded it. It is locked and read again.
        passages_to_add: The passages; may be empty.
        attached_to: An agent to which the archive must still be attached; None skips this check.

    Returns:
        The archive, and the passages without secrets. Passages of a folder are stored unchanged.

    Raises:
        NotFound: The archive was deleted, or is no longer attached to this agent.
    """
    if not passages_to_add:
        return archive, []
    count = archive.passage_count + len(passages_to_add)
    old_tags = archive.tags
    if archive.id.startswith(FOLDER):
        stored = passages_to_add
    else:
        stored = redacted(passages_to_add)
    # Read again: since `archive` was loaded, others may have stored passages with other tags, or
    # detached or deleted it.
    archive = _lock(tx, archive, attached_to)
    _insert_passages(tx, archive, stored)
    counted = _recount(tx, archive, _count_shared(stored), {*archive.tags, *_shared_tags(stored)})
    return _as_seen(counted, stored, count, old_tags), stored


def _count_shared(new_passages: Iterable[Passage]) -> int:
    return sum(passage.user_id is None for passage in new_passages)


def _shared_tags(new_passages: Iterable[Passage]) -> set[str]:
    return {tag for passage in new_passages if passage.user_id is None for tag in passage.tags}


def _as_seen(
    archive: Archive, new: Iterable[Passage], count: int, known_tags: Iterable[str] = ()
) -> Archive:
    """Return the archive as the caller sees it right after storing these passages.

    It has the new count, the new tags, and the tags that the caller could see before.
    """
    tags = {*archive.tags, *known_tags, *(tag for passage in new for tag in passage.tags)}
    return replace(archive, passage_count=count, tags=tuple(sorted(tags)))


def _insert_passages(tx: Transaction, archive: Archive, new: Sequence[Passage]) -> None:
    _PASSAGES.insert(tx, *new)
    tags = [
        {"passage_id": passage.id, "archive_id": archive.id, "user_id": passage.user_id, "tag": tag}
        for passage in new
        for tag in passage.tags
    ]
    tx.run(_INSERT_TAG, tags)


def redacted(new: Iterable[Passage]) -> list[Passage]:
    """Return the passages with texts, tags and metadata in normal form and without secrets.

    Args:
        new: Passages to store; they are not changed.
    """
    return [
        replace(
            passage,
            text=redact(normal_text(passage.text)).text,
            tags=tuple(dict.fromkeys(redact_values(normal_json(passage.tags, "tags")))),
            metadata=redact_values(normal_json(passage.metadata)),
        )
        for passage in new
    ]


def without_secrets(archive: Archive) -> Archive:
    """Return the archive with its texts in normal form and without secrets.

    Args:
        archive: The archive, of which name, description and metadata are redacted.
    """
    texts = {
        name: redact_values(normal_json(getattr(archive, name), name))
        for name in ("name", "description", "metadata")
    }
    return replace(archive, **texts)


def vector_dbs(tx: Transaction, archive_ids: Sequence[str]) -> dict[str, str | None]:
    """Return the kind of vector database of each archive, by id.

    A deleted archive is missing.

    Args:
        tx: The transaction.
        archive_ids: The archives, of any organization.

    Returns:
        The stored `vector_db`; None if the archive has none.
    """
    return {row.id: row.vector_db for row in tx.all(_VECTOR_DBS, {"ids": list(archive_ids)})}


def page_of_passages(
    tx: Transaction,
    archive_ids: Sequence[str],
    page: Page,
    *,
    search_text: str | None = None,
    scope: Scope | None = None,
    without: Mapping[str, Sequence[str]] | None = None,
) -> list[Passage]:
    """Return one page of the passages in these archives.

    Args:
        tx: The transaction.
        archive_ids: The archives; the caller's access to them is checked before.
        page: The part of the list.
        search_text: Only passages whose text contains it, in upper or lower case. None or "": all.
        scope: Passages that it does not see are left out; None: all passages are returned.
        without: For each key of the metadata, the values of passages to leave out.
    """
    conditions: list[ColumnElement[bool]] = [passages.c.archive_id.in_(archive_ids)]
    if search_text:
        conditions.append(passages.c.text.icontains(search_text, autoescape=True))
    for key, texts in (without or {}).items():
        value = func.coalesce(passages.c.metadata[key].as_string(), "")
        conditions.append(value.not_in(texts))
    return _PASSAGES.page(tx, scope, page, *conditions)


def lock_passage(
    tx: Transaction, scope: Scope, attached: Sequence[Archive], passage_id: str
) -> tuple[Archive, Passage]:
    """Lock the archive with the passage, and return both.

    Args:
        tx: The transaction.
        scope: The caller.
        attached: The archives in which the passage may be.
        passage_id: The passage.

    Raises:
        NotFound: The passage is in none of these archives, or the caller does not see it.
        Forbidden: The caller sees the passage but may not change it.
    """
    archives_by_id = {
        archive.id: archive
        for archive in attached
        if archive.organization_id == scope.organization_id
    }
    stored = next(iter(passages_by_ids(tx, [passage_id])), None)
    if stored and not (stored.archive_id in archives_by_id and scope.sees(stored.user_id)):
        stored = None
    passage = require_found(stored, "Passage", passage_id)
    scope.require_owns(passage.user_id)
    archive = _lock(tx, archives_by_id[passage.archive_id])
    # Read again: while this waited for the lock, another transaction may have deleted the passage.
    stored = next(iter(passages_by_ids(tx, [passage_id])), None)
    return archive, require_found(stored, "Passage", passage_id)


def lock_passages(tx: Transaction, ids: Iterable[str]) -> None:
    """Lock these passages until the transaction ends, in the order of their ids.

    Args:
        tx: The transaction.
        ids: The passages. Those that were deleted are ignored.
    """
    for id in sorted(ids):
        tx.lock(_LOCK_PASSAGE, {"id": id})


def rewrite_passage(tx: Transaction, passage: Passage) -> None:
    """Store another text of a passage. The search index is not changed here.

    Args:
        tx: The transaction.
        passage: The passage, read after `lock_passages`, with its new text and metadata, which
            hold no secrets.
    """
    _rewrite_passage(tx, passage)


def delete_passage(tx: Transaction, archive: Archive, passage: Passage) -> None:
    """Delete a passage.

    A shared passage lowers its archive's count, and its tags that no other shared passage has leave
    the archive's row. The search index is not changed here.

    Args:
        tx: The transaction.
        archive: The archive, locked by `lock_passage`.
        passage: The passage, which `lock_passage` returned with it.
    """
    tx.run(_DELETE, {"id": passage.id})
    tags = _shared_tags([passage])
    unused = {
        tag for tag in tags if not tx.first(_TAG_IN_USE, {"archive_id": archive.id, "tag": tag})
    }
    _recount(tx, archive, -_count_shared([passage]), set(archive.tags) - unused)


def _lock(tx: Transaction, archive: Archive, agent_id: str | None = None) -> Archive:
    ids = {"id": archive.id, "organization_id": archive.organization_id}
    statement = _LOCK
    if agent_id:
        statement = _LOCK_FOR_AGENT
        ids["agent_id"] = agent_id
    return require_found(ROWS.first_locked(tx, statement, ids), "Archive", archive.id)


def _recount(tx: Transaction, archive: Archive, added: int, tags: Iterable[str]) -> Archive:
    if not added:
        return archive
    archive = replace(
        archive,
        passage_count=archive.passage_count + added,
        tags=tuple(sorted(tags)),
        updated_at=tx.clock.now(),
    )
    _count(tx, archive)
    return archive
