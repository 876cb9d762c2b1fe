"""Repair of conversations with unreadable rows or missing messages.

After the repair, the agent answers the next message. No message is deleted. A message may leave the
context window but stays in the history. Calls without a result, results without a call and repeated
ids need no repair: `prompt.transcript` makes every request valid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from ricordo.agents.run_end import close_run, denied
from ricordo.domain.agent import Conversation
from ricordo.domain.message import Message, Role, TextPart
from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.memory.compaction import HIGHEST_PERCENT
from ricordo.search.index import insert_messages
from ricordo.storage import conversations, damage, runs
from ricordo.storage.engine.store import Transaction

UNAPPROVED = "The turn that asked for approval failed, so the tool call was denied."
_CALLING = ("assistant", "approval")
_ANSWERING = ("tool", "approval")
_INTERRUPTED = {"type": "interrupted", "message": "The server that ran this turn has stopped."}
# The lowest plausible correction of the token estimate, in percent.
_LOWEST_PERCENT = 50


@dataclass(frozen=True, slots=True)
class Repair:
    """The faults of a conversation.

    With `is_busy` a turn runs in the conversation, so nothing was repaired.
    """

    conversation_id: str
    faults: tuple[str, ...] = ()
    is_busy: bool = False


@dataclass(slots=True)
class _Examination:
    """A conversation with its repaired window, and the rows that store the repair."""

    conversation: Conversation
    window: list[Message]
    faults: list[str] = field(default_factory=list)
    new: list[Message] = field(default_factory=list)
    unreadable: list[Message] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)

    def note(self, count: int, fault: str) -> None:
        """Add a fault to the list, unless the count is 0.

        Args:
            count: The number of rows with the fault.
            fault: The rest of the sentence after the number.
        """
        if count:
            self.faults.append(f"{count} {fault}")


def _close_runs(tx: Transaction, dead_runs: Sequence[Run]) -> None:
    # Closing a run reads its messages.
    for message in damage.unreadable_of_runs(tx, [run.id for run in dead_runs]):
        damage.write_parts(tx, message)
    for run in dead_runs:
        close_run(tx, run, "error", _INTERRUPTED)


def repair(
    tx: Transaction, conversation_id: str, *, is_alone: bool, is_dry: bool = False
) -> Repair:
    """Repair the conversation and return its faults.

    While a turn runs in it, nothing is changed.

    Args:
        tx: The transaction, or a read with `is_dry`.
        conversation_id: The conversation.
        is_alone: No server uses the database, so no open run is alive. Otherwise only runs with an
            expired lease are closed.
        is_dry: Find the faults without a change.

    Raises:
        NotFound: There is no such conversation.
    """
    if not is_dry:
        conversations.lock(tx, conversation_id)
    now = tx.clock.now()
    faults = list[str]()
    open_runs = runs.open_runs(tx, conversation_id=conversation_id)
    dead_runs = [run for run in open_runs if is_alone or run.lease_expires_at <= now]
    is_busy = len(dead_runs) < len(open_runs)
    if damage.window_of(tx, conversation_id) is None:
        faults.append("the window was unreadable, and was rebuilt from the newest messages")
        if is_dry or is_busy:
            return Repair(conversation_id, tuple(faults), is_busy)
        conversations.change(tx, conversation_id, window=damage.newest_of(tx, conversation_id))
    faults += [f"{run.id} was left open, and was closed" for run in dead_runs]
    if not (is_dry or is_busy):
        _close_runs(tx, dead_runs)
    examined = _examine(tx, conversation_id)
    faults += examined.faults
    if faults and not (is_dry or is_busy):
        _write(tx, examined)
    return Repair(conversation_id, tuple(faults), is_busy)


def _write(tx: Transaction, examined: _Examination) -> None:
    id = examined.conversation.id
    insert_messages(tx, examined.new)
    for message in examined.unreadable:
        damage.write_parts(tx, message)
    damage.fail_half_ended(tx, id)
    count = examined.conversation.message_count + len(examined.new)
    if examined.conversation.forked_from is None:
        count = damage.count_rows(tx, id)
    window = [message.id for message in examined.window]
    conversations.change(tx, id, window=window, message_count=count, **examined.values)


def restore_default_conversation(tx: Transaction, agent_id: str) -> str:
    """Create an agent's missing default conversation; return its id.

    The conversation begins with the agent's system prompt as it is stored, which the next turn
    renders.

    Args:
        tx: The transaction.
        agent_id: An agent without this conversation.

    Raises:
        NotFound: There is no such agent.
    """
    organization_id, _ = damage.agent_of(tx, agent_id)
    now = tx.clock.now()
    conversation = Conversation(
        conversations.default_id(agent_id),
        organization_id,
        agent_id,
        is_default=True,
        created_at=now,
        updated_at=now,
    )
    system = _system(tx, conversation)
    conversations.insert_one(tx, replace(conversation, window=(system.id,), message_count=1))
    insert_messages(tx, [system])
    return conversation.id


def _examine(tx: Transaction, conversation_id: str) -> _Examination:
    conversation = conversations.get(tx, conversation_id)
    assert conversation is not None  # noqa: S101 - the caller has read it
    examined = _Examination(conversation, [])
    _read_window(tx, examined)
    _deny_abandoned_calls(tx, examined)
    _begin_with_system_message(tx, examined)
    rows = damage.count_rows(tx, conversation.id)
    if conversation.forked_from is None and conversation.message_count != rows:
        examined.faults.append(
            f"{conversation.message_count} messages were counted, but {rows} are stored"
        )
    percent = conversation.token_percent
    if percent is not None and not _LOWEST_PERCENT <= percent <= HIGHEST_PERCENT:
        examined.faults.append(
            f"the correction of token estimates was {percent} percent, and is 100 now"
        )
        examined.values["token_percent"] = None
    half_ended = damage.count_half_ended(tx, conversation.id)
    examined.note(half_ended, "ended runs were marked running, and are marked failed")
    return examined


def _read_window(tx: Transaction, examined: _Examination) -> None:
    """Read the window, and keep each valid message once.

    A valid message exists, has a known role, and belongs to the conversation or to
    one from which it was forked. It is not empty, and no other conversation's system message.
    """
    window_ids = list(examined.conversation.window)
    ids = list(dict.fromkeys(id for id in window_ids if isinstance(id, str)))
    rows_by_id = damage.by_ids(tx, ids)
    lineage = {span.conversation_id for span in conversations.lineage(tx, examined.conversation)}
    for row in (rows_by_id[id] for id in ids if id in rows_by_id):
        message = row.message
        is_foreign_prompt = (
            message.role == "system" and message.conversation_id != examined.conversation.id
        )
        if message.conversation_id not in lineage or is_foreign_prompt or not _is_sendable(message):
            continue
        examined.window.append(message)
        if not row.is_readable:
            examined.unreadable.append(message)
    examined.note(
        len(window_ids) - len(examined.window),
        "entries of the window were repeated, missing, empty or of another conversation, and "
        "were removed",
    )
    examined.note(
        len(examined.unreadable), "messages had unreadable parts, which are plain text now"
    )


def _is_sendable(message: Message) -> bool:
    """Return whether a model can be sent the message.

    The role must be known and allow the parts, and the message must not be empty.
    """
    if message.role not in get_args(Role) or (message.tool_calls and message.role not in _CALLING):
        return False
    if message.tool_returns:
        return message.role in _ANSWERING
    return bool(message.text.strip()) or any(
        not isinstance(part, TextPart) for part in message.parts
    )


def _deny_abandoned_calls(tx: Transaction, examined: _Examination) -> None:
    """Deny calls that wait for approval although their turn has failed.

    No client will answer them.
    """
    last = examined.window[-1] if examined.window else None
    if last is None or not last.is_waiting:
        return
    run = runs.find(tx, Scope(last.organization_id), last.run_id) if last.run_id else None
    if run is None or run.stop_reason in (None, "requires_approval"):
        return
    denial = denied(tx, last, UNAPPROVED)
    examined.new.append(denial)
    examined.window.append(denial)
    examined.note(len(denial.parts), "calls waited for approval in a failed turn, and were denied")


def _begin_with_system_message(tx: Transaction, examined: _Examination) -> None:
    system = damage.prompt_of(tx, examined.conversation.id)
    first = examined.window[0] if examined.window else None
    is_current = (
        system is None
        or system.id not in examined.conversation.window
        or (first and first.id == system.id)
    )
    if first is not None and first.role == "system" and is_current:
        return
    if system is None:
        system = _system(tx, examined.conversation)
        examined.new.append(system)
    examined.window = [system, *(message for message in examined.window if message.id != system.id)]
    examined.values["prompt_key"] = ""  # the next turn renders it again
    examined.faults.append(
        "the system message was missing at the start of the window, and was put there"
    )


def _system(tx: Transaction, conversation: Conversation) -> Message:
    organization_id, text = damage.agent_of(tx, conversation.agent_id)
    message = conversation.new_message("system", (TextPart(text),), tx.clock.now())
    return replace(message, organization_id=organization_id)
