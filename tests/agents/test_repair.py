"""Repair of broken conversations.

Each kind of damage is repaired, the next message is answered, and no text of a user changes.
"""

from sqlalchemy import text

from ricordo.agents.conversations import fork_conversation
from ricordo.agents.repair import Repair, repair, restore_default_conversation
from ricordo.domain.message import ToolCallPart
from ricordo.domain.scope import Scope
from ricordo.llm.openai_format import to_messages
from ricordo.llm.scripted import call
from ricordo.memory.compaction import percent_after_refusal
from ricordo.storage import conversations, damage, messages, runs
from ricordo.storage.engine.store import Transaction
from tests.seams import make
from tests.seams.stage import Stage, text_of
from tests.support.faults_corpus import KINDS, Broken, words_of
from tests.support.faults_wire import faults_of


async def agent_after_two_turns(stage: Stage) -> str:
    agent = await stage.agent()
    stage.lines.extend(
        [call("conversation_search", query="tea"), "You like tea.", "You are welcome."]
    )
    await stage.say(agent, "What do I like?")
    await stage.say(agent, "Thank you.")
    return agent


async def damage_window(stage: Stage, agent_id: str, kind: str) -> None:
    state = await stage.state(agent_id)

    def work(tx: Transaction) -> None:
        window = messages.by_ids(tx, state.conversation.window)
        KINDS[kind](Broken(tx, state.agent, state.conversation, window))

    await stage.store.write(work)


async def repair_window(stage: Stage, agent_id: str) -> Repair:
    thread = conversations.default_id(agent_id)
    return await stage.store.write(lambda tx: repair(tx, thread, is_alone=True))


async def inspect_window(stage: Stage, agent_id: str) -> Repair:
    thread = conversations.default_id(agent_id)
    return await stage.store.read(lambda tx: repair(tx, thread, is_alone=True, is_dry=True))


async def dump(stage: Stage) -> list[object]:
    tables = ("messages", "conversations", "runs")
    read = "SELECT * FROM {} ORDER BY seq".format
    return await stage.store.read(
        lambda tx: [tx.connection.execute(text(read(name))).all() for name in tables]
    )


async def require_an_answer(stage: Stage, agent_id: str) -> None:
    stage.lines.clear()
    stage.lines.append("Still here.")
    assert text_of(await stage.say(agent_id, "Are you there?")) == "Still here."
    assert faults_of({"messages": to_messages(stage.model.requests[-1].messages)}) == []


def test_the_corpus_has_at_least_forty_kinds_of_damage() -> None:
    assert len(KINDS) >= 40


async def test_after_a_repair_the_next_message_is_answered_and_no_text_is_lost(
    stage: Stage,
) -> None:
    repaired = 0
    for kind in KINDS:
        agent = await agent_after_two_turns(stage)
        await damage_window(stage, agent, kind)
        words = await stage.store.read(words_of)
        before = await dump(stage)

        seen = await inspect_window(stage, agent)
        assert await dump(stage) == before, kind

        done = await repair_window(stage, agent)
        assert bool(done.faults) == bool(seen.faults), kind
        assert not done.is_busy, kind
        assert words.items() <= (await stage.store.read(words_of)).items(), kind
        assert (await inspect_window(stage, agent)).faults == (), kind
        repaired += bool(done.faults)

        await require_an_answer(stage, agent)
        assert words.items() <= (await stage.store.read(words_of)).items(), kind
        history = await stage.history(agent)
        assert (await stage.thread(agent)).message_count == len(history), kind
        if kind in ("unknown_part", "parts_are_text", "open_run_with_unreadable_message"):
            assert any("My words." in message.text for message in history), kind
    assert repaired >= 20


async def test_a_sound_conversation_has_no_faults(stage: Stage) -> None:
    agent = await agent_after_two_turns(stage)
    before = await dump(stage)
    assert (await inspect_window(stage, agent)).faults == ()
    assert (await repair_window(stage, agent)).faults == ()
    assert await dump(stage) == before


async def test_a_correction_of_estimates_that_a_refusal_can_teach_is_no_fault(stage: Stage) -> None:
    agent = await agent_after_two_turns(stage)
    thread = conversations.default_id(agent)
    taught = percent_after_refusal(estimate=10, window_tokens=100_000, percent=100)
    for percent, is_fault in ((401, False), (taught, False), (taught + 1, True)):
        await stage.store.write(
            lambda tx, percent=percent: conversations.change(tx, thread, token_percent=percent)
        )
        found = await inspect_window(stage, agent)
        assert bool(found.faults) is is_fault, percent


async def test_calls_that_wait_for_approval_are_no_fault(stage: Stage) -> None:
    agent = await agent_after_two_turns(stage)
    state = await stage.state(agent)

    def work(tx: Transaction) -> None:
        it = Broken(
            tx, state.agent, state.conversation, messages.by_ids(tx, state.conversation.window)
        )
        run = it.run(ended_at=tx.clock.now(), stop_reason="requires_approval")
        it.write("runs", "status", "completed", run.id)
        it.add(
            "approval", ToolCallPart("x", "conversation_search", "{}", is_gated=True), run_id=run.id
        )
        conversations.change(tx, it.thread.id, message_count=len(it.window))

    await stage.store.write(work)
    assert (await repair_window(stage, agent)).faults == ()


async def test_a_conversation_with_a_running_turn_is_not_repaired(stage: Stage) -> None:
    agent = await agent_after_two_turns(stage)
    await damage_window(stage, agent, "orphaned_call")
    state = await stage.state(agent)
    now = stage.store.clock.now()
    run = make.run(state.agent, created_at=now, lease_expires_at=now + 10_000_000)
    await stage.store.write(lambda tx: runs.open_run(tx, run))
    before = await dump(stage)
    thread = state.conversation.id
    found = await stage.store.write(lambda tx: repair(tx, thread, is_alone=False))
    assert found.is_busy
    assert await dump(stage) == before


async def test_a_forks_shared_messages_are_no_fault(stage: Stage) -> None:
    agent = await agent_after_two_turns(stage)
    fork = await fork_conversation(stage.runtime, Scope(), conversations.default_id(agent))
    assert (await stage.store.write(lambda tx: repair(tx, fork.id, is_alone=True))).faults == ()


async def test_an_agent_without_its_default_conversation_gets_a_new_one(stage: Stage) -> None:
    agent = await agent_after_two_turns(stage)
    await stage.store.write(lambda tx: tx.connection.execute(text("DELETE FROM conversations")))
    assert await stage.store.read(damage.agents_without_conversation) == [agent]
    await stage.store.write(lambda tx: restore_default_conversation(tx, agent))
    assert await stage.store.read(damage.agents_without_conversation) == []
    await require_an_answer(stage, agent)
