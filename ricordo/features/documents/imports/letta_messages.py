"""Import messages of a Letta database, in their order, and fill the context windows.

They keep their times, reasoning, tool calls and results. They are stored in batches. Messages that
are already stored are skipped, so that an interrupted import can continue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ricordo.domain.clock import to_micros
from ricordo.domain.message import Message
from ricordo.features.documents.agent_files import messages as formats
from ricordo.features.documents.imports.letta_run import REFUSALS, LettaRun, reason_of
from ricordo.features.documents.imports.letta_tables import Row
from ricordo.features.documents.imports.queries import Outcome
from ricordo.search.index import insert_messages
from ricordo.storage import agents, conversations, messages
from ricordo.storage.engine.store import Transaction

_MESSAGE = (
    "id role text content model name tool_calls tool_call_id otid tool_returns group_id sender_id"
    " conversation_id approval_request_id approve denial_reason approvals created_at"
)


@dataclass
class _Thread:
    """A conversation while its messages are read.

    `prompt` is the id of its system message in that database; this server's system message replaces
    it. Times are in microseconds.
    """

    home: formats.Home
    count: int = 0
    oldest: int = 0
    newest: int = 0
    prompt: str | None = None
    otids: set[str] = field(default_factory=set)


async def import_messages(run: LettaRun, agent: Row, threads: Sequence[Row]) -> None:
    """Import the messages of an imported agent, and fill its context windows.

    Args:
        run: The import.
        agent: The agent's row, with `id`, `name` and `message_ids` (its window).
        threads: The rows of its other conversations, whose rows here exist already.
    """
    id = run.id("agent", agent["id"])
    item = f"{agent['id']}/messages"
    if item in run.done:
        return
    if await run.store.read(lambda tx: agents.find(tx, run.scope, id)) is None:
        return  # the agent was deleted here meanwhile
    outcome = Outcome()
    default_home = formats.Home(id, conversations.default_id(id), run.organization, None)
    by_id: dict[str | None, _Thread] = {None: _Thread(default_home)}
    for row in threads:
        home = replace(default_home, conversation_id=run.id("conv", row["id"]))
        by_id[row["id"]] = _Thread(home)
    calls = _Calls()
    async for batch in run.batches(
        "messages", _MESSAGE, order="sequence_id created_at id", agent_id=agent["id"]
    ):
        new = []
        for row in batch:
            thread = by_id.get(row["conversation_id"])
            if thread is None:
                outcome.leave("messages", "", "their conversation was deleted there")
                continue
            try:
                message = _read(run, row, thread, calls)
            except REFUSALS as error:
                outcome.leave("messages", row["id"], reason_of(error))
                continue
            if message:
                new.append(message)
        outcome.take("messages", len(new))
        await run.store.write(partial(_insert_missing, batch=new))
        run.step(len(batch))
    windows: dict[str | None, list[str]] = {None: [str(id) for id in agent["message_ids"] or ()]}
    for row in threads:
        links = await run.rows(
            "conversation_messages",
            "message_id in_context",
            order="position",
            conversation_id=row["id"],
        )
        windows[row["id"]] = [str(link["message_id"]) for link in links if link["in_context"]]
    finish = partial(_finish, run=run, threads=by_id, windows=windows, imported=outcome)
    await run.import_once(item, "messages", str(agent["name"]), finish)


@dataclass
class _Calls:
    """Tool calls that later messages refer to.

    `names` are names of tools by call id; `of_approvals` are call ids by the id of the approval
    request.
    """

    names: dict[str, str] = field(default_factory=dict)
    of_approvals: dict[str, list[str]] = field(default_factory=dict)


def _tool_returns(row: Row, calls: _Calls) -> list[dict[str, Any]]:
    return [
        {
            **tool_return,
            "name": calls.names.get(str(tool_return.get("tool_call_id"))),
            **_output(tool_return),
        }
        for tool_return in row["tool_returns"] or ()
        if isinstance(tool_return, dict)
    ]


def _read(run: LettaRun, row: Row, thread: _Thread, calls: _Calls) -> Message | None:
    """Return the message in the form stored here; None for the system message."""
    if row["content"] is not None:
        content = row["content"]
    else:
        content = row["text"]
    raw: dict[str, Any] = {**row, "content": content, "created_at": row["created_at"].isoformat()}
    raw["sender_id"] = run.users.get(row["sender_id"], row["sender_id"])
    if row["approve"] is not None and not row["approvals"]:
        decision = {"type": "approval", "approve": row["approve"], "reason": row["denial_reason"]}
        call_ids = calls.of_approvals.get(row["approval_request_id"], [])
        raw["approvals"] = [{**decision, "tool_call_id": id} for id in call_ids]
    raw["tool_returns"] = _tool_returns(row, calls)
    if row["role"] == "system" and thread.prompt is None:
        thread.prompt = row["id"]
        return None
    message = formats.from_af(
        raw, run.id("message", row["id"]), thread.home, to_micros(row["created_at"])
    )
    calls.names.update((call.call_id, call.name) for call in message.tool_calls)
    if message.role == "approval" and message.tool_calls:
        calls.of_approvals[row["id"]] = [call.call_id for call in message.tool_calls]
    # Letta orders messages by number, but this server by time. So a message with an earlier time
    # than its predecessor gets the predecessor's time.
    thread.newest = max(thread.newest, message.created_at)
    thread.oldest = thread.oldest or thread.newest
    thread.count += 1
    is_twin = message.otid in thread.otids
    thread.otids.add(message.otid or "")
    return replace(message, created_at=thread.newest, otid=None if is_twin else message.otid)


def _output(tool_return: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the tool's outputs as lists of texts; an output that is one text becomes a list."""
    streams = {name: tool_return.get(name) for name in ("stdout", "stderr")}
    return {
        name: [value] if isinstance(value, str) else value or [] for name, value in streams.items()
    }


def _insert_missing(tx: Transaction, batch: Sequence[Message]) -> None:
    stored_ids = {message.id for message in messages.by_ids(tx, [row.id for row in batch])}
    insert_messages(tx, [message for message in batch if message.id not in stored_ids])


def _finish(
    tx: Transaction,
    outcome: Outcome,
    *,
    run: LettaRun,
    threads: Mapping[str | None, _Thread],
    windows: Mapping[str | None, Sequence[str]],
    imported: Outcome,
) -> None:
    """Fill the context windows after their system messages, and count the messages."""
    outcome.counts = imported.counts
    outcome.left_out = imported.left_out
    for letta_id, thread in threads.items():
        conversation = conversations.get(tx, thread.home.conversation_id)
        if conversation is None or not thread.count:
            continue
        window_ids = [
            run.id("message", id) for id in windows.get(letta_id, ()) if id != thread.prompt
        ]
        stored_ids = {
            message.id
            for message in messages.by_ids(tx, window_ids)
            if message.conversation_id == conversation.id
        }
        window = [
            *conversation.window[:1],
            *(id for id in window_ids if id in stored_ids),
            *conversation.window[1:],
        ]
        prompt = messages.by_ids(tx, conversation.window[:1])[0]
        messages.rewrite(tx, replace(prompt, created_at=min(prompt.created_at, thread.oldest - 1)))
        conversations.change(tx, conversation.id, window=window, prompt_key="")
        conversations.add_past(tx, conversation.id, thread.count, thread.newest)
