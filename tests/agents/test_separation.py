"""What an agent learns in a conversation about a user is that user's: copies of blocks, new blocks, and what others see of it."""

from collections.abc import Sequence
from typing import Any

from ricordo.agents.conversations import create_conversation
from ricordo.domain.block import Block
from ricordo.domain.scope import Scope
from ricordo.storage import agents, history, proposals, users, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from tests.seams.stage import Stage, call

HUMAN = ("human", "Nobody is known yet.")


async def talk(stage: Stage, agent_id: str, user: str, **settings: Any) -> str:
    """Begin a conversation with this user; returns its id."""
    return (await create_conversation(stage.runtime, Scope(), agent_id, settings, user)).id


async def seen_by(stage: Stage, agent_id: str, conversation_id: str) -> dict[str, Block]:
    state = await stage.store.read(lambda tx: agents.load(tx, Scope(), agent_id, conversation_id))
    return {block.shown_label: block for block in state.blocks}


async def chain_of(stage: Stage, user: str) -> str:
    def read(tx: Transaction) -> str:
        owner = users.require(tx, Scope(), user).id
        chain = versions.of_owner(tx, Scope(), "user", owner)
        return chain.id if chain else ""

    return await stage.store.read(read)


async def waiting_of(stage: Stage, user: str) -> Sequence[Any]:
    chain_id = await chain_of(stage, user)
    which = proposals.ProposalFilter(chain_id=chain_id, waits=True)
    return await stage.store.read(lambda tx: proposals.page(tx, Scope(), Page(), which))


def append(label: str, content: str) -> tuple[str, Any]:
    return ("core_memory_append", {"label": label, "content": content})


async def test_the_first_edit_of_the_agents_block_makes_the_users_copy_which_stands_in_its_place(stage: Stage) -> None:
    agent_id = await stage.agent(HUMAN, tool_names=("core_memory_append",))
    ada, bob = [await talk(stage, agent_id, user) for user in ("ada", "bob")]
    stage.lines += [call("core_memory_append", label="human", content="Ada drinks tea."), "Noted."]
    await stage.say(agent_id, "I drink tea.", conversation_id=ada)
    of_ada, of_bob = await seen_by(stage, agent_id, ada), await seen_by(stage, agent_id, bob)
    assert of_ada["human"].value == "Nobody is known yet.\nAda drinks tea."
    assert of_bob["human"].value == await stage.block(agent_id, "human") == "Nobody is known yet."
    assert (of_ada["human"].agent_id, of_ada["human"].policy, len(of_ada)) == (agent_id, "direct", len(of_bob))
    listed = await stage.store.read(lambda tx: history.page(tx, of_ada["human"].chain_id, label="human"))
    assert [(one.reason, one.author.kind, one.author.id) for one in listed] == [
        ('human: + "Ada drinks tea."', "agent", agent_id),
        ("Copy of the agent's block", "agent", agent_id),
    ]
    assert "Ada drinks tea." in stage.model.requests[-1].messages[0].text
    stage.lines += ["Hello."]
    await stage.say(agent_id, "Hello.", conversation_id=bob)
    assert "tea" not in stage.model.requests[-1].messages[0].text
    # And from then on the copy is edited, which is made once.
    stage.lines += [call("core_memory_append", label="human", content="Ada has a cat."), "Noted."]
    await stage.say(agent_id, "I have a cat.", conversation_id=ada)
    after = await seen_by(stage, agent_id, ada)
    assert after["human"].id == of_ada["human"].id
    assert after["human"].value.endswith("Ada drinks tea.\nAda has a cat.")
