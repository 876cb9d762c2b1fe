"""Messages of the retired Letta V1 server, in their order, with their times, thoughts, calls and results; at last the windows.

They are stored in batches. What of a batch is there already is left alone, so that a killed import goes on with the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ricordo.domain.clock import to_micros
from ricordo.domain.message import Message
from ricordo.features.agent_files import messages as formats
from ricordo.features.imports.letta_run import REFUSALS, LettaRun, reason_of
from ricordo.features.imports.letta_tables import Row
from ricordo.features.imports.queries import Outcome
from ricordo.search.index import insert_messages
from ricordo.storage import agents, conversations, messages
from ricordo.storage.engine.store import Transaction

_MESSAGE = (
    "id role text content model name tool_calls tool_call_id otid tool_returns group_id sender_id conversation_id"
    " approval_request_id approve denial_reason approvals created_at"
)


@dataclass
class _Thread:
    """A conversation while its messages are read. `prompt` is the one it had there, in place of which it has one of ours."""

    home: formats.Home
    count: int = 0
    oldest: int = 0
    newest: int = 0
    prompt: str | None = None
    otids: set[str] = field(default_factory=set)


async def take_messages(run: LettaRun, agent: Row, threads: Sequence[Row]) -> None:
    """Take the messages of an agent that was taken, and put its windows together."""
    id, out = run.id("agent", agent["id"]), Outcome()
    is_there = await run.store.read(lambda tx: agents.find(tx, run.scope, id) is not None)
    if (item := f"{agent['id']}/messages") in run.done or not is_there:  # it was deleted here since
        return
    own = formats.Home(id, conversations.default_id(id), run.organization, None)
    homes: dict[str | None, _Thread] = {None: _Thread(own)}
    for one in threads:
        homes[one["id"]] = _Thread(replace(own, conversation_id=run.id("conv", one["id"])))
    names: dict[str, str] = {}
    asked: dict[str, list[str]] = {}
    async for batch in run.batches(
        "messages", _MESSAGE, order="sequence_id created_at id", agent_id=agent["id"]
    ):
        new = []
        for row in batch:
            thread = homes.get(row["conversation_id"])
            try:
                made = thread and _read(run, row, thread, names, asked)
            except REFUSALS as error:
                out.leave("messages", row["id"], reason_of(error))
                continue
            if made is None and thread is None:
                out.leave("messages", "", "their conversation was deleted there")
            elif made:
                new.append(made)
        out.take("messages", len(new))
        await run.store.write(partial(_insert_missing, some=new))
        run.step(len(batch))
    windows: dict[str | None, list[str]] = {None: [str(one) for one in agent["message_ids"] or ()]}
    for one in threads:
        held = await run.rows(
            "conversation_messages",
            "message_id in_context",
            order="position",
            conversation_id=one["id"],
        )
        windows[one["id"]] = [str(row["message_id"]) for row in held if row["in_context"]]
    finish = partial(_finish, run=run, homes=homes, windows=windows, told=out)
    await run.once(item, "messages", str(agent["name"]), finish)


def _read(
    run: LettaRun, row: Row, thread: _Thread, names: dict[str, str], asked: dict[str, list[str]]
) -> Message | None:
    """Return the message as stored here, None for the prompt. `names` are tools by call, `asked` calls by approval request."""
    content = row["content"] if row["content"] is not None else row["text"]
    sent: dict[str, Any] = {**row, "content": content, "created_at": row["created_at"].isoformat()}
    sent["sender_id"] = run.users.get(row["sender_id"], row["sender_id"])
    if row["approve"] is not None and not row["approvals"]:
        decided = {"type": "approval", "approve": row["approve"], "reason": row["denial_reason"]}
        calls = asked.get(row["approval_request_id"], [])
        sent["approvals"] = [{**decided, "tool_call_id": id} for id in calls]
    sent["tool_returns"] = [
        {**one, "name": names.get(str(one.get("tool_call_id"))), **_output(one)}
        for one in row["tool_returns"] or ()
        if isinstance(one, dict)
    ]
    if row["role"] == "system" and thread.prompt is None:
        thread.prompt = row["id"]
        return None
    made = formats.from_af(
        sent, run.id("message", row["id"]), thread.home, to_micros(row["created_at"])
    )
    names.update((call.call_id, call.name) for call in made.tool_calls)
    if made.role == "approval" and made.tool_calls:
        asked[row["id"]] = [call.call_id for call in made.tool_calls]
    # Order is by time here, and there by number: a time that goes back is raised to the one before.
    thread.newest = max(thread.newest, made.created_at)
    thread.oldest = thread.oldest or thread.newest
    thread.count += 1
    is_twin = made.otid in thread.otids
    thread.otids.add(made.otid or "")
    return replace(made, created_at=thread.newest, otid=None if is_twin else made.otid)


def _output(one: Mapping[str, Any]) -> dict[str, list[str]]:
    """What a tool printed, as lists also where it was one text."""
    given = {name: one.get(name) for name in ("stdout", "stderr")}
    return {
        name: [value] if isinstance(value, str) else value or [] for name, value in given.items()
    }


def _insert_missing(tx: Transaction, some: Sequence[Message]) -> None:
    there = {one.id for one in messages.by_ids(tx, [one.id for one in some])}
    insert_messages(tx, [one for one in some if one.id not in there])


def _finish(
    tx: Transaction,
    out: Outcome,
    *,
    run: LettaRun,
    homes: Mapping[str | None, _Thread],
    windows: Mapping[str | None, Sequence[str]],
    told: Outcome,
) -> None:
    """Put what was in context into the windows, behind their prompts, and count what was taken."""
    out.taken, out.left_out = told.taken, told.left_out
    for theirs, thread in homes.items():
        conversation = conversations.get(tx, thread.home.conversation_id)
        if conversation is None or not thread.count:
            continue
        wanted = [run.id("message", id) for id in windows.get(theirs, ()) if id != thread.prompt]
        there = {
            one.id for one in messages.by_ids(tx, wanted) if one.conversation_id == conversation.id
        }
        window = [
            *conversation.window[:1],
            *(id for id in wanted if id in there),
            *conversation.window[1:],
        ]
        prompt = messages.by_ids(tx, conversation.window[:1])[0]
        messages.rewrite(tx, replace(prompt, created_at=min(prompt.created_at, thread.oldest - 1)))
        conversations.change(tx, conversation.id, window=window, prompt_key="")
        conversations.add_past(tx, conversation.id, thread.count, thread.newest)
