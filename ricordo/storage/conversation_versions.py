"""Conversations as people see them: with names, and with all versions in one entry.

When a person sends a message again, the conversation is forked. The fork is a version. It is hidden
from the API's lists, and its description names the first version.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Row, func, or_, select

from ricordo.domain.agent import VERSION_OF
from ricordo.domain.scope import Scope
from ricordo.storage.agent_access import may_use
from ricordo.storage.conversations import GONE_THERE, IS_OF_BACKGROUND_TASK
from ricordo.storage.engine.repository import in_scope
from ricordo.storage.engine.store import Transaction
from ricordo.storage.messages import IS_WRITTEN_BY_USER
from ricordo.storage.schema.core_tables import agents, conversations, messages, users

_MOST = 300  # conversations that are read for a list
_MOST_SHOWN = 60
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class ListedConversation:
    """One entry of a list; for several versions, it shows the version used last.

    Attributes:
        name: The summary, or else the beginning of the first message.
        user_id: The user of the conversation; None: it is shared.
        time: The last message, or else the creation, in microseconds UTC.
        versions: The ids of all versions of it.
        is_gone_there: The conversation was deleted in the client from which it was imported.
    """

    id: str
    agent_id: str
    agent_name: str
    name: str
    user_id: str | None
    user_name: str | None
    time: int
    versions: frozenset[str]
    is_gone_there: bool = False


def version_note(conversation_id: str, description: str | None) -> str:
    """Return the description of a version of this conversation.

    Args:
        conversation_id: The conversation, which may be a version itself.
        description: Its description; None: it has none.
    """
    return f"{VERSION_OF}{root_of(conversation_id, description)}"


def root_of(conversation_id: str, description: str | None) -> str:
    """Return the id of the first version of a conversation.

    Args:
        conversation_id: The conversation.
        description: Its description, which names the first version if this one is a later version.
    """
    if description and description.startswith(VERSION_OF):
        return description.removeprefix(VERSION_OF)
    return conversation_id


def own_conversations(tx: Transaction, scope: Scope, user_id: str) -> list[ListedConversation]:
    """Return the conversations of this user with all agents, last used first.

    Versions of one conversation are one entry. There are at most 60 entries, of the 300
    conversations used last.

    Args:
        tx: The transaction.
        scope: The caller.
        user_id: The user of the conversations. Shared conversations are not among them.
    """
    return _listed(tx, scope, conversations.c.user_id == user_id)


def conversations_of_agent(
    tx: Transaction, scope: Scope, agent_id: str, user_id: str
) -> list[ListedConversation]:
    """Return conversations with the agent that are not this user's, last used first.

    Args:
        tx: The transaction.
        scope: The caller.
        agent_id: The agent.
        user_id: The user whose conversations are left out.
    """
    is_other = or_(conversations.c.user_id.is_(None), conversations.c.user_id != user_id)
    return _listed(tx, scope, conversations.c.agent_id == agent_id, is_other)


def _listed(
    tx: Transaction, scope: Scope, *conditions: ColumnElement[bool]
) -> list[ListedConversation]:
    time = func.coalesce(conversations.c.last_message_at, conversations.c.created_at)
    newest = (
        select(conversations.c.seq)
        .where(
            *in_scope(conversations, scope),
            *may_use(scope, conversations.c.agent_id),
            *conditions,
            conversations.c.deleted_at.is_(None),
            conversations.c.archived_at.is_(None),
            ~IS_OF_BACKGROUND_TASK,
            conversations.c.last_message_at.is_not(None) | conversations.c.hidden.is_(False),
        )
        .order_by(time.desc(), conversations.c.seq.desc())
        .limit(_MOST)
    )
    names = ("id", "agent_id", "user_id", "summary", "description", "forked_from")
    statement = (
        select(
            *(conversations.c[name] for name in names),
            time.label("time"),
            agents.c.name.label("agent_name"),
            users.c.name.label("user_name"),
        )
        .join(agents, agents.c.id == conversations.c.agent_id)
        .outerjoin(users, users.c.id == conversations.c.user_id)
        .where(conversations.c.seq.in_(newest), agents.c.hidden.is_not(True))
        .order_by(time.desc(), conversations.c.seq.desc())
    )
    families: dict[str, list[Row[tuple[object, ...]]]] = {}
    for row in tx.all(statement):
        families.setdefault(root_of(row.id, row.description), []).append(row)
    shown = dict(list(families.items())[:_MOST_SHOWN])
    nameless = [root for root, rows in shown.items() if not rows[0].summary]
    beginnings = _first_words(tx, {*nameless, *(row.id for id in nameless for row in shown[id])})
    entries = []
    for root, rows in shown.items():
        row = rows[0]
        titles = [beginnings.get(id, "") for id in (root, *(member.id for member in rows))]
        entries.append(
            ListedConversation(
                id=row.id,
                agent_id=row.agent_id,
                agent_name=row.agent_name,
                name=row.summary or next(filter(None, titles), ""),
                user_id=row.user_id,
                user_name=row.user_name,
                time=row.time,
                versions=frozenset(member.id for member in rows),
                is_gone_there=row.description == GONE_THERE,
            )
        )
    return entries


def _first_words(tx: Transaction, ids: Collection[str]) -> Mapping[str, str]:
    """Return the beginning of each conversation's first message that a user wrote with a text."""
    if not ids:
        return {}
    first = (
        select(func.min(messages.c.seq))
        .where(messages.c.conversation_id.in_([*ids]), IS_WRITTEN_BY_USER)
        .group_by(messages.c.conversation_id)
    )
    text = func.substr(messages.c.text, 1, 4 * _LONGEST_NAME).label("text")
    rows = tx.all(select(messages.c.conversation_id, text).where(messages.c.seq.in_(first)))
    return {row.conversation_id: _one_line(row.text) for row in rows}


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 1]}…"


# The versions of a turn.


@dataclass(frozen=True, slots=True)
class TurnVersions:
    """The conversations that continue the same messages in different ways, in order of time."""

    ids: Sequence[str]
    shown_index: int  # the index of the shown conversation in `ids`

    @property
    def previous(self) -> str | None:
        return self.ids[self.shown_index - 1] if self.shown_index else None

    @property
    def following(self) -> str | None:
        return self.ids[self.shown_index + 1] if self.shown_index + 1 < len(self.ids) else None


@dataclass(frozen=True, slots=True)
class _Version:
    """A version with its history: pairs of conversation and last seq, oldest part first."""

    id: str
    parts: tuple[tuple[str, float], ...]
    time: int


def versions_of_turns(
    tx: Transaction,
    conversation_id: str,
    description: str | None,
    message_ids: Sequence[str],
    *,
    before_id: str | None,
) -> Mapping[str, TurnVersions]:
    """Return the versions of turns, by the id of the turn's first message.

    Turns with one version are left out.

    Args:
        tx: The transaction.
        conversation_id: The shown conversation, which may be a version itself.
        description: Its description, which names the first version.
        message_ids: The first messages of the shown turns in order; the caller may see them.
        before_id: The message before them; None at the beginning of the conversation.
    """
    root = root_of(conversation_id, description)
    rows = _family(tx, root)
    if len(rows) < 2 or not message_ids:
        return {}
    versions = {row.id: _version(row, rows) for row in rows.values()}
    shown = versions.get(conversation_id)
    if shown is None:
        return {}
    first_seq = _first_seqs(tx, [*rows])
    positions = _positions(tx, shown, [*([before_id] if before_id else []), *message_ids])
    branches: dict[str, dict[str, str]] = {}
    for other in versions.values():
        fork = _fork_of(shown, other)
        if other.id == shown.id or fork is None:
            continue
        turn = _turn_after(fork, positions, before_id)
        shown_branch = _branch(shown, fork, first_seq)
        branch = _branch(other, fork, first_seq)
        if turn is None or shown_branch is None or branch is None:
            continue
        ids = branches.setdefault(turn, {shown_branch: shown.id})
        # If several versions run through one conversation, the version used last counts.
        is_newest = branch not in ids or versions[ids[branch]].time < other.time
        if branch != shown_branch and is_newest:
            ids[branch] = other.id
    return {
        turn: _in_order(ids, first_seq, shown.id) for turn, ids in branches.items() if len(ids) > 1
    }


def _turn_after(
    fork: tuple[int, float],
    positions: Sequence[tuple[str, tuple[int, float]]],
    before_id: str | None,
) -> str | None:
    """Return the first message of the shown turn that follows a fork.

    Returns None if the fork is outside the shown turns.
    """
    turn = next((id for id, position in positions if position > fork), None)
    is_beginning = not positions or positions[0][0] != before_id
    follows_shown = any(position <= fork for _, position in positions)
    if turn == before_id or not (follows_shown or is_beginning):
        return None
    return turn


def _in_order(ids: Mapping[str, str], first_seq: Mapping[str, int], shown_id: str) -> TurnVersions:
    """Return the versions of a turn in the order in which their branches began.

    `ids` are the ids of the versions by branch.
    """
    ordered = [
        ids[branch] for branch in sorted(ids, key=lambda id: (first_seq.get(id, 0), ids[id]))
    ]
    return TurnVersions(ordered, ordered.index(shown_id))


def _family(tx: Transaction, root: str) -> dict[str, Row[tuple[object, ...]]]:
    """Return the versions of a conversation by id, at most the 300 oldest."""
    agent = select(conversations.c.agent_id).where(conversations.c.id == root).scalar_subquery()
    is_member = or_(
        conversations.c.id == root, conversations.c.description == f"{VERSION_OF}{root}"
    )
    names = ("id", "forked_from", "forked_seq", "last_message_at", "created_at")
    statement = (
        select(*(conversations.c[name] for name in names))
        .where(conversations.c.agent_id == agent, is_member, conversations.c.deleted_at.is_(None))
        .order_by(conversations.c.seq)
        .limit(_MOST)
    )
    return {row.id: row for row in tx.all(statement)}


def _version(row: Row[tuple[object, ...]], rows: Mapping[str, Row[tuple[object, ...]]]) -> _Version:
    parts = [(row.id, float("inf"))]
    bound = float("inf")
    ancestor = row
    while ancestor.forked_from in rows and len(parts) <= len(rows):
        bound = min(bound, ancestor.forked_seq or 0)
        ancestor = rows[ancestor.forked_from]
        parts.insert(0, (ancestor.id, bound))
    return _Version(row.id, tuple(parts), row.last_message_at or row.created_at)


def _fork_of(shown: _Version, other: _Version) -> tuple[int, float] | None:
    """Return the point at which two histories separate.

    The result is the index of the last common part, and the last common seq in it.
    """
    common = None
    for index, (mine, theirs) in enumerate(zip(shown.parts, other.parts, strict=False)):
        if mine[0] != theirs[0]:
            break
        common = index, min(mine[1], theirs[1])
        if mine[1] != theirs[1]:
            break
    return common


def _branch(version: _Version, fork: tuple[int, float], first_seq: Mapping[str, int]) -> str | None:
    """Return the conversation that continues this version after the fork."""
    part, seq = fork
    if version.parts[part][1] > seq:
        return version.parts[part][0]
    for id, last in version.parts[part + 1 :]:
        if first_seq.get(id, float("inf")) <= last:
            return id
    return None


def _first_seqs(tx: Transaction, ids: Sequence[str]) -> Mapping[str, int]:
    """Return the seq of each conversation's first message, without prompts and shared messages."""
    statement = (
        select(messages.c.conversation_id, func.min(messages.c.seq).label("seq"))
        .where(messages.c.conversation_id.in_(ids), messages.c.role != "system")
        .group_by(messages.c.conversation_id)
    )
    return {row.conversation_id: row.seq for row in tx.all(statement)}


def _positions(
    tx: Transaction, version: _Version, message_ids: Sequence[str]
) -> list[tuple[str, tuple[int, float]]]:
    """Return each message with its position in the version's history: (index of the part, seq)."""
    statement = select(messages.c.id, messages.c.conversation_id, messages.c.seq)
    is_said = messages.c.role != "system"
    found_rows = tx.all(statement.where(messages.c.id.in_([*message_ids]), is_said))
    rows = {row.id: row for row in found_rows}
    index = {id: number for number, (id, _) in enumerate(version.parts)}
    return [
        (id, (index[rows[id].conversation_id], rows[id].seq))
        for id in message_ids
        if id in rows and rows[id].conversation_id in index
    ]
