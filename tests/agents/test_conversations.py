"""Conversations of an agent besides the default one.

Each has its own prompt, and may have its own model. Forks share messages, and a deletion keeps the
messages that a fork still needs.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from ricordo.agents.conversations import (
    cancel_conversation,
    change_conversation,
    create_conversation,
    fork_conversation,
    recompile_system,
    stop_and_delete,
)
from ricordo.agents.deletion import delete_conversation
from ricordo.agents.lifecycle import reset_messages
from ricordo.domain.agent import (
    Conversation,
    effective,
)
from ricordo.domain.ids import new_id
from ricordo.domain.message import (
    ApprovalPart,
    Message,
    Part,
    Role,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import ModelSettings
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, Conflict, Invalid, NotFound
from ricordo.llm.scripted import ScriptedModel
from ricordo.memory.recall import FoundMessage
from ricordo.search.index import MessageFilter, insert_messages
from ricordo.storage import conversations, deletion, messages
from ricordo.storage.engine.repository import Page
from tests.agents.test_lifecycle import run_jobs
from tests.seams.stage import Stage, faults_of, soon
from tests.seams.stores import killed_after

EVERYTHING = Page(limit=1000, order="asc")


async def thread(stage: Stage, agent: str, **spec: Any) -> str:
    return (await create_conversation(stage.runtime, Scope(), agent, spec)).id


async def stored_conversation(stage: Stage, id: str) -> Conversation:
    return await stage.store.read(lambda tx: conversations.require(tx, Scope(), id))


async def fork(stage: Stage, id: str, message_id: str | None = None) -> Conversation:
    return await fork_conversation(stage.runtime, Scope(), id, message_id=message_id)


async def window_of(stage: Stage, id: str) -> list[Message]:
    window = (await stored_conversation(stage, id)).window
    return await stage.store.read(lambda tx: messages.by_ids(tx, window))


async def texts_of(stage: Stage, thread: Conversation) -> list[str]:
    """Return the texts of the user and the assistant in a conversation, oldest first."""
    whole = await stage.store.read(
        lambda tx: conversations.page_of_history(tx, Scope(), thread, EVERYTHING)
    )
    return [
        message.text for message in whole if message.role in ("user", "assistant") and message.text
    ]


async def tell(stage: Stage, agent: str, id: str, words: str) -> None:
    """Send a message; the model answers with the same text in capitals."""
    stage.lines.append(words.upper())
    await stage.say(agent, words, conversation_id=id)


async def put(
    stage: Stage, agent: str, id: str, *new: tuple[Role, tuple[Part, ...]]
) -> list[Message]:
    """Store messages of any kind in a conversation's window, as a turn does."""
    made = [
        Message(
            new_id("message"),
            agent,
            id,
            role,
            parts,
            stage.store.clock.now(),
            organization_id=Scope().organization_id,
        )
        for role, parts in new
    ]
    window = [*(await stored_conversation(stage, id)).window, *(message.id for message in made)]

    def work(tx: Any) -> list[Message]:
        insert_messages(tx, made)
        conversations.save_window(tx, id, window, "key", added=len(made))
        return messages.by_ids(tx, [message.id for message in made])

    return await stage.store.write(work)


async def count(stage: Stage, table: str, where: str = "1 = 1") -> int:
    statement = text(f"SELECT count(*) AS n FROM {table} WHERE {where}")  # noqa: S608
    return int((await stage.store.read(lambda tx: tx.all(statement)))[0].n)


async def texts_found(stage: Stage, agent: str, words: str) -> list[str]:
    hits: list[FoundMessage] = await stage.runtime.recall_for(Scope()).messages(
        words, MessageFilter((agent,)), 50, "fts"
    )
    return sorted(hit.message.text for hit in hits)


async def test_a_conversations_model_settings_and_window_override_the_agents(
    stage: Stage,
) -> None:
    stage.runtime.models.add(ScriptedModel(["small"], name="small", context_window=16_000))
    own = ModelSettings(temperature=0.5, max_output_tokens=100, extra={"seed": 1})
    agent = await stage.agent(model_settings=own, context_window=50_000)
    state = await stage.state(agent)
    assert effective(state) is state

    def of(**fields: Any) -> Any:
        return effective(replace(state, conversation=replace(state.conversation, **fields))).agent

    assert of(model_settings={"temperature": None}).model_settings == replace(own, temperature=None)
    assert of(context_window=9_000).context_window == 9_000
    assert of(model="scripted/small").model_settings == own
    # `extra` is sent to its own provider unchanged, and another provider may refuse it.
    assert of(model="openai/gpt").model_settings == replace(own, extra={})
    made = await stored_conversation(stage, await thread(stage, agent, model="scripted/small"))
    assert (made.model, made.context_window) == ("scripted/small", 16_000)
    with pytest.raises(NotFound):
        await thread(stage, agent, model="scripted/nothing")
    assert await count(stage, "conversations") == 2


async def test_a_conversations_window_follows_its_model_and_returns_to_the_agents(
    stage: Stage,
) -> None:
    stage.runtime.models.add(ScriptedModel(["small"], name="small", context_window=16_000))
    id = await thread(stage, await stage.agent(), summary="Tea")

    async def changed(**changes: Any) -> tuple[str | None, int | None]:
        after = await change_conversation(stage.runtime, Scope(), id, changes)
        assert after.summary == "Tea"
        return after.model, after.context_window

    assert await changed(context_window=8_000) == (None, 8_000)
    assert await changed(model="scripted/small") == ("scripted/small", 16_000)
    assert await changed(model="scripted/small", context_window=5_000) == ("scripted/small", 5_000)
    assert await changed(context_window=None) == ("scripted/small", 16_000)
    assert await changed(model=None) == (None, None)
    with pytest.raises(NotFound):
        await changed(model="scripted/nothing")


async def test_a_fork_shares_its_sources_messages_and_then_diverges(
    stage: Stage,
) -> None:
    agent = await stage.agent(("human", "Her name is Ada."))
    await tell(stage, agent, conversations.default_id(agent), "one")
    source = await stage.thread(agent)
    rows = await count(stage, "messages")

    made = await fork(stage, source.id)

    assert made.window[1:] == source.window[1:]
    assert made.window[0] != source.window[0]
    assert await count(stage, "messages") == rows + 1
    assert made.message_count == source.message_count == 3
    await tell(stage, agent, source.id, "two")
    await tell(stage, agent, made.id, "three")
    system, *rest = stage.model.requests[-1].messages
    assert f"- CONVERSATION_ID: {made.id}" in system.text
    assert [message.text for message in rest] == ["one", "ONE", "three"]
    assert await texts_of(stage, made) == ["one", "ONE", "three", "THREE"]
    assert await texts_of(stage, source) == ["one", "ONE", "two", "TWO"]
    assert (await stored_conversation(stage, made.id)).message_count == 5
    again = await fork(stage, made.id)
    assert again.window[1:] == (await stored_conversation(stage, made.id)).window[1:]
    # The system message comes first in the history too.
    whole = await stage.store.read(
        lambda tx: conversations.page_of_history(tx, Scope(), again, EVERYTHING)
    )
    assert [message.id for message in whole] == list(again.window)


async def test_a_fork_up_to_a_message_behind_a_summary_keeps_the_summary_in_view(
    stage: Stage, agent: str
) -> None:
    """The summary is stored after the messages that follow it in the window."""
    source = await thread(stage, agent)
    for words in ("one", "two", "three"):
        await tell(stage, agent, source, words)
    system, *said = (await stored_conversation(stage, source)).window
    (summary,) = await put(stage, agent, source, ("summary", (TextPart("They counted."),)))
    window = [system, summary.id, *said[2:]]
    await stage.store.write(
        lambda tx: conversations.save_window(tx, source, window, "key", added=0)
    )

    made = await fork(stage, source, said[2])

    assert made.window[1:] == (summary.id, said[2])
    assert await texts_of(stage, made) == ["one", "ONE", "two"]
    # The summary also stays in the window when the source is deleted and only the shared part
    # remains.
    await stop_and_delete(stage.runtime, Scope(), source)
    assert [message.text for message in await window_of(stage, made.id)][1:] == [
        "They counted.",
        "two",
    ]
    assert await texts_found(stage, agent, "three") == []
    assert await texts_of(stage, made) == ["one", "ONE", "two"]


CALL = ToolCallPart("call-1", "roll_dice", "{}")
WAITING = replace(CALL, is_gated=True)
RETURN = ToolReturnPart("call-1", "roll_dice", "success", "6")


async def test_a_fork_at_a_call_includes_its_result(stage: Stage, agent: str) -> None:
    source = await thread(stage, agent)
    parts: list[tuple[Role, tuple[Part, ...]]] = [
        ("user", (TextPart("Roll."),)),
        ("approval", (WAITING,)),
        ("approval", (ApprovalPart("call-1", approves=True),)),
        ("tool", (RETURN,)),
        ("assistant", (TextPart("A six."),)),
    ]
    said = await put(stage, agent, source, *parts)
    for place in (1, 2, 3):
        made = await fork(stage, source, said[place].id)
        assert made.window[1:] == tuple(message.id for message in said[:4])
    assert (await fork(stage, source)).window[1:] == tuple(message.id for message in said)


@pytest.mark.parametrize(("role", "call_part"), [("approval", WAITING), ("assistant", CALL)])
async def test_a_fork_leaves_out_a_call_without_a_result(
    stage: Stage, agent: str, role: Role, call_part: ToolCallPart
) -> None:
    source = await thread(stage, agent)
    said = await put(
        stage,
        agent,
        source,
        ("user", (TextPart("Roll."),)),
        (role, (TextPart("I roll."), call_part)),
    )

    made = await fork(stage, source)

    assert made.window[1:] == (said[0].id,)
    assert await texts_of(stage, made) == ["Roll."]
    assert made.message_count == 2
    assert [message.is_waiting for message in await window_of(stage, made.id)] == [False, False]
    assert (await stored_conversation(stage, source)).window[-1] == said[1].id
    with pytest.raises(Invalid, match="no result yet"):
        await fork(stage, source, said[1].id)
    await tell(stage, agent, made.id, "Well?")
    assert faults_of(stage.model.requests[-1].messages) == []


async def test_a_fork_during_a_turn_takes_the_messages_saved_before_the_turn(
    stage: Stage, agent: str
) -> None:
    source = await thread(stage, agent)
    await tell(stage, agent, source, "one")
    turn, gate = await stage.asked(agent, "two", conversation_id=source, line="TWO")

    made = await fork(stage, source)

    gate.open()
    await soon(turn.wait())
    assert await texts_of(stage, made) == ["one", "ONE"]
    assert await texts_of(stage, await stored_conversation(stage, source)) == [
        "one",
        "ONE",
        "two",
        "TWO",
    ]
    assert made.message_count == len(made.window) == 3
    await tell(stage, agent, made.id, "three")
    assert [message.text for message in stage.model.requests[-1].messages[1:]] == [
        "one",
        "ONE",
        "three",
    ]


async def test_a_deleted_conversation_loses_its_rows_and_search_hits(
    stage: Stage, agent: str
) -> None:
    id = await thread(stage, agent)
    await tell(stage, agent, id, "tea")
    await tell(stage, agent, conversations.default_id(agent), "coffee")

    await stop_and_delete(stage.runtime, Scope(), id)

    for table in ("messages", "runs", "steps"):
        assert await count(stage, table, f"conversation_id = '{id}'") == 0
    assert await count(stage, "conversations") == 1
    assert await texts_found(stage, agent, "tea") == []
    assert await texts_found(stage, agent, "coffee") == ["COFFEE", "coffee"]
    for again in (stop_and_delete, cancel_conversation, fork_conversation, recompile_system):
        with pytest.raises(NotFound):
            await again(stage.runtime, Scope(), id)
    await run_jobs(stage)
    await stage.require_sound(agent)


async def test_an_agents_default_conversation_cannot_be_deleted_and_its_turn_continues(
    stage: Stage, agent: str
) -> None:
    own = conversations.default_id(agent)
    turn, gate = await stage.asked(agent, line="Here.")
    for way in (stop_and_delete, delete_conversation):
        with pytest.raises(Conflict, match="Reset the agent's messages instead"):
            await way(stage.runtime, Scope(), own)
    gate.open()
    await soon(turn.wait())
    assert [run.status for run in await stage.runs(agent)] == ["completed"]


async def test_cancelling_a_thread_leaves_the_others_running(stage: Stage, agent: str) -> None:
    one, other = [await thread(stage, agent) for _ in range(2)]
    await stage.asked(agent, conversation_id=one, line="Never.")
    turn, gate = await stage.asked(agent, conversation_id=other, line="Done.")
    (ended,) = await cancel_conversation(stage.runtime, Scope(), one)
    gate.open()
    await soon(turn.wait())
    runs = {run.conversation_id: run for run in await stage.runs(agent)}
    assert (ended, runs[one].status, runs[other].status) == (runs[one].id, "cancelled", "completed")


async def test_deleting_a_conversation_ends_a_turn_of_another_server(
    stage: Stage, agent: str
) -> None:
    id = await thread(stage, agent)
    turn, gate = await stage.asked(agent, conversation_id=id, line="Never.")
    elsewhere = dict(stage.runtime.live)
    stage.runtime.live.clear()

    await soon(stop_and_delete(stage.runtime, Scope(), id))

    assert await stage.runs(agent) == []
    stage.runtime.live.update(elsewhere)
    gate.open()
    await soon(turn.wait())
    assert await count(stage, "messages", f"conversation_id = '{id}'") == 0
    await stage.require_sound(agent)


async def test_messages_shared_by_forks_stay_until_the_last_fork_is_deleted(
    stage: Stage, agent: str
) -> None:
    root = await thread(stage, agent)
    await tell(stage, agent, root, "one")
    first = await fork(stage, root)
    await tell(stage, agent, root, "rooted")
    await tell(stage, agent, first.id, "two")
    second = await fork(stage, first.id)
    await tell(stage, agent, first.id, "lonely")
    await tell(stage, agent, second.id, "three")

    await stop_and_delete(stage.runtime, Scope(), root)
    await stop_and_delete(stage.runtime, Scope(), first.id)

    with pytest.raises(NotFound):
        await stored_conversation(stage, root)
    # Messages that no fork shares are deleted at once, also from the search index.
    assert await texts_found(stage, agent, "rooted lonely") == []
    assert await texts_of(stage, second) == ["one", "ONE", "two", "TWO", "three", "THREE"]
    seen = [message.text for message in await window_of(stage, second.id)]
    assert seen[1:] == ["one", "ONE", "two", "TWO", "three", "THREE"]

    await stop_and_delete(stage.runtime, Scope(), second.id)
    # The purge of the last fork added a job for its parent, and that job adds one for the root.
    await run_jobs(stage)
    await run_jobs(stage)  # the second run purges the root
    assert await count(stage, "conversations") == 1
    assert await count(stage, "messages") == 1
    assert await texts_found(stage, agent, "one two three") == []
    await stage.require_sound(agent)


@pytest.mark.parametrize("writes", [1, 2, 3, 4, 5])
async def test_a_deletion_cut_off_by_a_kill_is_finished_by_its_job(
    stage: Stage, agent: str, writes: int
) -> None:
    id = await thread(stage, agent)
    await tell(stage, agent, id, "tea")
    made = await fork(stage, id)
    await put(
        stage,
        agent,
        id,
        *((("user", (TextPart(f"later {n}"),))) for n in range(2 * deletion.PORTION + 10)),
    )

    async def delete_both() -> None:
        await stop_and_delete(stage.runtime, Scope(), id)
        await stop_and_delete(stage.runtime, Scope(), made.id)

    with pytest.raises(asyncio.CancelledError), killed_after(stage.runtime, writes):
        await delete_both()

    with pytest.raises(NotFound):
        await stored_conversation(stage, id)
    await run_jobs(stage)
    assert await texts_found(stage, agent, "later") == []
    if await stage.store.read(lambda tx: conversations.get(tx, made.id)):
        assert await texts_of(stage, made) == ["tea", "TEA"]
        await stop_and_delete(stage.runtime, Scope(), made.id)
    await run_jobs(stage)
    assert await count(stage, "conversations") == 1
    assert await count(stage, "messages") == 1
    await run_jobs(stage)


async def test_a_default_conversation_cannot_be_reset_while_forks_share_its_messages(
    stage: Stage, agent: str
) -> None:
    own = conversations.default_id(agent)
    await tell(stage, agent, own, "one")
    made = await fork(stage, own)

    with pytest.raises(Conflict, match=made.id):
        await reset_messages(stage.runtime, Scope(), agent)
    assert await texts_of(stage, made) == ["one", "ONE"]
    assert len((await stage.thread(agent)).window) == 3
    await stop_and_delete(stage.runtime, Scope(), made.id)
    await reset_messages(stage.runtime, Scope(), agent)
    await stage.require_sound(agent)


async def test_a_system_prompt_cannot_be_recompiled_during_a_turn(stage: Stage, agent: str) -> None:
    own = conversations.default_id(agent)
    turn, gate = await stage.asked(agent, line="Here.")
    with pytest.raises(Busy):
        await recompile_system(stage.runtime, Scope(), own)
    assert "AGENT_ID" in await recompile_system(stage.runtime, Scope(), own, is_dry=True)
    gate.open()
    await soon(turn.wait())
    assert "AGENT_ID" in await recompile_system(stage.runtime, Scope(), own)
    first = (await stored_conversation(stage, own)).window[1]
    await stage.store.write(lambda tx: conversations.save_window(tx, own, [first], "key", added=0))
    with pytest.raises(Conflict, match="does not begin with a system message"):
        await recompile_system(stage.runtime, Scope(), own)


async def test_conversations_of_another_organization_are_not_found(
    stage: Stage, agent: str
) -> None:
    id = await thread(stage, agent)
    stranger = Scope("org-11111111-1111-4111-8111-111111111111")
    for act in (stop_and_delete, cancel_conversation, fork_conversation, recompile_system):
        with pytest.raises(NotFound):
            await act(stage.runtime, stranger, id)
    with pytest.raises(NotFound):
        await change_conversation(stage.runtime, stranger, id, {"summary": "Mine"})
    with pytest.raises(NotFound):
        await create_conversation(stage.runtime, stranger, agent, {})
    assert (await stored_conversation(stage, id)).summary is None
