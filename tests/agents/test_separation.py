"""What an agent learns about a user belongs to that user.

The tests check copies of blocks, new blocks, and what other users see.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ricordo.agents.conversations import create_conversation, open_conversation, stop_and_delete
from ricordo.agents.lifecycle import BlockSpec
from ricordo.agents.turn import collect
from ricordo.domain.block import Block
from ricordo.domain.scope import NOBODY, Actor, Scope
from ricordo.errors import Conflict, Forbidden, NotFound
from ricordo.memory.approval import Approved, approve
from ricordo.memory.user_memory import PutOptions, open_memory, put
from ricordo.storage import agents, blocks, conversations, history, proposals, users, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from tests.seams.stage import Stage, call, returns
from tests.seams.stores import count_statements

HUMAN = ("human", "Nobody is known yet.")


async def new_conversation(stage: Stage, agent_id: str, user: str, **settings: Any) -> str:
    """Begin a conversation with this user; returns its id."""
    return (await create_conversation(stage.runtime, Scope(), agent_id, settings, user)).id


async def blocks_in_prompt(stage: Stage, agent_id: str, conversation_id: str) -> dict[str, Block]:
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


async def test_the_first_edit_of_an_agents_block_makes_a_copy_for_the_user(
    stage: Stage,
) -> None:
    agent_id = await stage.agent(HUMAN, tool_names=("core_memory_append",))
    ada, bob = [await new_conversation(stage, agent_id, user) for user in ("ada", "bob")]
    stage.lines += [call("core_memory_append", label="human", content="Ada drinks tea."), "Noted."]
    await stage.say(agent_id, "I drink tea.", conversation_id=ada)
    of_ada, of_bob = (
        await blocks_in_prompt(stage, agent_id, ada),
        await blocks_in_prompt(stage, agent_id, bob),
    )
    assert of_ada["human"].value == "Nobody is known yet.\nAda drinks tea."
    assert of_bob["human"].value == await stage.block(agent_id, "human") == "Nobody is known yet."
    assert (of_ada["human"].agent_id, of_ada["human"].policy, len(of_ada)) == (
        agent_id,
        "direct",
        len(of_bob),
    )
    listed = await stage.store.read(
        lambda tx: history.page(tx, of_ada["human"].chain_id, label="human")
    )
    assert [(one.reason, one.author.kind, one.author.id) for one in listed] == [
        ('human: + "Ada drinks tea."', "agent", agent_id),
        ("Copy of the agent's block", "agent", agent_id),
    ]
    assert "Ada drinks tea." in stage.model.requests[-1].messages[0].text
    stage.lines += ["Hello."]
    await stage.say(agent_id, "Hello.", conversation_id=bob)
    assert "tea" not in stage.model.requests[-1].messages[0].text
    # Later edits change the copy, which is created only once.
    stage.lines += [call("core_memory_append", label="human", content="Ada has a cat."), "Noted."]
    await stage.say(agent_id, "I have a cat.", conversation_id=ada)
    after = await blocks_in_prompt(stage, agent_id, ada)
    assert after["human"].id == of_ada["human"].id
    assert after["human"].value.endswith("Ada drinks tea.\nAda has a cat.")


async def test_a_copy_whose_label_is_taken_gets_another_in_the_users_chain(
    stage: Stage,
) -> None:
    first, second = [
        await stage.agent(HUMAN, name=name, tool_names=("core_memory_append",))
        for name in ("Nina", "Dr. Otto")
    ]
    conversations = [await new_conversation(stage, one, "ada") for one in (first, second)]
    for agent_id, conversation_id, words in zip(
        (first, second), conversations, ("tea", "rum"), strict=True
    ):
        for more in ("", ", and cake"):
            stage.lines += [
                call("core_memory_append", label="human", content=f"Likes {words}{more}."),
                "Noted.",
            ]
            await stage.say(agent_id, "Hello.", conversation_id=conversation_id)
    of_ada = await stage.store.read(
        lambda tx: blocks.of_user(tx, Scope(), users.require(tx, Scope(), "ada").id)
    )
    assert [(block.label, block.seen_as, block.agent_id) for block in of_ada] == [
        ("agents/dr-otto/human", "human", second),
        ("human", None, first),
    ]
    seen = (await blocks_in_prompt(stage, second, conversations[1]))["human"]
    assert seen.value == "Nobody is known yet.\nLikes rum.\nLikes rum, and cake."
    prompt = stage.model.requests[-1].messages[0].text
    assert "<human>" in prompt
    assert "agents/" not in prompt
    assert "tea" not in prompt


async def test_two_conversations_of_a_user_that_edit_at_once_share_one_copy(stage: Stage) -> None:
    agent_id = await stage.agent(HUMAN, tool_names=("core_memory_append",))
    first, second = [await new_conversation(stage, agent_id, "ada") for _ in range(2)]
    turn, gate = await stage.asked(
        agent_id,
        line=call("core_memory_append", label="human", content="Has a cat."),
        conversation_id=first,
    )
    stage.lines += [
        call("core_memory_append", label="human", content="Has a dog."),
        "Noted.",
        "Noted.",
    ]
    await stage.say(agent_id, conversation_id=second)
    gate.open()
    answer = await collect(turn)
    seen = await blocks_in_prompt(stage, agent_id, first)
    assert sorted(seen["human"].value.split("\n")[1:]) in (
        ["Has a dog."],
        ["Has a cat.", "Has a dog."],
    )
    # Both added text at the same position. The second agent gets an error, and overwrites nothing.
    assert ("Has a cat." in seen["human"].value) == (returns(answer)[0][0] == "success")
    assert len(await stage.store.read(lambda tx: blocks.of_user(tx, Scope(), id_of_ada(tx)))) == 1


def id_of_ada(tx: Transaction) -> str:
    return users.require(tx, Scope(), "ada").id


async def test_a_shared_block_is_edited_in_place_and_marked_in_the_prompt(stage: Stage) -> None:
    specs = (BlockSpec("course", "The exam is in May.", shared=True), BlockSpec(*HUMAN))
    agent_id = await stage.agent(blocks=specs, tool_names=("core_memory_append",))
    ada, bob = [await new_conversation(stage, agent_id, user) for user in ("ada", "bob")]
    stage.lines += [
        call("core_memory_append", label="course", content="It is in room 5."),
        "Noted.",
        "Hello.",
    ]
    await stage.say(agent_id, conversation_id=ada)
    await stage.say(agent_id, conversation_id=bob)
    prompt = stage.model.requests[-1].messages[0].text
    assert "It is in room 5." in prompt
    assert prompt.count("- shared=true (everybody you talk with sees it)\n") == 1
    assert await chain_of(stage, "ada") == ""
    assert await stage.block(agent_id, "course") == "The exam is in May.\nIt is in room 5."


async def test_a_proposed_edit_of_an_agents_block_waits_for_the_user(stage: Stage) -> None:
    agent_id = await stage.agent(
        blocks=(BlockSpec("plan", "No plan.", policy="propose"),),
        tool_names=("core_memory_append",),
    )
    ada = await new_conversation(stage, agent_id, "ada")
    stage.lines += [call("core_memory_append", label="plan", content="Learn Latin."), "Proposed."]
    await stage.say(agent_id, conversation_id=ada)
    (waiting,) = await waiting_of(stage, "ada")
    assert (waiting.label, waiting.base_value, waiting.value) == (
        "plan",
        "No plan.",
        "No plan.\nLearn Latin.",
    )
    assert (await blocks_in_prompt(stage, agent_id, ada))["plan"].value == "No plan."


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "delete", "path": "/memories/human"},
        {"command": "rename", "old_path": "/memories/human", "new_path": "/memories/person"},
    ],
)
async def test_an_agent_cannot_delete_or_rename_its_block_in_a_users_conversation(
    stage: Stage, arguments: dict[str, str]
) -> None:
    agent_id = await stage.agent(HUMAN, tool_names=("memory",))
    ada = await new_conversation(stage, agent_id, "ada")
    stage.lines += [call("memory", **arguments), "So be it."]
    ((status, told),) = returns(await stage.say(agent_id, conversation_id=ada))
    assert status == "error"
    assert "is also used in conversations with others" in told
    assert await stage.block(agent_id, "human") == HUMAN[1]
    # In a conversation without a user the agent may do this.
    stage.lines += [call("memory", **arguments), "So be it."]
    assert [status for status, _ in returns(await stage.say(agent_id))] == ["success"]


async def test_a_new_block_belongs_to_the_user_under_the_agents_policy(stage: Stage) -> None:
    create = call(
        "memory",
        command="create",
        path="/memories/aims",
        file_text="Learn Latin.",
        description="What they want",
    )
    careful = await stage.agent(tool_names=("memory",))
    bold = await stage.agent(tool_names=("memory",), settings={"user_block_policy": "direct"})
    for agent_id in (careful, bold):
        ada = await new_conversation(stage, agent_id, "ada")
        stage.lines += [create, "Noted."]
        ((_, told),) = returns(await stage.say(agent_id, conversation_id=ada))
        seen = await blocks_in_prompt(stage, agent_id, ada)
        if agent_id == careful:
            assert "waits for the owner" in told
            assert seen == {}
            (waiting,) = await waiting_of(stage, "ada")
            by = Actor("user", await stage.store.read(id_of_ada), "ada")
            approved = await stage.store.write(lambda tx: approve(tx, Scope(), waiting.id, by))  # noqa: B023 - at once
            assert isinstance(approved, Approved)
            made = (await blocks_in_prompt(stage, agent_id, ada))["aims"]
            assert (made.value, made.description, made.agent_id) == (
                "Learn Latin.",
                "What they want",
                careful,
            )
        else:
            # Another agent's block has this label now. This agent cannot see it.
            assert "Choose another label." in told
            stage.lines += [
                call("memory", command="create", path="/memories/goals", file_text="Learn Latin."),
                "Noted.",
            ]
            await stage.say(agent_id, conversation_id=ada)
            made = (await blocks_in_prompt(stage, agent_id, ada))["goals"]
            assert (made.policy, made.agent_id) == ("direct", bold)
        assert {
            block.label
            for block in await stage.store.read(lambda tx: blocks.of_agent(tx, agent_id))  # noqa: B023
        } == set()


async def test_an_agent_without_users_edits_its_own_block(
    stage: Stage,
) -> None:
    agent_id = await stage.agent(HUMAN, tool_names=("core_memory_append",))
    stage.lines += [
        call("core_memory_append", label="human", content="Likes tea."),
        "Noted.",
        "Hello.",
    ]
    await stage.say(agent_id)
    assert await stage.block(agent_id, "human") == "Nobody is known yet.\nLikes tea."
    assert "shared" not in stage.model.requests[-1].messages[0].text


async def test_a_users_default_conversation_is_one_if_opened_at_once_and_only_the_users(
    stage: Stage,
) -> None:
    agent_id = await stage.agent(HUMAN)
    ada, bob = [
        await stage.store.write(
            lambda tx, name=name: Scope().acting_for(users.find_or_make(tx, Scope(), name))
        )  # type: ignore[misc]
        for name in ("ada", "bob")
    ]
    opened = await asyncio.gather(
        *(open_conversation(stage.runtime, ada, "default", agent_id) for _ in range(5))
    )
    assert len({one.id for one in opened}) == 1
    stage.lines += ["Hello Ada.", "Hello."]
    await stage.say(agent_id, "I am Ada.", scope=ada)
    await stage.say(agent_id, "I am nobody.")
    of_ada, own = [
        await stage.store.read(lambda tx, scope=scope: agents.load(tx, scope, agent_id))
        for scope in (ada, Scope())  # type: ignore[misc]
    ]
    assert (of_ada.conversation.id, of_ada.conversation.user_id) == (opened[0].id, ada.subject)
    assert own.conversation.is_default
    assert own.conversation.user_id is None
    listed = await stage.store.read(
        lambda tx: conversations.page(tx, Scope(), Page(), conversations.ConversationFilter())
    )
    assert listed == []
    with pytest.raises(NotFound):
        await stage.say(agent_id, "Let me in.", scope=bob, conversation_id=opened[0].id)
    with pytest.raises(Forbidden):
        await stage.say(agent_id, "For all.", scope=bob, conversation_id=own.conversation.id)
    with pytest.raises(Conflict):
        await stop_and_delete(stage.runtime, ada, opened[0].id)


async def test_an_agent_created_for_a_user_uses_its_default_conversation_for_them(
    stage: Stage,
) -> None:
    agent_id = await stage.agent(user="ada")
    ada = Scope().acting_for(await stage.store.read(lambda tx: users.require(tx, Scope(), "ada")))
    for scope in (ada, Scope()):
        assert (await open_conversation(stage.runtime, scope, "default", agent_id)).is_default
    stage.lines += ["Hello."]
    answer = await stage.say(agent_id, scope=ada)
    assert answer.run.conversation_id == conversations.default_id(agent_id)
    nobody = replace(Scope(), subject_id=NOBODY)
    with pytest.raises(NotFound):
        await open_conversation(stage.runtime, nobody, "default", agent_id)


async def test_a_users_block_replaces_an_agents_block_but_not_a_shared_one(stage: Stage) -> None:
    agent_id = await stage.agent(
        blocks=(BlockSpec("course", "The exam is in May.", shared=True), BlockSpec("plan", "None."))
    )
    memory = await stage.store.write(lambda tx: open_memory(tx, Scope(), "ada", makes=True))
    by = Actor("user", memory.user.id, "ada")
    for label in ("course", "plan"):
        await stage.store.write(lambda tx, label=label: put(tx, memory, label, "My own.", by))  # type: ignore[misc]
    seen = await blocks_in_prompt(stage, agent_id, await new_conversation(stage, agent_id, "ada"))
    assert (seen["course"].value, seen["plan"].value) == ("The exam is in May.", "My own.")


async def test_a_users_turn_and_an_edit_of_a_copy_each_cost_one_more_statement(
    stage: Stage,
) -> None:
    agent_id = await stage.agent(HUMAN, tool_names=("core_memory_append",))
    ada = await stage.store.write(
        lambda tx: Scope().acting_for(users.find_or_make(tx, Scope(), "ada"))
    )
    counts: dict[str, list[int]] = {}
    for user, scope in (("nobody", Scope()), ("ada", ada)):
        stage.lines += [call("core_memory_append", label="human", content="Likes tea."), "Noted."]
        await stage.say(agent_id, scope=scope)
        for lines in (
            ["Hello."],
            [call("core_memory_append", label="human", content="Likes rum."), "Noted."],
        ):
            stage.lines += lines
            with count_statements(stage.store) as counted:
                await stage.say(agent_id, scope=scope)
            counts.setdefault(user, []).append(len(counted.statements))
    # Besides, an edit is checked against the user's "never remember" rules, in one more statement.
    assert counts["ada"] == [counts["nobody"][0] + 1, counts["nobody"][1] + 2]


async def test_a_copy_gets_a_label_that_is_valid_and_unique_in_the_users_chain(
    stage: Stage,
) -> None:
    """A copied label must not clash with routes.

    It must also differ from other labels by more than case.
    """
    agent_id = await stage.agent(
        ("Human", "Nobody."), name="History", tool_names=("core_memory_append",)
    )
    memory = await stage.store.write(lambda tx: open_memory(tx, Scope(), "ada", makes=True))
    by = Actor("user", memory.user.id, "ada")
    await stage.store.write(lambda tx: put(tx, memory, "human", "My own.", by))
    ada = await new_conversation(stage, agent_id, "ada")
    stage.lines += [call("core_memory_append", label="Human", content="Likes tea."), "Noted."]
    assert [status for status, _ in returns(await stage.say(agent_id, conversation_id=ada))] == [
        "success"
    ]
    seen = await blocks_in_prompt(stage, agent_id, ada)
    assert {label: block.label for label, block in seen.items()} == {
        "Human": f"agents/{agent_id}/Human",
        "human": "human",
    }


@pytest.mark.parametrize("policy", ["direct", "propose"])
async def test_a_new_block_that_differs_from_another_only_in_capitals_fails_its_call(
    stage: Stage, policy: str
) -> None:
    agent_id = await stage.agent(tool_names=("memory",), settings={"user_block_policy": policy})
    memory = await stage.store.write(lambda tx: open_memory(tx, Scope(), "ada", makes=True))
    by = Actor("user", memory.user.id, "ada")
    await stage.store.write(
        lambda tx: put(tx, memory, "aims", "My own.", by, PutOptions(agent_id="agent-other"))
    )
    ada = await new_conversation(stage, agent_id, "ada")
    stage.lines += [
        call("memory", command="create", path="/memories/Aims", file_text="Learn Latin."),
        "So be it.",
    ]
    ((status, told),) = returns(await stage.say(agent_id, conversation_id=ada))
    assert status == "error"
    assert "capitals" in told
    kept = await stage.store.read(lambda tx: blocks.of_user(tx, Scope(), id_of_ada(tx)))
    assert [(block.label, block.value) for block in kept] == [("aims", "My own.")]
    assert await waiting_of(stage, "ada") == []


async def test_an_approved_new_block_has_the_agents_policy_for_its_users(
    stage: Stage,
) -> None:
    agent_id = await stage.agent(tool_names=("memory",), settings={"user_block_policy": "explicit"})
    ada = await new_conversation(stage, agent_id, "ada")
    stage.lines += [
        call("memory", command="create", path="/memories/aims", file_text="Learn Latin."),
        "Noted.",
    ]
    await stage.say(agent_id, conversation_id=ada)
    (waiting,) = await waiting_of(stage, "ada")
    by = Actor("user", await stage.store.read(id_of_ada), "ada")
    await stage.store.write(lambda tx: approve(tx, Scope(), waiting.id, by))
    made = (await blocks_in_prompt(stage, agent_id, ada))["aims"]
    assert (made.policy, made.agent_id, made.is_users) == ("explicit", agent_id, True)
