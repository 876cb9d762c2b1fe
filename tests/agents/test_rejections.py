"""An agent reads each rejection once, even if a turn runs meanwhile or the server is killed."""

from typing import Any

import pytest

from ricordo.agents.conversations import create_conversation
from ricordo.agents.request import (
    Approval,
    NewMessage,
    TurnRequest,
)
from ricordo.agents.run_end import close_all
from ricordo.agents.turn import collect, run_turn
from ricordo.agents.turn_start import start_turn
from ricordo.domain.message import TextPart
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.tool import ToolRule
from ricordo.memory import approval
from ricordo.storage import proposals
from ricordo.storage.engine.repository import Page
from tests.memory.steps import owned_of, put
from tests.seams.stage import Stage, call, faults_of, soon
from tests.seams.stores import count_statements

NEW = (NewMessage("user", (TextPart("Hello."),)),)


async def propose_and_reject(
    stage: Stage, agent: str, conversation: str, text: str, reason: str = "No."
) -> None:
    """Let the agent propose this, and the user reject it."""
    stage.lines += [call("memory_insert", label="human", new_string=text), "Noted."]
    await stage.say(agent, conversation_id=conversation)
    await reject(stage, reason)


async def reject(stage: Stage, reason: str) -> None:
    owned = await owned_of(stage.store)
    which = proposals.ProposalFilter(chain_id=owned.chain.id, waits=True)
    (one,) = await stage.store.read(lambda tx: proposals.page(tx, Scope(), Page(), which))
    by = Actor("user", owned.user.id, "Ada")
    await stage.store.write(lambda tx: approval.reject(tx, Scope(), one.id, by, reason=reason))


async def new_conversation(stage: Stage, **spec: Any) -> tuple[str, str]:
    await put(stage.store, "human", "Ada")
    agent = await stage.agent(**spec)
    return agent, (await create_conversation(stage.runtime, Scope(), agent, {}, "ada")).id


def rejections_shown(stage: Stage) -> list[str]:
    """Return the rejections in the last request to the model."""
    return [
        message.text
        for message in stage.model.requests[-1].messages
        if "proposal_rejected" in message.text
    ]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
async def test_a_rejection_during_a_turn_is_reported_in_the_next_one(stage: Stage) -> None:
    agent, conversation = await new_conversation(stage)
    stage.lines += [call("memory_insert", label="human", new_string="Has a cat."), "Noted."]
    await stage.say(agent, conversation_id=conversation)
    turn, gate = await stage.asked(agent, conversation_id=conversation)
    await reject(stage, "No.")
    gate.open()
    await soon(turn.wait())
    assert rejections_shown(stage) == []
    for _ in range(2):
        stage.lines += ["I see."]
        await stage.say(agent, conversation_id=conversation)
        assert len(rejections_shown(stage)) == 1


async def test_a_rejection_is_reported_once_after_its_turn_was_killed(stage: Stage) -> None:
    agent, conversation = await new_conversation(stage)
    await propose_and_reject(stage, agent, conversation, "Has a cat.")
    # A turn takes over the rejection, and the server is killed before the model is called.
    assert not isinstance(
        await start_turn(
            stage.runtime, TurnRequest(Scope(), agent, NEW, conversation_id=conversation)
        ),
        str,
    )
    await stage.store.write(close_all)
    for _ in range(2):
        stage.lines += ["I see."]
        await stage.say(agent, conversation_id=conversation)
        assert len(rejections_shown(stage)) == 1


async def test_a_rejection_is_not_placed_between_a_waiting_call_and_its_result(
    stage: Stage,
) -> None:
    agent, conversation = await new_conversation(
        stage, tool_rules=(ToolRule("conversation_search", "requires_approval"),)
    )
    stage.lines += [call("memory_insert", label="human", new_string="Has a cat."), "Noted."]
    await stage.say(agent, conversation_id=conversation)
    stage.lines += [call("conversation_search", query="cat")]
    await stage.say(agent, conversation_id=conversation)
    await reject(stage, "No.")
    stage.lines += ["Nothing found."]
    request = TurnRequest(
        Scope(), agent, approval=Approval(approves=True), conversation_id=conversation
    )
    await soon(collect(await run_turn(stage.runtime, request)))
    assert (rejections_shown(stage), faults_of(stage.model.requests[-1].messages)) == ([], [])
    stage.lines += ["I see."]
    await stage.say(agent, conversation_id=conversation)
    assert (len(rejections_shown(stage)), faults_of(stage.model.requests[-1].messages)) == (1, [])


async def test_a_turn_without_rejections_costs_no_extra_statement(stage: Stage) -> None:
    agent, conversation = await new_conversation(stage)
    counts: list[Any] = []
    for _ in range(2):
        stage.lines += ["Hello."]
        await stage.say(agent, conversation_id=conversation)
        stage.lines += ["Hello."]
        with count_statements(stage.store) as counted:
            await stage.say(agent, conversation_id=conversation)
        counts.append(len(counted.statements))
        await propose_and_reject(stage, agent, conversation, "Has a cat.") if len(
            counts
        ) == 1 else None
        stage.lines += ["I see."]
        await stage.say(agent, conversation_id=conversation)
    assert counts[0] == counts[1] == 12
