"""Mending threads whose rows are not as they should be: after it the next message is answered, and every request is valid.

Nothing that anybody said is deleted. A message leaves the window at most, and stays in the history; a call that lost its result
gets one that says so. `look` tells what would be done and changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from ricordo.agents.approvals import given_up
from ricordo.agents.run_end import close_run
from ricordo.agents.turn_start import LEASE
from ricordo.domain.conversation import Conversation
from ricordo.domain.ids import new_id
from ricordo.domain.message import (
    ApprovalPart,
    CompactionPart,
    ImagePart,
    Message,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
)
from ricordo.domain.run import Run
from ricordo.prompt.transcript import interrupted
from ricordo.search.index import insert_messages
from ricordo.storage import broken, conversations, runs
from ricordo.storage.store import Transaction

UNAPPROVED = "The turn that asked for approval failed, so the tool call was denied."
_GONE = {"type": "interrupted", "message": "The server that ran this turn is gone."}
_CALLING, _ANSWERING = ("assistant", "approval"), ("tool", "approval")
# What a provider counts is believed between these, in percent of our estimate.
_LEAST, _MOST = 50, 400


@dataclass(frozen=True, slots=True)
class Mending:
    """A thread, and each thing that was wrong with it; none of them is mended while a turn runs in it (`is_busy`)."""

    conversation_id: str
    found: tuple[str, ...] = ()
    is_busy: bool = False


@dataclass(slots=True)
class _Draft:
    """A thread while it is mended: the window as it shall be, new messages, and those whose parts change."""

    thread: Conversation
    window: list[Message]
    found: list[str] = field(default_factory=list)
    new: list[Message] = field(default_factory=list)
    changed: dict[str, Message] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)

    def note(self, count: int, what: str) -> None:
        """Take note of something that was found so many times."""
        if count:
            self.found.append(f"{count} {what}")

    def keep(self, wanted: Callable[[Message], bool], what: str) -> None:
        """Let the other messages leave the window."""
        kept = [message for message in self.window if wanted(message)]
        self.note(len(self.window) - len(kept), f"{what} left the window")
        self.window = kept

    def change(self, message: Message) -> None:
        """Store other parts for a message, and show it so."""
        self.changed[message.id] = message
        self.window = [message if one.id == message.id else one for one in self.window]


def look(tx: Transaction, conversation_id: str, *, is_alone: bool) -> Mending:
    """What is wrong with the thread. `is_alone` tells that no server uses the database, so that no open run is alive."""
    found: list[str] = []
    if broken.window_of(tx, conversation_id) is None:
        return Mending(conversation_id, ("the window could not be read, and is made anew of the newest messages",))
    dead, alive = _open_runs(tx, conversation_id, is_alone=is_alone)
    found += [f"{run.id} was left open, and is closed" for run in dead]
    draft = _examine(tx, conversation_id)
    return Mending(conversation_id, (*found, *draft.found), is_busy=bool(alive))


def mend(tx: Transaction, conversation_id: str, *, is_alone: bool) -> Mending:
    """Mend the thread, under its lease. Raises Collision where a turn begins in it at this moment."""
    conversations.lock(tx, conversation_id)
    before = look(tx, conversation_id, is_alone=is_alone)
    if before.is_busy or not before.found:
        return before
    found: list[str] = []
    if broken.window_of(tx, conversation_id) is None:
        conversations.change(tx, conversation_id, window=broken.newest_of(tx, conversation_id))
        found += before.found
    dead, _ = _open_runs(tx, conversation_id, is_alone=is_alone)
    # What a run left must be readable before it can be closed.
    unreadable = [row.message for row in broken.of_runs(tx, [run.id for run in dead]) if not row.is_readable]
    for message in unreadable:
        broken.put_parts(tx, message)
    found += [f"{run.id} was left open, and is closed" for run in dead if close_run(tx, run, "error", _GONE)]
    lease = _lease(tx, conversation_id)
    draft = _examine(tx, conversation_id)
    _apply(tx, draft)
    ended = tx.clock.now()
    runs.end(tx, replace(lease, status="completed", stop_reason="end_turn", ended_at=ended, duration_ns=0))
    return Mending(conversation_id, (*found, *draft.found))


def give_thread(tx: Transaction, agent_id: str) -> str:
    """Give an agent that lost its own thread a new one; returns its id. What was said in the old one is gone with it."""
    organization, _ = broken.agent_of(tx, agent_id)
    now = tx.clock.now()
    thread = Conversation(
        conversations.default_id(agent_id), organization, agent_id, is_default=True, created_at=now, updated_at=now
    )
    system = _system(tx, thread)
    conversations.insert_one(tx, replace(thread, window=(system.id,), message_count=1))
    insert_messages(tx, [system])
    return thread.id


def _open_runs(tx: Transaction, conversation_id: str, *, is_alone: bool) -> tuple[list[Run], list[Run]]:
    """The open runs that nobody drives any more, and those that somebody may be driving."""
    now = tx.clock.now()
    found = runs.open_runs(tx, conversation_id=conversation_id)
    dead = [run for run in found if is_alone or run.lease_expires_at <= now]
    return dead, [run for run in found if run not in dead]


def _lease(tx: Transaction, conversation_id: str) -> Run:
    thread = conversations.get(tx, conversation_id)
    assert thread is not None  # noqa: S101 - it is held
    now = tx.clock.now()
    lease = Run(
        new_id("run"),
        thread.organization_id,
        thread.agent_id,
        conversation_id,
        status="running",
        purpose="repair",
        created_at=now,
        lease_token=new_id("lease"),
        lease_expires_at=now + LEASE,
    )
    runs.open_run(tx, lease)
    return lease


def _examine(tx: Transaction, conversation_id: str) -> _Draft:
    """The thread as it shall be, with all that is wrong with it now."""
    thread = conversations.get(tx, conversation_id)
    assert thread is not None  # noqa: S101 - the caller found it
    draft = _Draft(thread, [])
    _read(tx, draft)
    _drop_unfit(draft)
    _tell_calls_apart(draft)
    _pair(tx, draft)
    _deny_abandoned(tx, draft)
    _begin(tx, draft)
    _correct_summaries(tx, draft)
    _correct_numbers(tx, draft)
    return draft


def _read(tx: Transaction, draft: _Draft) -> None:
    """What the window names: what is there, is the thread's own or shared with it, and is named once."""
    named = list(draft.thread.window)
    ids = list(dict.fromkeys(id for id in named if isinstance(id, str)))
    draft.note(len(named) - len(ids), "entries were in the window twice or were no ids, and left it")
    stored = broken.by_ids(tx, ids)
    draft.note(len(ids) - len(stored), "messages that the window names are gone, and left it")
    draft.window = [stored[id].message for id in ids if id in stored]
    own = {span.conversation_id for span in conversations.lineage(tx, draft.thread)}
    draft.keep(lambda message: message.conversation_id in own, "messages of other threads")
    unreadable = [message for message in draft.window if not stored[message.id].is_readable]
    for message in unreadable:
        draft.changed[message.id] = message
    draft.note(len(unreadable), "messages had parts that could not be read, which are plain text now")


def _drop_unfit(draft: _Draft) -> None:
    draft.keep(lambda message: message.role in get_args(Role), "messages of a role that is unknown")
    draft.keep(_fits, "messages with calls or results that their role cannot have")
    draft.keep(_says_something, "messages with nothing in them")
    own = draft.thread.id
    draft.keep(lambda one: one.role != "system" or one.conversation_id == own, "system messages of other threads")


def _fits(message: Message) -> bool:
    if message.role == "tool":
        return bool(message.tool_returns) and not message.tool_calls
    return (message.role in _CALLING or not message.tool_calls) and (
        message.role in _ANSWERING or not message.tool_returns
    )


def _says_something(message: Message) -> bool:
    kinds = (ImagePart, ReasoningPart, ToolCallPart, ApprovalPart)
    return bool(message.text.strip() or message.tool_returns or any(isinstance(part, kinds) for part in message.parts))


def _tell_calls_apart(draft: _Draft) -> None:
    """Two calls of one message with the same id, or none, cannot be told apart by their results."""
    count = 0
    for message in list(draft.window):
        seen: set[str] = {""}
        parts = []
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                if part.call_id in seen:
                    part = replace(part, call_id=new_id("call"))  # noqa: PLW2901
                    count += 1
                seen.add(part.call_id)
            parts.append(part)
        if tuple(parts) != message.parts:
            draft.change(replace(message, parts=tuple(parts)))
    draft.note(count, "calls had the id of another or none, and have one of their own now")


def _pair(tx: Transaction, draft: _Draft) -> None:
    """Put results right behind their calls, and make those that are missing; what answers no call leaves the window."""
    window, sound, placed = draft.window, list[Message](), set[str]()
    missing = moved = 0
    for place, message in enumerate(window):
        if message.id in placed or _is_answer(message):
            continue
        sound.append(message)
        calls = list(message.tool_calls)
        answers, still_open = _answers(window[place + 1 :], {call.call_id for call in calls}, placed)
        moved += answers != window[place + 1 : place + 1 + len(answers)]
        sound += answers
        placed |= {answer.id for answer in answers}
        is_last = all(later.id in placed for later in window[place + 1 :])
        if still_open and not (message.is_waiting and is_last and not answers):
            missing += len(still_open)
            made = interrupted(message, [call for call in calls if call.call_id in still_open])
            draft.new.append(replace(made, id=new_id("message"), created_at=tx.clock.now(), seq=0))
            sound.append(draft.new[-1])
    draft.note(missing, "calls had no result, and got one that says so")
    draft.note(moved, "results stood away from their calls, and stand behind them now")
    draft.keep(lambda message: not _is_answer(message) or message.id in placed, "results without a call")
    draft.window = sound


def _is_answer(message: Message) -> bool:
    return message.role == "tool" or (message.role == "approval" and not message.tool_calls)


def _answers(later: Sequence[Message], calls: set[str], placed: set[str]) -> tuple[list[Message], set[str]]:
    """What answers these calls, in its order, up to where their ids are used again; and the calls that are still open."""
    still_open, found = set(calls), list[Message]()
    for message in later:
        if not still_open or not calls.isdisjoint(call.call_id for call in message.tool_calls):
            break
        if not _is_answer(message) or message.id in placed:
            continue
        answered = {part.call_id for part in message.tool_returns}
        decided = {part.call_id for part in message.parts if isinstance(part, ApprovalPart)}
        if still_open.isdisjoint(answered | decided):
            continue
        found.append(message)
        if message.role == "tool":
            still_open -= answered
    return found, still_open


def _deny_abandoned(tx: Transaction, draft: _Draft) -> None:
    """Calls that wait for an answer, though the turn that asked has failed: whoever sees that run expects none."""
    last = draft.window[-1] if draft.window else None
    if last is None or not last.is_waiting:
        return
    reason = broken.stop_reason_of(tx, last.run_id)
    if reason is None or reason == "requires_approval":
        return
    denied = tuple(given_up(last, UNAPPROVED))
    made = replace(last, id=new_id("message"), role="tool", parts=denied, otid=None, seq=0, created_at=tx.clock.now())
    draft.new.append(made)
    draft.window.append(made)
    draft.note(len(denied), "calls waited for approval in a turn that failed, and are denied")


def _begin(tx: Transaction, draft: _Draft) -> None:
    """The window begins with the thread's own system message, which the next turn writes anew."""
    own = broken.prompt_of(tx, draft.thread.id)
    first = draft.window[0] if draft.window else None
    if first is not None and first.role == "system" and (own is None or first.id == own.id):
        return
    if first is not None and first.role == "system" and own is not None and own.id not in draft.thread.window:
        return  # an older one lies in the history
    if own is None:
        own = _system(tx, draft.thread)
        draft.new.append(own)
    draft.window = [own, *(message for message in draft.window if message.id != own.id)]
    draft.values["prompt_key"] = ""
    draft.found.append("the window did not begin with the system message, and does now")


def _system(tx: Transaction, thread: Conversation) -> Message:
    organization, words = broken.agent_of(tx, thread.agent_id)
    parts = (TextPart(words),)
    now = tx.clock.now()
    return Message(new_id("message"), thread.agent_id, thread.id, "system", parts, now, organization_id=organization)


def _correct_summaries(tx: Transaction, draft: _Draft) -> None:
    count = 0
    for message in [message for message in draft.window if message.role == "summary"]:
        evicted = [id for part in message.parts if isinstance(part, CompactionPart) for id in part.evicted]
        missing = set(evicted) - broken.known(tx, evicted)
        if missing:
            count += len(missing)
            parts = (
                replace(part, evicted=tuple(id for id in part.evicted if id not in missing))
                if isinstance(part, CompactionPart)
                else part
                for part in message.parts
            )
            draft.change(replace(message, parts=tuple(parts)))
    draft.note(count, "messages that a summary names are gone, and are named no more")


def _correct_numbers(tx: Transaction, draft: _Draft) -> None:
    thread = draft.thread
    rows = broken.count_rows(tx, thread.id)
    if thread.forked_from is None and thread.message_count != rows:
        draft.found.append(f"{thread.message_count} messages were counted where {rows} are kept")
    if thread.token_percent is not None and not _LEAST <= thread.token_percent <= _MOST:
        draft.found.append(f"tokens were counted at {thread.token_percent} percent, and are at 100 now")
        draft.values["token_percent"] = None
    if half := broken.half_ended(tx, thread.id):
        draft.note(len(half), "runs that have ended were called running, and are called failed now")


def _apply(tx: Transaction, draft: _Draft) -> None:
    thread = draft.thread
    insert_messages(tx, draft.new)
    for message in draft.changed.values():
        broken.put_parts(tx, message)
    for run_id in broken.half_ended(tx, thread.id):
        broken.end_run(tx, run_id)
    count = thread.message_count + len(draft.new)
    if thread.forked_from is None:
        count = broken.count_rows(tx, thread.id)
    window = [message.id for message in draft.window]
    conversations.change(tx, thread.id, window=window, message_count=count, **draft.values)
