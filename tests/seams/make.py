"""Builders of domain values with defaults: `make.message(agent, "I like tea")`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import select

from ricordo.agents.deletion import purge_portion
from ricordo.domain.agent import Agent, AgentState, Conversation
from ricordo.domain.block import Block, Chain
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message, Role, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.run import Run, Step
from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER, Actor, Scope
from ricordo.domain.tool import Tool
from ricordo.domain.version import ChangeMetadata
from ricordo.memory.edits import EditContext
from ricordo.search.index import insert_messages, insert_passages
from ricordo.storage import agents, archives, blocks, conversations, deletion, messages, tools
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.core_tables import agents as agent_rows
from ricordo.storage.schema.core_tables import agents_tags
from ricordo.storage.schema.core_tables import conversations as conversation_rows
from tests.seams.stores import START


def _new(kind: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": new_id(kind),
        "organization_id": LOCAL_ORGANIZATION,
        "created_at": START,
        "updated_at": START,
    } | fields


def agent(name: str = "Nina", **fields: Any) -> Agent:
    usual = {
        "agent_type": "letta_v1_agent",
        "system": "You are a helpful companion.",
        "created_by": LOCAL_USER,
    }
    return Agent(**_new("agent", name=name, model="scripted/model", **usual) | fields)


def conversation(of: Agent, **fields: Any) -> Conversation:
    """Return the agent's default conversation, or another one with an id in `fields`."""
    default = conversations.default_id(of.id)
    given = {
        "agent_id": of.id,
        "organization_id": of.organization_id,
        "is_default": fields.get("id", default) == default,
    }
    times = {"created_at": of.created_at, "updated_at": of.created_at}
    return Conversation(**_new("conv", **given, **times) | {"id": default} | fields)


def message(of: Agent, text: str = "Hello.", role: Role = "user", **fields: Any) -> Message:
    """Return a text message in the agent's default conversation.

    `parts` in `fields` replaces the text.
    """
    given = {
        "id": new_id("message"),
        "conversation_id": conversations.default_id(of.id),
        "organization_id": of.organization_id,
        "parts": (TextPart(text),),
        "created_at": START,
    }
    return Message(agent_id=of.id, role=role, **given | fields)


def call(
    of: Agent, name: str, arguments: str = "{}", *, call_id: str = "call-1", **fields: Any
) -> Message:
    return message(
        of, role="assistant", **{"parts": (ToolCallPart(call_id, name, arguments),)} | fields
    )


def result(
    of: Agent, name: str, content: str = "Done.", *, call_id: str = "call-1", **fields: Any
) -> Message:
    return message(
        of, role="tool", **{"parts": (ToolReturnPart(call_id, name, "success", content),)} | fields
    )


def chain(owner_kind: str = "block", owner_id: str = "", **fields: Any) -> Chain:
    given = {
        "id": new_id("chain"),
        "organization_id": LOCAL_ORGANIZATION,
        "owner_id": owner_id or new_id("block"),
    }
    return Chain(**given | {"owner_kind": owner_kind} | fields)


def block(label: str = "human", value: str = "Her name is Ada.", **fields: Any) -> Block:
    return Block(**_new("block", label=label, value=value, chain_id=new_id("chain")) | fields)


def chain_for(one: Block) -> Chain:
    return chain("block", one.id, id=one.chain_id, organization_id=one.organization_id)


def tool(name: str = "roll_dice", **fields: Any) -> Tool:
    description, parameters = f"Use {name}.", {"type": "object", "properties": {}, "required": []}
    schema = {"name": name, "description": description, "parameters": parameters}
    return Tool(
        **_new("tool", name=name, tool_type="custom", description=description, json_schema=schema)
        | fields
    )


def archive(name: str = "Notes", **fields: Any) -> Archive:
    return Archive(**_new("archive", name=name) | fields)


def passage(of: Archive, text: str = "Tea grows in Darjeeling.", **fields: Any) -> Passage:
    return Passage(
        **_new("passage", archive_id=of.id, text=text)
        | {"organization_id": of.organization_id}
        | fields
    )


def run(of: Agent, **fields: Any) -> Run:
    given = {
        "id": new_id("run"),
        "agent_id": of.id,
        "organization_id": of.organization_id,
        "created_at": START,
    }
    lease = {"status": "running", "lease_token": "token-1", "lease_expires_at": START + 30_000_000}
    return Run(**{"conversation_id": conversations.default_id(of.id)} | given | lease | fields)


def step(of: Run, **fields: Any) -> Step:
    given = {
        "id": new_id("step"),
        "run_id": of.id,
        "agent_id": of.agent_id,
        "conversation_id": of.conversation_id,
    }
    model = {"model": "model", "model_handle": "scripted/model", "provider": "scripted"}
    times = {"organization_id": LOCAL_ORGANIZATION, "created_at": START, "started_at": START}
    return Step(**given | model | times | fields)


def change_metadata(by: str = "user-1", **fields: Any) -> ChangeMetadata:
    kind: Any = by.partition("-")[0]
    return ChangeMetadata(**{"author": Actor(kind, by, "Ada"), "reason": "A reason"} | fields)


def edit_context(state: AgentState, **fields: Any) -> EditContext:
    author = Actor("agent", state.agent.id, state.agent.name)
    return EditContext(**{"author": author, "run_id": "run-1", "step_id": "step-1"} | fields)


async def stored_agent(
    store: Store,
    one: Agent | None = None,
    *,
    with_blocks: Sequence[Block] = (),
    with_tools: Sequence[Tool] = (),
    tags: Sequence[str] = (),
) -> AgentState:
    """Store an agent with a default conversation, system message, blocks, and tools."""
    one = one or agent()

    def work(tx: Transaction) -> AgentState:
        system = message(one, one.system, "system", created_at=one.created_at)
        agents.insert_one(tx, one, tags)
        conversations.insert_one(tx, conversation(one, window=(system.id,), message_count=1))
        insert_messages(tx, [system])
        if with_blocks:
            own = chain("agent", one.id)
            placed = [replace(block, chain_id=own.id) for block in with_blocks]
            blocks.attach(
                tx, one.id, blocks.insert_all(tx, placed, [own], change_metadata()), is_new=True
            )
        tools.insert_all(tx, with_tools)
        tools.attach(tx, one.id, [tool.id for tool in with_tools])
        return agents.load_whole(tx, Scope(one.organization_id), one.id)

    return await store.write(work)


async def stored_blocks(store: Store, *new: Block) -> list[Block]:
    return await store.write(
        lambda tx: blocks.insert_all(tx, new, [chain_for(one) for one in new], change_metadata())
    )


async def stored_messages(store: Store, *new: Message) -> list[Message]:
    """Store and index messages; return them as the database reads them, with their seq."""

    def work(tx: Transaction) -> list[Message]:
        insert_messages(tx, new)
        return messages.by_ids(tx, [one.id for one in new])

    return await store.write(work)


async def stored_archive(
    store: Store,
    owner: Agent,
    *texts: str,
    name: str = "Notes",
    embedding: str | None = None,
    **fields: Any,
) -> Archive:
    """Store an archive that belongs to the agent, with a passage for each text."""
    new = archive(name, embedding=embedding)

    def work(tx: Transaction) -> Archive:
        archives.insert_one(tx, new, owner=owner.id)
        return insert_passages(tx, new, [passage(new, text, **fields) for text in texts])

    return await store.write(work)


async def remove_agent(store: Store, agent_id: str) -> None:
    """Delete an agent with all its rows, in one transaction."""

    def work(tx: Transaction) -> None:
        deletion.hide_agent(tx, Scope(), agent_id)
        while purge_portion(tx, "agent", agent_id):
            pass

    await store.write(work)


def tags_in_use(tx: Transaction) -> list[str]:
    kept = select(agents_tags.c.tag).join(agent_rows, agent_rows.c.id == agents_tags.c.agent_id)
    return sorted(
        {row.tag for row in tx.all(kept.where(agent_rows.c.organization_id == LOCAL_ORGANIZATION))}
    )


def conversation_ids(tx: Transaction, agent_id: str) -> list[str]:
    return [
        row.id
        for row in tx.all(
            select(conversation_rows.c.id).where(conversation_rows.c.agent_id == agent_id)
        )
    ]
