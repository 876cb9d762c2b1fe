"""Conversations: each agent has a default one, whose id follows from the agent's, and as many others as are wanted.

A fork shares the messages of its origin up to `forked_seq`, and what that one shares with its own origin: its history is read from
several conversations, its lineage. A deleted conversation (`deleted_at`) is found by no query, and stays while forks share its
messages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import NAMESPACE_URL, uuid5

from sqlalchemy import ColumnElement, bindparam, case, func, literal, select, update

from ricordo.domain.agent import Conversation
from ricordo.domain.message import Message
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.storage import messages
from ricordo.storage.agent_access import MAY_USE, for_caller, may_use
from ricordo.storage.engine.repository import (
    Page,
    Repository,
    equal,
    found,
    known_to,
    one_of,
    read_page,
    seen_by,
    setter,
)
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents, conversations, runs
from ricordo.storage.schema.core_tables import messages as messages_table

ROWS = Repository(Conversation, conversations)
_IS_THERE = conversations.c.deleted_at.is_(None)
_BY_ID = ROWS.select.where(equal(conversations, "id"), _IS_THERE)
_REQUIRED = _BY_ID.join(agents, agents.c.id == conversations.c.agent_id).where(
    equal(agents, "organization_id")
)
# A bare organization_id would lead SQLite to all agents of the organization first, by an index.
_ORGANIZATION = func.coalesce(agents.c.organization_id, "") == bindparam("organization_id")
_DEFAULTS = ROWS.select.join(agents, agents.c.id == conversations.c.agent_id).where(
    _ORGANIZATION, one_of(conversations.c.id, "ids"), _IS_THERE
)
_REQUIRED_FOR_ONE, _DEFAULTS_FOR_ONE = _REQUIRED.where(MAY_USE), _DEFAULTS.where(MAY_USE)
_LOCK = select(conversations.c.id).where(equal(conversations, "id")).with_for_update()
_WAITING = select(conversations.c.id, conversations.c.user_id).where(
    equal(conversations, "agent_id"), conversations.c.last_stop_reason == "requires_approval"
)
_THIS = conversations.c.id == bindparam("conversation_id")
_COUNT = conversations.c.message_count + bindparam("added")
_BEGIN_ANEW = setter(conversations, "window", "prompt_key", "updated_at", where=_THIS).values(
    message_count=_COUNT
)
_WINDOW = _BEGIN_ANEW.values(
    last_message_at=bindparam("new_updated_at"),
    # Only the save that ends a run knows these; the others leave them as they are.
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
_NEWEST = select(func.max(messages_table.c.seq).label("seq")).where(
    equal(messages_table, "conversation_id")
)


_LINE = [
    conversations.c.id,
    conversations.c.window,
    conversations.c.forked_from,
    conversations.c.forked_seq,
]
_KNOWN = (
    select(*_LINE, literal(0).label("depth"))
    .where(equal(conversations, "id"))
    .cte("lineage", recursive=True)
)
_WHOLE = _KNOWN.union_all(
    select(*_LINE, _KNOWN.c.depth + 1).join(_KNOWN, _KNOWN.c.forked_from == conversations.c.id)
)
_LINEAGE = select(_WHOLE).order_by(_WHOLE.c.depth)
OrderBy = Literal["created_at", "last_message_at", "last_run_completion"]
# One without messages is ordered by its creation; one that never ran comes after all that did.
_PLACES: dict[OrderBy, ColumnElement[Any]] = {
    "created_at": conversations.c.created_at,
    "last_message_at": func.coalesce(conversations.c.last_message_at, conversations.c.created_at),
    "last_run_completion": func.coalesce(conversations.c.last_run_ended_at, 0),
}


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """Which conversations are listed: of an agent or a user, archived or not, with a text in their summary; None means any."""

    agent_id: str | None = None
    is_archived: bool | None = None
    summary: str | None = None
    order_by: OrderBy = "last_message_at"
    user_id: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """What one conversation holds of a history: messages with a seq up to `newest` (None: all), without `prompt_id`, its prompt."""

    conversation_id: str
    newest: int | None = None
    prompt_id: str = ""


def default_id(agent_id: str) -> str:
    """Return the id of the agent's default conversation, which follows from the agent's: no read comes before the lease."""
    return "conv-" + agent_id.removeprefix("agent-")


def users_default_id(agent_id: str, user_id: str) -> str:
    """Return the id of a user's own default conversation with the agent, where the agent's is not the user's already."""
    return f"conv-{uuid5(NAMESPACE_URL, f'{agent_id}/{user_id}')}"


def is_any_default(conversation: Conversation) -> bool:
    """Whether it is the agent's default conversation, or a user's."""
    own, user_id = conversation.id, conversation.user_id
    return conversation.is_default or (
        user_id is not None and own == users_default_id(conversation.agent_id, user_id)
    )


def default_of(tx: Transaction, scope: Scope, agent_id: str) -> Conversation | None:
    """The caller's default conversation: the agent's, or the user's it acts for; None where there is none yet."""
    ids = [default_id(agent_id)]
    if scope.subject:
        ids.append(users_default_id(agent_id, scope.subject))
    values = {"ids": ids, "organization_id": scope.organization_id}
    there = {
        one.id: one
        for one in ROWS.all(tx, *for_caller(scope, _DEFAULTS, _DEFAULTS_FOR_ONE, values))
    }
    agents_own = there.get(ids[0])
    if agents_own and (scope.subject_id is None or agents_own.user_id == scope.subject):
        return agents_own
    return there.get(ids[-1]) if scope.subject else None


def lock(tx: Transaction, id: str) -> None:
    # A run refers to its conversation, and PostgreSQL lets no row refer to one that is locked in this way.
    tx.lock(_LOCK, {"id": id})


def insert_one(tx: Transaction, conversation: Conversation) -> None:
    ROWS.insert(tx, conversation)


def get(tx: Transaction, id: str) -> Conversation | None:
    """Return one conversation, unless it was deleted."""
    return ROWS.first(tx, _BY_ID, {"id": id})


def require(tx: Transaction, scope: Scope, id: str) -> Conversation:
    """Return one conversation; raises NotFound, also where it was deleted, or its agent was."""
    conversation = ROWS.first(
        tx,
        *for_caller(
            scope,
            _REQUIRED,
            _REQUIRED_FOR_ONE,
            {"id": id, "organization_id": scope.organization_id},
        ),
    )
    if conversation and not scope.sees(conversation.user_id):
        conversation = None
    return found(conversation, "Conversation", id)


def page(
    tx: Transaction, scope: Scope, wanted: Page, which: ConversationFilter
) -> list[Conversation]:
    """Return one page of conversations, without the default and hidden ones."""
    place = _PLACES[which.order_by]
    # Pages are cut by what the list is ordered by, under the name that pages know.
    placed = select(conversations.c.id, conversations.c.seq, place.label("created_at")).subquery()
    statement = ROWS.select.join(placed, placed.c.seq == conversations.c.seq).join(
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
    if which.agent_id:
        statement = statement.where(conversations.c.agent_id == which.agent_id)
    if which.user_id:
        statement = statement.where(conversations.c.user_id == which.user_id)
    if which.is_archived is not None:
        archived_at = conversations.c.archived_at
        statement = statement.where(
            archived_at.is_not(None) if which.is_archived else archived_at.is_(None)
        )
    if which.summary:
        statement = statement.where(
            conversations.c.summary.icontains(which.summary, autoescape=True)
        )
    return [
        ROWS.of(row) for row in read_page(tx, statement, placed, wanted, marks=_known_to(scope))
    ]


def change(tx: Transaction, id: str, **values: Any) -> None:
    tx.run(
        update(conversations)
        .where(conversations.c.id == id)
        .values(**values, updated_at=tx.clock.now())
    )


def flag_untold(tx: Transaction, agent_id: str, user_id: str, run_id: str | None = None) -> bool:
    """Let the next turn with the user look for rejections, in the run's conversation, or in any; returns whether there is one."""
    theirs = update(conversations).where(
        conversations.c.agent_id == agent_id, conversations.c.user_id == user_id, _IS_THERE
    )
    if run_id is not None:
        theirs = theirs.where(
            conversations.c.id.in_(select(runs.c.conversation_id).where(runs.c.id == run_id))
        )
    return tx.run(theirs.values(has_untold=True)) > 0


def set_untold(tx: Transaction, id: str, is_any: bool) -> None:
    tx.run(update(conversations).where(conversations.c.id == id).values(has_untold=is_any))


def forks_of(tx: Transaction, conversation: Conversation) -> dict[str, int]:
    rows = tx.all(_FORKS, {"agent_id": conversation.agent_id, "forked_from": conversation.id})
    return {row.id: row.forked_seq or 0 for row in rows}


def lineage(tx: Transaction, conversation: Conversation) -> tuple[Span, ...]:
    """Return where the conversation's history is found, its own part first; one statement, and none where it is no fork."""
    spans = [Span(conversation.id)]
    newest = None
    for row in tx.all(_LINEAGE, {"id": conversation.id}) if conversation.forked_from else ():
        if row.depth:
            spans.append(Span(row.id, newest, row.window[0] if row.window else ""))
        newest = (row.forked_seq or 0) if newest is None else min(newest, row.forked_seq or 0)
    return tuple(spans)


def shared_by(tx: Transaction, conversation: Conversation) -> tuple[tuple[str, int], ...]:
    return tuple((span.conversation_id, span.newest or 0) for span in lineage(tx, conversation)[1:])


def count_shared(tx: Transaction, conversation: Conversation, up_to: int) -> int:
    """Return how many messages of its history, up to this seq, a fork would share: all but system prompts."""
    own = Span(conversation.id, up_to, conversation.window[0] if conversation.window else "")
    total = 0
    for span in (own, *lineage(tx, conversation)[1:]):
        cut = replace(span, newest=min(span.newest or 0, up_to))
        total += tx.all(select(func.count()).select_from(messages_table).where(*_within(cut)))[0][0]
    return total


def _known_to(scope: Scope) -> Callable[[str], Sequence[ColumnElement[bool]]]:
    """Return the conditions under which a conversation may be a page's cursor: its user's, and of an agent they may use."""

    def conditions(marked: Any) -> list[ColumnElement[bool]]:
        seen = [] if scope.subject_id is None else seen_by(marked, scope.subject_id)
        usable = select(agents.c.id).where(
            agents.c.organization_id == scope.organization_id, *may_use(scope)
        )
        return [*seen, marked.c.agent_id.in_(usable)]

    return known_to(conversations, None, conditions)


def newest_of(tx: Transaction, conversation_id: str) -> int:
    return int(tx.first(_NEWEST, {"conversation_id": conversation_id}).seq or 0)


def page_of_history(
    tx: Transaction,
    scope: Scope,
    conversation: Conversation,
    wanted: Page,
    keeps: Callable[[Message], bool] = lambda _message: True,
) -> list[Message]:
    """Return one page of the conversation's messages, those that it shares with its origins included; see `page_of_kept`."""
    spans = lineage(tx, conversation)

    def read_messages(reading: Page) -> list[Message]:
        if len(spans) == 1:
            return messages.page(tx, scope, reading, conversation_id=conversation.id)
        return messages.page_of_numbers(tx, _numbers_on(tx, scope, spans, reading), reading)

    return messages.page_of_kept(read_messages, wanted, keeps)


def waiting_of_agent(tx: Transaction, scope: Scope, agent_id: str) -> list[str]:
    """Return the ids of the agent's conversations that wait for approval, of those that the caller may change."""
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
    """Store the window after a step, its `added` messages, the run that `ended`, and the provider's `token_percent`."""
    values = {
        "percent": token_percent,
        "ended_at": ended and ended.ended_at,
        "run_ms": ended and (ended.duration_ns or 0) // 1_000_000,
        "stop_reason": ended and ended.stop_reason,
    }
    tx.run(_WINDOW, values | _window_values(tx, conversation_id, window, prompt_key, added))


def start_over(
    tx: Transaction, conversation_id: str, window: Sequence[str], prompt_key: str
) -> None:
    """Store a window of new messages in place of the one there was."""
    tx.run(_BEGIN_ANEW, _window_values(tx, conversation_id, window, prompt_key, len(window)))


def _window_values(
    tx: Transaction, id: str, window: Sequence[str], prompt_key: str, added: int
) -> dict[str, Any]:
    values = {
        "new_window": list(window),
        "new_prompt_key": prompt_key,
        "new_updated_at": tx.clock.now(),
    }
    return values | {"conversation_id": id, "added": added}


def add_past(tx: Transaction, conversation_id: str, added: int, newest: int) -> None:
    """Count messages that were stored outside the window, the newest of them made at `newest`."""
    tx.run(_ADD_PAST, {"conversation_id": conversation_id, "added": added, "newest": newest})


def _numbers_on(tx: Transaction, scope: Scope, spans: Sequence[Span], wanted: Page) -> list[int]:
    """Return the seqs of the messages on the page: the first of all spans are among the first of each."""
    placed: list[tuple[int, int]] = []
    marks = known_to(messages_table, scope)
    for span in spans:
        statement = select(messages_table.c.created_at, messages_table.c.seq).where(*_within(span))
        placed += [
            (row.created_at, row.seq)
            for row in read_page(tx, statement, messages_table, wanted, marks=marks)
        ]
    placed.sort(reverse=wanted.order == "desc")
    chosen = placed[-wanted.limit :] if wanted.is_backwards else placed[: wanted.limit]
    return [seq for _, seq in chosen]


def _within(span: Span) -> list[ColumnElement[bool]]:
    conditions = [messages_table.c.conversation_id == span.conversation_id]
    if span.newest is not None:
        conditions += [messages_table.c.seq <= span.newest, messages_table.c.id != span.prompt_id]
    return conditions
