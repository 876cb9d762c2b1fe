"""Conversations: each agent has a default one, and any number of others.

The id of an agent's default conversation is derived from the agent's id. A fork shares its origin's
messages up to `forked_seq`, including those that the origin itself shares. So a history is read
from several conversations, called its lineage. Lookups and lists leave out deleted conversations
(`deleted_at`), whose rows stay while forks share their messages.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import NAMESPACE_URL, uuid5

from sqlalchemy import ColumnElement, Select, and_, bindparam, case, func, literal, select, update

from ricordo.domain.agent import VERSION_OF, Conversation
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.storage import messages
from ricordo.storage.agent_access import MAY_USE, for_caller, may_use
from ricordo.storage.engine.repository import (
    Page,
    Repository,
    equal,
    known_to,
    one_of,
    read_page,
    require_found,
    seen_by,
    setter,
)
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents, conversations
from ricordo.storage.schema.core_tables import messages as messages_table

# Description of an imported conversation whose chat was deleted in its client.
GONE_THERE = "This chat is gone where it came from."
ROWS = Repository(Conversation, conversations)
_IS_THERE = conversations.c.deleted_at.is_(None)
# As `Conversation.is_of_background_task`.
IS_OF_BACKGROUND_TASK = and_(
    conversations.c.hidden,
    conversations.c.forked_from.is_not(None),
    ~func.coalesce(conversations.c.description, "").startswith(VERSION_OF, autoescape=True),
)
_BY_ID = ROWS.select.where(equal(conversations, "id"), _IS_THERE)
_REQUIRED = _BY_ID.join(agents, agents.c.id == conversations.c.agent_id).where(
    equal(agents, "organization_id")
)
# An expression instead of the bare column. Otherwise SQLite would use the column's index, and first
# read all agents of the organization.
_ORGANIZATION = func.coalesce(agents.c.organization_id, "") == bindparam("organization_id")
_DEFAULTS = ROWS.select.join(agents, agents.c.id == conversations.c.agent_id).where(
    _ORGANIZATION, one_of(conversations.c.id, "ids"), _IS_THERE
)
_REQUIRED_FOR_ONE = _REQUIRED.where(MAY_USE)
_DEFAULTS_FOR_ONE = _DEFAULTS.where(MAY_USE)
_LOCK = select(conversations.c.id).where(equal(conversations, "id")).with_for_update()
_WAITING = select(conversations.c.id, conversations.c.user_id).where(
    equal(conversations, "agent_id"), conversations.c.last_stop_reason == "requires_approval"
)
_THIS = conversations.c.id == bindparam("conversation_id")
_COUNT = conversations.c.message_count + bindparam("added")
_START_OVER = setter(conversations, "window", "prompt_key", "updated_at", where=_THIS).values(
    message_count=_COUNT
)
_WINDOW = _START_OVER.values(
    last_message_at=bindparam("new_updated_at"),
    # Only the save at the end of a run passes its end, duration and stop reason. Other saves leave
    # them unchanged.
    last_run_ended_at=func.coalesce(bindparam("ended_at"), conversations.c.last_run_ended_at),
    last_run_ms=func.coalesce(bindparam("run_ms"), conversations.c.last_run_ms),
    last_stop_reason=func.coalesce(bindparam("stop_reason"), conversations.c.last_stop_reason),
    token_percent=func.coalesce(bindparam("percent"), conversations.c.token_percent),
)
_LAST = conversations.c.last_message_at
_ADD_PAST = (
    update(conversations)
    .where(_THIS)
    .values(
        message_count=_COUNT,
        last_message_at=case((bindparam("newest") < _LAST, _LAST), else_=bindparam("newest")),
    )
)
_FORKS = select(conversations.c.id, conversations.c.forked_seq).where(
    equal(conversations, "agent_id", "forked_from")
)
_FORK = [conversations.c[name] for name in ("seq", "id", "agent_id", "deleted_at")]
_FIRST_FORKS = (
    select(*_FORK).where(equal(conversations, "agent_id", "forked_from")).cte(recursive=True)
)
_ALL_FORKS = _FIRST_FORKS.union_all(
    select(*_FORK).join(
        _FIRST_FORKS,
        (_FIRST_FORKS.c.agent_id == conversations.c.agent_id)
        & (_FIRST_FORKS.c.id == conversations.c.forked_from),
    )
)
_EXISTING_FORKS = (
    select(_ALL_FORKS.c.id).where(_ALL_FORKS.c.deleted_at.is_(None)).order_by(_ALL_FORKS.c.seq)
)
_NEWEST = select(func.max(messages_table.c.seq).label("seq")).where(
    equal(messages_table, "conversation_id")
)


_LINE = [
    conversations.c.id,
    conversations.c.window,
    conversations.c.forked_from,
    conversations.c.forked_seq,
]
_ORIGIN = (
    select(*_LINE, literal(0).label("depth"))
    .where(equal(conversations, "id"))
    .cte("lineage", recursive=True)
)
_WHOLE = _ORIGIN.union_all(
    select(*_LINE, _ORIGIN.c.depth + 1).join(_ORIGIN, _ORIGIN.c.forked_from == conversations.c.id)
)
_LINEAGE = select(_WHOLE).order_by(_WHOLE.c.depth)
OrderBy = Literal["created_at", "last_message_at", "last_run_completion"]
# A conversation without messages is ordered by its creation; a conversation without runs counts as
# the one that ran first.
_POSITIONS: dict[OrderBy, ColumnElement[Any]] = {
    "created_at": conversations.c.created_at,
    "last_message_at": func.coalesce(conversations.c.last_message_at, conversations.c.created_at),
    "last_run_completion": func.coalesce(conversations.c.last_run_ended_at, 0),
}


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """A filter of a list of conversations; None matches any.

    Attributes:
        is_archived: True for archived ones only, False for all others.
        summary: A text that the summary contains, in upper or lower case.
        order_by: The time by which the list is ordered.
        user_id: The user of the conversation.
    """

    agent_id: str | None = None
    is_archived: bool | None = None
    summary: str | None = None
    order_by: OrderBy = "last_message_at"
    user_id: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a history in one conversation.

    It holds messages with a seq up to `newest` (None: all), except the prompt with `prompt_id`.
    """

    conversation_id: str
    newest: int | None = None
    prompt_id: str = ""


def default_id(agent_id: str) -> str:
    """Return the id of the agent's default conversation.

    The id is derived from the agent's, so no read is needed before the lease is taken.

    Args:
        agent_id: The agent's id.
    """
    return "conv-" + agent_id.removeprefix("agent-")


def users_default_id(agent_id: str, user_id: str) -> str:
    """Return the id of a user's separate default conversation with the agent.

    The user has one if the agent's default conversation does not belong to this user.

    Args:
        agent_id: The agent's id.
        user_id: The user's id.
    """
    return f"conv-{uuid5(NAMESPACE_URL, f'{agent_id}/{user_id}')}"


def is_any_default(conversation: Conversation) -> bool:
    """Return True if it is the default conversation of its agent or of a user.

    Args:
        conversation: The conversation as it is stored.
    """
    if conversation.is_default or conversation.user_id is None:
        return conversation.is_default
    users_id = users_default_id(conversation.agent_id, conversation.user_id)
    return conversation.id == users_id


def default_of(tx: Transaction, scope: Scope, agent_id: str) -> Conversation | None:
    """Return the caller's default conversation; None if there is none yet.

    It is the agent's default conversation if the caller sees all data, or if it belongs to the user
    that the caller acts for. Otherwise it is the separate default conversation of that user. A
    caller who sees only shared data has the agent's default conversation if that has no user.

    Args:
        tx: The transaction.
        scope: The caller.
        agent_id: The agent. If the caller may not use it, the result is None.
    """
    ids = [default_id(agent_id)]
    if scope.subject:
        ids.append(users_default_id(agent_id, scope.subject))
    parameters = {"ids": ids, "organization_id": scope.organization_id}
    statement, parameters = for_caller(scope, _DEFAULTS, _DEFAULTS_FOR_ONE, parameters)
    by_id = {conversation.id: conversation for conversation in ROWS.all(tx, statement, parameters)}
    agents_own = by_id.get(ids[0])
    if agents_own and (scope.subject_id is None or agents_own.user_id == scope.subject):
        return agents_own
    if scope.subject:
        return by_id.get(ids[-1])
    return None


def lock(tx: Transaction, id: str) -> None:
    """Lock the conversation's row until the transaction ends.

    On PostgreSQL this lock blocks new rows that refer to the conversation, such as a run.

    Args:
        tx: The transaction.
        id: The conversation. If it does not exist, nothing is locked.
    """
    tx.lock(_LOCK, {"id": id})


def insert_one(tx: Transaction, conversation: Conversation) -> None:
    """Store a new conversation, without its messages.

    Args:
        tx: The transaction.
        conversation: The conversation, whose id is unused.

    Raises:
        Collision: A conversation has this id.
    """
    ROWS.insert(tx, conversation)


def get(tx: Transaction, id: str) -> Conversation | None:
    """Return one conversation unless it was deleted.

    Args:
        tx: The transaction.
        id: The conversation's id. The caller's access to it is not checked.
    """
    return ROWS.first(tx, _BY_ID, {"id": id})


def require(tx: Transaction, scope: Scope, id: str) -> Conversation:
    """Return one conversation.

    Args:
        tx: The transaction.
        scope: The caller.
        id: The conversation's id.

    Raises:
        NotFound: It or its agent was deleted, or the caller may not see it.
    """
    parameters = {"id": id, "organization_id": scope.organization_id}
    statement, parameters = for_caller(scope, _REQUIRED, _REQUIRED_FOR_ONE, parameters)
    conversation = ROWS.first(tx, statement, parameters)
    if conversation and not scope.sees(conversation.user_id):
        conversation = None
    return require_found(conversation, "Conversation", id)


def page(
    tx: Transaction, scope: Scope, page: Page, filters: ConversationFilter
) -> list[Conversation]:
    """Return one page of conversations, without the default and hidden ones.

    Args:
        tx: The transaction.
        scope: The caller; conversations that the caller may not see are left out.
        page: The part of the list. Its cursor must be a conversation that the caller may see.
        filters: The conditions and the order.
    """
    position = _POSITIONS[filters.order_by]
    # `read_page` orders by a column named `created_at`, so the position gets that name.
    positions = select(
        conversations.c.id, conversations.c.seq, position.label("created_at")
    ).subquery()
    statement = ROWS.select.join(positions, positions.c.seq == conversations.c.seq).join(
        agents, agents.c.id == conversations.c.agent_id
    )
    statement = statement.where(
        agents.c.organization_id == scope.organization_id,
        *([] if scope.subject_id is None else seen_by(conversations, scope.subject_id)),
        _IS_THERE,
        conversations.c.is_default.is_(False),
        conversations.c.hidden.is_(False),
        *may_use(scope),
    )
    if filters.agent_id:
        statement = statement.where(conversations.c.agent_id == filters.agent_id)
    if filters.user_id:
        statement = statement.where(conversations.c.user_id == filters.user_id)
    if filters.is_archived is not None:
        archived_at = conversations.c.archived_at
        statement = statement.where(
            archived_at.is_not(None) if filters.is_archived else archived_at.is_(None)
        )
    if filters.summary:
        statement = statement.where(
            conversations.c.summary.icontains(filters.summary, autoescape=True)
        )
    rows = read_page(tx, statement, positions, page, marks=_known_to(scope))
    return [ROWS.of(row) for row in rows]


def ended_with(
    tx: Transaction, reasons: Collection[str], since: int, *, among: Select[Any]
) -> list[tuple[str, str]]:
    """Return organization and id of conversations whose last run ended for these reasons.

    Those whose run ended earliest come first.

    Args:
        tx: The transaction.
        reasons: Stop reasons of runs.
        since: The earliest end of the run in microseconds UTC.
        among: A select of conversation ids; others are left out.
    """
    statement = (
        select(conversations.c.organization_id, conversations.c.id)
        .where(
            conversations.c.id.in_(among),
            conversations.c.last_stop_reason.in_(reasons),
            conversations.c.last_run_ended_at >= since,
        )
        .order_by(conversations.c.last_run_ended_at)
    )
    return [(row.organization_id, row.id) for row in tx.all(statement)]


def with_summary_like(
    tx: Transaction, user_id: str, prefix: str
) -> list[tuple[str, str, str | None]]:
    """Return id, summary and description of the user's conversations.

    Args:
        tx: The transaction.
        user_id: The user.
        prefix: Only conversations whose summary begins with it.
    """
    statement = select(
        conversations.c.id, conversations.c.summary, conversations.c.description
    ).where(
        conversations.c.user_id == user_id,
        conversations.c.summary.startswith(prefix, autoescape=True),
        conversations.c.deleted_at.is_(None),
    )
    return [(row.id, row.summary, row.description) for row in tx.all(statement)]


def change(tx: Transaction, id: str, **columns: Any) -> None:
    """Set columns of a conversation, and its time of the last change.

    Nothing is compared with the stored row, so the caller locks it first where that matters.

    Args:
        tx: The transaction.
        id: The conversation. If it does not exist, nothing happens.
        **columns: The new values by column name.
    """
    tx.run(
        update(conversations)
        .where(conversations.c.id == id)
        .values(**columns, updated_at=tx.clock.now())
    )


def flag_untold(tx: Transaction, agent_id: str, user_id: str) -> None:
    """Let the next turn with the user, in any conversation, report rejections to the agent.

    Args:
        tx: The transaction.
        agent_id: The agent whose proposal was rejected.
        user_id: The owner of the memory that the proposal would have changed.
    """
    of_user = (conversations.c.agent_id == agent_id) & (conversations.c.user_id == user_id)
    tx.run(update(conversations).where(of_user, _IS_THERE).values(has_untold=True))


def set_untold(tx: Transaction, id: str, is_any: bool) -> None:
    """Store whether the conversation's next turn looks for unreported rejections.

    Args:
        tx: The transaction.
        id: The conversation.
        is_any: True if there may be rejections that the agent has not been told of.
    """
    tx.run(update(conversations).where(conversations.c.id == id).values(has_untold=is_any))


def forks_of(tx: Transaction, conversation: Conversation) -> dict[str, int]:
    """Return the last shared seq of each fork of this conversation, by the fork's id.

    Forks that are deleted but not yet purged are among them.

    Args:
        tx: The transaction.
        conversation: The conversation.
    """
    rows = tx.all(_FORKS, {"agent_id": conversation.agent_id, "forked_from": conversation.id})
    return {row.id: row.forked_seq or 0 for row in rows}


def existing_forks_of(tx: Transaction, conversation: Conversation) -> list[str]:
    """Return the ids of the conversation's forks and of their forks, the oldest first.

    Deleted forks are left out. A deleted fork waits for its own forks, which are included.

    Args:
        tx: The transaction.
        conversation: The conversation.
    """
    parameters = {"agent_id": conversation.agent_id, "forked_from": conversation.id}
    return [row.id for row in tx.all(_EXISTING_FORKS, parameters)]


def lineage(tx: Transaction, conversation: Conversation) -> tuple[Span, ...]:
    """Return the parts of the conversation's history, from itself to its oldest origin.

    It takes one statement, and none if the conversation is no fork.

    Args:
        tx: The transaction.
        conversation: The conversation.
    """
    spans = [Span(conversation.id)]
    newest = None
    for row in tx.all(_LINEAGE, {"id": conversation.id}) if conversation.forked_from else ():
        if row.depth:
            spans.append(Span(row.id, newest, row.window[0] if row.window else ""))
        if newest is None:
            newest = row.forked_seq or 0
        else:
            newest = min(newest, row.forked_seq or 0)
    return tuple(spans)


def shared_by(tx: Transaction, conversation: Conversation) -> tuple[tuple[str, int], ...]:
    """Return the parts of other conversations that this fork shares.

    Args:
        tx: The transaction.
        conversation: The conversation; the result is empty if it is no fork.

    Returns:
        Pairs of a conversation's id and the seq of its last shared message, the nearest origin
        first.
    """
    return tuple((span.conversation_id, span.newest or 0) for span in lineage(tx, conversation)[1:])


def count_shared(tx: Transaction, conversation: Conversation, up_to: int) -> int:
    """Return the number of messages up to this seq that a fork would share.

    System prompts are not shared.

    Args:
        tx: The transaction.
        conversation: The conversation to fork.
        up_to: The seq of the last message that the fork shares.
    """
    own_span = Span(conversation.id, up_to, conversation.window[0] if conversation.window else "")
    total = 0
    for span in (own_span, *lineage(tx, conversation)[1:]):
        cut = replace(span, newest=min(span.newest or 0, up_to))
        total += tx.all(select(func.count()).select_from(messages_table).where(*_within(cut)))[0][0]
    return total


def _known_to(scope: Scope) -> Callable[[str], Sequence[ColumnElement[bool]]]:
    """Return the conditions on a conversation that is a page's cursor.

    The caller must be allowed to see it and to use its agent.
    """

    def conditions(marked: Any) -> list[ColumnElement[bool]]:
        if scope.subject_id is None:
            visible = []
        else:
            visible = seen_by(marked, scope.subject_id)
        usable = select(agents.c.id).where(
            agents.c.organization_id == scope.organization_id, *may_use(scope)
        )
        return [*visible, marked.c.agent_id.in_(usable)]

    return known_to(conversations, None, conditions)


def newest_of(tx: Transaction, conversation_id: str) -> int:
    """Return the greatest seq of the conversation's messages; 0 if it has none.

    Args:
        tx: The transaction.
        conversation_id: The conversation. Messages that a fork shares do not count.
    """
    return int(tx.first(_NEWEST, {"conversation_id": conversation_id}).seq or 0)


def page_of_history(
    tx: Transaction,
    scope: Scope,
    conversation: Conversation,
    page: Page,
    keeps: Callable[[Message], bool] = lambda _message: True,
) -> list[Message]:
    """Return one page of the conversation's messages, shared ones included.

    Args:
        tx: The transaction.
        scope: The caller.
        conversation: The conversation, perhaps a fork.
        page: The part of the history. Its limit counts only accepted messages.
        keeps: Accepts a message; others are left out (see `page_of_kept`).
    """
    spans = lineage(tx, conversation)

    def read_messages(part: Page) -> list[Message]:
        if len(spans) == 1:
            return messages.page(tx, scope, part, conversation_id=conversation.id)
        return messages.page_of_numbers(tx, _numbers_on(tx, scope, spans, part), part)

    return messages.page_of_kept(read_messages, page, keeps)


def waiting_of_agent(tx: Transaction, scope: Scope, agent_id: str) -> list[str]:
    """Return the ids of the agent's conversations that wait for approval.

    Conversations that the caller may not change are left out. Deleted ones are returned too.

    Args:
        tx: The transaction.
        scope: The caller.
        agent_id: The agent; the caller's access to it is checked before.
    """
    return [row.id for row in tx.all(_WAITING, {"agent_id": agent_id}) if scope.owns(row.user_id)]


def save_window(
    tx: Transaction,
    conversation_id: str,
    window: Sequence[str],
    prompt_key: str,
    *,
    added: int,
    token_percent: int | None = None,
    ended: Run | None = None,
) -> None:
    """Store the window after a step.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
        window: The ids of the messages in the window, in order.
        prompt_key: The key of the stored system prompt (see `SystemPrompt.key`).
        added: The number of new messages in the conversation.
        token_percent: The provider's token count in percent of our estimate; None leaves the stored
            one.
        ended: The run if it has ended; None while it continues.
    """
    parameters = {
        "conversation_id": conversation_id,
        "new_window": list(window),
        "new_prompt_key": prompt_key,
        "new_updated_at": tx.clock.now(),
        "added": added,
        "percent": token_percent,
        "ended_at": ended and ended.ended_at,
        "run_ms": ended and (ended.duration_ns or 0) // 1_000_000,
        "stop_reason": ended and ended.stop_reason,
    }
    tx.run(_WINDOW, parameters)


def start_over(
    tx: Transaction, conversation_id: str, window: Sequence[str], prompt_key: str
) -> None:
    """Replace the window by new messages.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
        window: The ids of the new messages, in order. They are added to the message count.
        prompt_key: The key of the stored system prompt (see `SystemPrompt.key`).
    """
    parameters = {
        "conversation_id": conversation_id,
        "new_window": list(window),
        "new_prompt_key": prompt_key,
        "new_updated_at": tx.clock.now(),
        "added": len(window),
    }
    tx.run(_START_OVER, parameters)


def add_past(tx: Transaction, conversation_id: str, added: int, newest: int) -> None:
    """Count messages that were stored outside the window.

    Args:
        tx: The transaction.
        conversation_id: The conversation.
        added: The number of messages.
        newest: The creation time of the newest one, in microseconds UTC.
    """
    tx.run(_ADD_PAST, {"conversation_id": conversation_id, "added": added, "newest": newest})


def _numbers_on(tx: Transaction, scope: Scope, spans: Sequence[Span], page: Page) -> list[int]:
    """Return the seqs of the messages on the page.

    The first messages of the whole history are among the first messages of each span.
    """
    positions: list[tuple[int, int]] = []
    marks = known_to(messages_table, scope)
    for span in spans:
        statement = select(messages_table.c.created_at, messages_table.c.seq).where(*_within(span))
        positions += [
            (row.created_at, row.seq)
            for row in read_page(tx, statement, messages_table, page, marks=marks)
        ]
    positions.sort(reverse=page.order == "desc")
    if page.is_backwards:
        on_page = positions[-page.limit :]
    else:
        on_page = positions[: page.limit]
    return [seq for _, seq in on_page]


def _within(span: Span) -> list[ColumnElement[bool]]:
    conditions = [messages_table.c.conversation_id == span.conversation_id]
    if span.newest is not None:
        conditions += [messages_table.c.seq <= span.newest, messages_table.c.id != span.prompt_id]
    return conditions
