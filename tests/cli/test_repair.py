"""`ricordo doctor --repair`: its repairs on either database, its output, and its refusals."""

import asyncio
from pathlib import Path

import pytest

from ricordo.agents.repair import Repair
from ricordo.cli.doctor import (
    LOST,
    DoctorFinding,
    examine,
    examine_all,
    repair_all,
    repair_database,
    show,
)
from ricordo.domain.agent import AgentState
from ricordo.domain.message import ToolCallPart, ToolReturnPart
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict
from ricordo.search.index import insert_messages
from ricordo.storage import conversations, deletion, messages, runs
from ricordo.storage.engine.sqlite import lock_file, open_sqlite
from ricordo.storage.engine.store import Store, Transaction
from tests.cli.conftest import Shell
from tests.conftest import BOTH
from tests.seams import make
from tests.support.faults_corpus import KINDS, Broken, words_of

DATABASES = BOTH


async def agent_after_two_turns(store: Store) -> AgentState:
    """An agent that has answered two questions and called a tool."""
    state = await make.stored_agent(store)
    call = ToolCallPart("call-1", "conversation_search", "{}")
    said = [
        make.message(state.agent, "What do I like?"),
        make.message(state.agent, role="assistant", parts=(call,)),
        make.message(
            state.agent,
            role="tool",
            parts=(ToolReturnPart("call-1", call.name, "success", "Tea."),),
        ),
        make.message(state.agent, "Tea.", "assistant"),
        make.message(state.agent, "Thank you."),
        make.message(state.agent, "You are welcome.", "assistant"),
    ]

    def work(tx: Transaction) -> None:
        insert_messages(tx, said)
        window = [*state.conversation.window, *(one.id for one in said)]
        conversations.save_window(tx, state.conversation.id, window, "", added=len(said))

    await store.write(work)
    return state


async def damage_window(store: Store, state: AgentState, kind: str) -> None:
    def work(tx: Transaction) -> None:
        thread = conversations.get(tx, state.conversation.id)
        KINDS[kind](Broken(tx, state.agent, thread, messages.by_ids(tx, thread.window)))

    await store.write(work)


# Each turn pairs calls and results itself, so these windows need no repair.
UNNOTICED = {
    "late_result",
    "result_before_its_call",
    "result_left_and_call_stayed",
    "call_left_and_result_stayed",
}


async def test_a_repair_fixes_all_damage_at_once_and_a_second_one_nothing(
    store: Store,
) -> None:
    sound = await agent_after_two_turns(store)
    damaged = {}
    for kind in KINDS:
        state = await agent_after_two_turns(store)
        await damage_window(store, state, kind)
        damaged[state.conversation.id] = kind
    words = await store.read(words_of)
    threads, found = await store.read(lambda tx: examine_all(tx, is_alone=True))
    missed = set(damaged) - {one.conversation_id for one in found}
    assert {damaged[id] for id in missed} == UNNOTICED
    count, mended = await repair_all(store, is_alone=True)
    assert (count, len(mended)) == (threads, len(found))
    assert sound.conversation.id not in [one.conversation_id for one in mended]
    assert words.items() <= (await store.read(words_of)).items()
    assert await repair_all(store, is_alone=True) == (count, [])
    assert await store.read(runs.open_runs) == []


async def test_with_running_servers_only_conversations_without_a_turn_are_repaired(
    store: Store,
) -> None:
    busy, free = await agent_after_two_turns(store), await agent_after_two_turns(store)
    for state in (busy, free):
        await damage_window(store, state, "no_system_message")
    now = store.clock.now()
    turn = make.run(busy.agent, created_at=now, lease_expires_at=now + 10_000_000)
    await store.write(lambda tx: runs.open_run(tx, turn))
    _, found = await repair_all(store, is_alone=False)
    assert {one.conversation_id: one.is_busy for one in found} == {
        busy.conversation.id: True,
        free.conversation.id: False,
    }
    assert [run.id for run in await store.read(runs.open_runs)] == [turn.id]
    _, left = await store.read(lambda tx: examine_all(tx, is_alone=False))
    assert [one.conversation_id for one in left] == [busy.conversation.id]


async def a_broken_file(data: Path) -> None:
    store = open_sqlite(data / "ricordo.db")
    await damage_window(store, await agent_after_two_turns(store), "no_system_message")
    await store.close()


def conversation_findings() -> list[str]:
    return [finding.text for finding in examine() if finding.name.startswith("conversation")]


def test_doctor_reports_damage_without_changes_and_repair_fixes_it(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(a_broken_file(data))
    before = (data / "ricordo.db").read_bytes()
    told, thread = conversation_findings()
    assert told.startswith("1 of 1 need repair")
    assert ", what --repair will say: " in thread
    assert "the system message was missing at the start of the window" in thread
    assert (data / "ricordo.db").read_bytes() == before
    assert show(
        iter([DoctorFinding("version", "1"), DoctorFinding("conversations", told, "warning")])
    )
    assert "Nothing is wrong. Warnings: 1." in capsys.readouterr().out

    assert repair_database()
    done = capsys.readouterr().out
    assert "the system message was missing at the start of the window, and was put there" in done
    assert "1 repaired, 0 busy" in done
    assert conversation_findings() == ["1, all sound"]
    assert repair_database()
    assert "1 conversation in sqlite:///" in (said := capsys.readouterr().out)
    assert said.endswith(": nothing to repair.\n")


def test_repair_refuses_without_a_database_or_while_a_server_uses_it(
    data: Path, shell: Shell
) -> None:
    refused = shell.run("doctor", "--repair")
    assert (refused.returncode, "nothing to repair" in refused.stderr) == (2, True)
    asyncio.run(a_broken_file(data))
    lock = lock_file(data / "ricordo.db")
    try:
        assert conversation_findings() == []
        with pytest.raises(Conflict, match="Stop it"):
            repair_database()
    finally:
        lock.release()


async def test_an_agent_without_its_default_conversation_is_reported(store: Store) -> None:
    state = await agent_after_two_turns(store)
    await store.write(
        lambda tx: Broken(tx, state.agent, state.conversation, []).write(
            "conversations", "is_default", False, state.conversation.id
        )
    )
    _, found = await store.read(lambda tx: examine_all(tx, is_alone=True))
    assert [one.faults for one in found] == [(LOST,)]


async def test_an_agent_that_waits_for_its_purge_is_no_damage(store: Store) -> None:
    state = await agent_after_two_turns(store)

    def delete_agent(tx: Transaction) -> None:
        default = state.conversation
        Broken(tx, state.agent, default, []).write("conversations", "is_default", False, default.id)
        deletion.hide_agent(tx, Scope(), state.agent.id)

    await store.write(delete_agent)
    assert await store.read(lambda tx: examine_all(tx, is_alone=True)) == (1, [])


async def test_a_repair_goes_on_after_a_server_deleted_what_was_damaged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = await agent_after_two_turns(store)
    await damage_window(store, damaged, next(iter(KINDS)))
    gone = [Repair("agent-gone", (LOST,)), Repair("conv-gone", ("a fault",))]

    def with_gone_ones(tx: Transaction, *, is_alone: bool) -> tuple[int, list[Repair]]:
        count, found = examine_all(tx, is_alone=is_alone)
        return count, [*gone, *found]

    monkeypatch.setattr("ricordo.cli.doctor.examine_all", with_gone_ones)
    count, repairs = await repair_all(store, is_alone=True)
    assert (count, [one.conversation_id for one in repairs]) == (1, [damaged.conversation.id])
