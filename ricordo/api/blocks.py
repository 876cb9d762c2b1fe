"""Blocks: on their own, and as the core memory of an agent."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query, Response

from ricordo.agents.lifecycle import attach_block, new_block
from ricordo.api.call import Here, Paged, agent_json, answer, changed_agent, note
from ricordo.api.models.agents import AgentResponse, CoreMemoryResponse
from ricordo.api.models.base import NoteResponse, TextPiece
from ricordo.api.models.blocks import BlockRequest, BlockResponse, BlockUpdate
from ricordo.api.routing import Routes
from ricordo.domain.agent import AgentState
from ricordo.domain.block import Block, Chain, require_label
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, NotFound
from ricordo.memory.rotation import read_rotation
from ricordo.storage import agents, blocks, versions
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["blocks"])


@router.post("/blocks/", response_model=BlockResponse)
async def create(here: Here, body: BlockRequest) -> Response:
    """Make a block of its own, to be attached to agents."""

    def make(tx: Transaction) -> Block:
        chain_id = new_id("chain")
        block = new_block(tx, here.scope, body.spec(), chain_id)
        chain = Chain(chain_id, here.scope.organization_id, "block", block.id)
        return blocks.insert_all(tx, [block], [chain], ChangeMetadata(here.scope.actor, f"Make {block.label}"))[0]

    return answer(BlockResponse.of(await here.store.write(make)))


@router.get("/blocks/", response_model=list[BlockResponse])
async def list_blocks(
    here: Here,
    paging: Paged,
    label: str | None = None,
    value_search: TextPiece = None,
    label_search: TextPiece = None,
    description_search: TextPiece = None,
    tags: Annotated[list[str] | None, Query()] = None,
    match_all_tags: bool = False,
) -> Response:
    """Blocks, by default newest first; by label, by a piece of label, value or description, or by tags."""
    pieces = {"label": label_search, "value": value_search, "description": description_search}
    wanted = blocks.BlockFilter(
        label=label,
        pieces={name: piece for name, piece in pieces.items() if piece},
        tags=tuple(tags or ()),
        all_tags=match_all_tags,
    )
    found = await here.store.read(lambda tx: blocks.page(tx, here.scope, paging.page(), wanted))
    return answer([BlockResponse.of(block) for block in found])


@router.get("/blocks/count", response_model=int)
async def count(here: Here) -> Response:
    """How many blocks there are."""
    return answer(await here.store.read(lambda tx: blocks.count(tx, here.scope)))


@router.get("/blocks/{block_id}", response_model=BlockResponse)
async def retrieve(here: Here, block_id: str) -> Response:
    """One block."""
    return answer(BlockResponse.of(await here.store.read(lambda tx: blocks.get(tx, here.scope, block_id))))


@router.patch("/blocks/{block_id}", response_model=BlockResponse)
async def modify(here: Here, block_id: str, body: BlockUpdate) -> Response:
    """Change a block; fields that are left out stay. Agents see it at their next turn."""

    def change(tx: Transaction) -> Block:
        return _change(tx, here.scope, blocks.get(tx, here.scope, block_id), body)

    return answer(BlockResponse.of(await here.store.write(change)))


@router.delete("/blocks/{block_id}", response_model=NoteResponse)
async def delete(here: Here, block_id: str) -> Response:
    """Delete a block; it leaves the prompts of all agents it is attached to."""
    metadata = ChangeMetadata(here.scope.actor, "Delete")
    await here.store.write(lambda tx: blocks.remove(tx, blocks.get(tx, here.scope, block_id), metadata))
    return note(f"Block id={block_id} successfully deleted")


@router.get("/blocks/{block_id}/agents", response_model=list[AgentResponse])
async def list_agents(here: Here, block_id: str, paging: Paged) -> Response:
    """The agents the block is attached to."""

    def read(tx: Transaction) -> list[AgentState]:
        blocks.get(tx, here.scope, block_id)
        return agents.page(tx, here.scope, paging.page(), block_id=block_id)

    return answer([agent_json(here, state) for state in await here.store.read(read)])


@router.get("/agents/{agent_id}/core-memory", response_model=CoreMemoryResponse)
async def core_memory(here: Here, agent_id: str) -> Response:
    """The agent's core memory."""
    return answer(
        CoreMemoryResponse.from_state(await here.store.read(lambda tx: agents.load(tx, here.scope, agent_id)))
    )


@router.get("/agents/{agent_id}/core-memory/blocks", response_model=list[BlockResponse])
async def list_of_agent(here: Here, agent_id: str, paging: Paged) -> Response:
    """The agent's blocks."""

    def read(tx: Transaction) -> list[Block]:
        agents.require(tx, here.scope, agent_id)
        return blocks.page(tx, here.scope, paging.page(default=100), blocks.BlockFilter(agent_id=agent_id))

    return answer([BlockResponse.of(block) for block in await here.store.read(read)])


@router.get("/agents/{agent_id}/core-memory/blocks/{block_label:path}", response_model=BlockResponse)
async def retrieve_of_agent(here: Here, agent_id: str, block_label: str) -> Response:
    """The agent's block with this label."""
    return answer(BlockResponse.of(await here.store.read(lambda tx: _labelled(tx, here.scope, agent_id, block_label))))


@router.patch("/agents/{agent_id}/core-memory/blocks/attach/{block_id}", response_model=AgentResponse)
async def attach(here: Here, agent_id: str, block_id: str) -> Response:
    """Put a block into the agent's prompt."""

    return await changed_agent(here, agent_id, lambda tx: attach_block(tx, here.scope, agent_id, block_id))


@router.patch("/agents/{agent_id}/core-memory/blocks/detach/{block_id}", response_model=AgentResponse)
async def detach(here: Here, agent_id: str, block_id: str) -> Response:
    """Take a block out of the agent's prompt; the block itself stays."""

    def work(tx: Transaction) -> None:
        agents.require(tx, here.scope, agent_id)
        blocks.get(tx, here.scope, block_id)
        blocks.detach(tx, agent_id, block_id)

    return await changed_agent(here, agent_id, work)


@router.patch("/agents/{agent_id}/core-memory/blocks/{block_label:path}", response_model=BlockResponse)
async def modify_of_agent(here: Here, agent_id: str, block_label: str, body: BlockUpdate) -> Response:
    """Change the agent's block with this label; fields that are left out stay."""

    def change(tx: Transaction) -> Block:
        return _change(tx, here.scope, _labelled(tx, here.scope, agent_id, block_label), body)

    return answer(BlockResponse.of(await here.store.write(change)))


def _labelled(tx: Transaction, scope: Scope, agent_id: str, label: str) -> Block:
    block = next((block for block in agents.load(tx, scope, agent_id).blocks if block.label == label), None)
    if block is None:
        raise NotFound(f"Block with label {label} not found for agent {agent_id}")
    return blocks.get(tx, scope, block.id)


def _change(tx: Transaction, scope: Scope, block: Block, body: BlockUpdate) -> Block:
    sent = body.model_fields_set
    changes: dict[str, Any] = {
        name: value
        for name in ("value", "limit", "read_only", "hidden", "metadata")
        if (value := getattr(body, name)) is not None
    }
    if "description" in sent:
        changes["description"] = body.description
    changes |= _policy_changes(tx, block, body)
    if body.tags is not None:
        changes["tags"] = tuple(sorted(set(body.tags)))
    if body.label is not None and body.label != block.label:
        changes["label"] = require_label(body.label)
        _require_free_label(tx, scope, block, body.label)
    changed = replace(block, **changes, updated_by=scope.user_id)
    changed.require_fits(changed.value)
    read_rotation(changed.metadata)
    return blocks.update(tx, block, changed, ChangeMetadata(scope.actor, f"Change {changed.label}"))


def _policy_changes(tx: Transaction, block: Block, body: BlockUpdate) -> dict[str, Any]:
    """The policy that was sent. The flag of the retired Letta V1 server overrides it, so a change of one changes the other."""
    if body.policy is not None:
        return {"policy": body.policy} if body.read_only is not None else {"policy": body.policy, "read_only": False}
    if body.read_only is False and block.policy == "read_only":
        chain = versions.lock(tx, block.chain_id)
        return {"policy": "propose" if chain and chain.owner_kind == "user" else "direct"}
    return {}


def _require_free_label(tx: Transaction, scope: Scope, block: Block, label: str) -> None:
    for agent_id in blocks.agent_ids(tx, block.id):
        if any(other.label == label for other in blocks.of_agent(tx, agent_id)):
            raise Conflict(f'Agent {agent_id} has another block labelled "{label}". Choose another label.')
    same_chain = blocks.page(tx, scope, blocks.ONE, blocks.BlockFilter(label=label, chain_id=block.chain_id))
    if same_chain:
        raise Conflict(f'There is another block labelled "{label}" beside this one. Choose another label.')
