"""Routes of blocks: alone, as an agent's core memory, and their versions.

The routes of versions show a block's history, its earlier texts, blame and comparisons. The routes
of users' memory (users.py) show the same, but by a block's label.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Query, Response

from ricordo.agents.lifecycle import attach_block, new_block
from ricordo.api.answers import answer
from ricordo.api.call import Paged, RequestContext, agent_json, note, whole_agent, with_outcome
from ricordo.api.models.agents import AgentResponse, CoreMemoryResponse
from ricordo.api.models.base import MAX_COUNT, NoteResponse, TextPiece
from ricordo.api.models.entity_tags import IfMatch, require_match
from ricordo.api.models.memory import (
    BlameResponse,
    BlockRequest,
    BlockResponse,
    BlockUpdate,
    ComparisonResponse,
    RestoreRequest,
    VersionResponse,
    VersionTextResponse,
)
from ricordo.api.routing import Routes, needs
from ricordo.domain.agent import AgentState
from ricordo.domain.block import SHARED_POLICY, Block, Chain, require_label
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.domain.version import BlockVersion, ChangeMetadata
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.memory import submission
from ricordo.memory.blame import Place, blame_beside
from ricordo.memory.rotation import read_rotation
from ricordo.memory.submission import SubmissionOutcome
from ricordo.memory.user_copies import copy_of, needs_copy, users_chain
from ricordo.offload import few_at_once, offload
from ricordo.storage import agents, blocks, history, users, versions
from ricordo.storage.block_filter import AgentCount
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["blocks"], scope="agents")
AgentNumber = Annotated[int, Query(ge=0, le=MAX_COUNT)]
Limit = Annotated[int, Query(ge=1, le=1000, description="The most versions to return.")]
Before = Annotated[
    str | None, Query(max_length=40, description="Only versions older than this version.")
]
At = Annotated[
    str | None, Query(max_length=40, description="The version to read; by default the current one.")
]
From = Annotated[
    str | None,
    Query(
        alias="from",
        max_length=40,
        description="The older version; by default the one before `to`.",
    ),
]
To = Annotated[
    str | None, Query(max_length=40, description="The newer version; by default the current one.")
]


@router.post("/blocks/", response_model=BlockResponse)
def create(tx: Transaction, context: RequestContext, body: BlockRequest) -> Block:
    """Create a block that belongs to no agent or user yet and can be attached to agents."""
    chain = Chain(new_id("chain"), context.scope.organization_id, "block", "")
    block = new_block(tx, context.scope, body.spec(context.runtime.settings.data_dir), chain)
    chain = replace(chain, owner_id=block.id)
    return blocks.insert_all(
        tx, [block], [chain], ChangeMetadata(context.scope.actor, f"Make {block.label}")
    )[0]


@dataclass(frozen=True, slots=True)
class BlockQuery:
    """The selection of blocks."""

    label: str | None = None
    value_search: TextPiece = None
    label_search: TextPiece = None
    description_search: TextPiece = None
    tags: Annotated[list[str] | None, Query()] = None
    match_all_tags: bool = False
    name: Annotated[
        str | None,
        Query(
            description="Name of a block template. No such templates exist, so the list is empty."
        ),
    ] = None
    templates_only: Annotated[
        bool, Query(description="Only block templates. None exist, so the list is empty.")
    ] = False
    identity_id: Annotated[
        str | None, Query(description="Only blocks attached to this identity.")
    ] = None
    identifier_keys: Annotated[
        list[str] | None, Query(description="Only blocks attached to any of these users.")
    ] = None
    connected_to_agents_count_eq: Annotated[
        list[AgentNumber] | None,
        Query(
            description="Only blocks attached to exactly this number of agents, or to one of several "
            "numbers."
        ),
    ] = None
    connected_to_agents_count_gt: Annotated[
        AgentNumber | None, Query(description="Only blocks attached to more agents than this.")
    ] = None
    connected_to_agents_count_lt: Annotated[
        AgentNumber | None, Query(description="Only blocks attached to fewer agents than this.")
    ] = None

    def filter(self, tx: Transaction, scope: Scope) -> blocks.BlockFilter:
        searches = {
            "label": self.label_search,
            "value": self.value_search,
            "description": self.description_search,
        }
        user_ids = users.ids_of(tx, scope, self.identity_id, self.identifier_keys or ())
        return blocks.BlockFilter(
            label=self.label,
            # Only block templates have names, and this server has no block templates.
            ids=() if self.templates_only or self.name else None,
            pieces={name: piece for name, piece in searches.items() if piece},
            tags=tuple(self.tags or ()),
            all_tags=self.match_all_tags,
            user_ids=None if user_ids is None else tuple(user_ids),
            agents=AgentCount(
                tuple(self.connected_to_agents_count_eq or ()),
                self.connected_to_agents_count_gt,
                self.connected_to_agents_count_lt,
            ),
        )


@router.get("/blocks/", response_model=list[BlockResponse])
async def list_blocks(
    context: RequestContext, paging: Paged, query: Annotated[BlockQuery, Depends()]
) -> Sequence[Block]:
    """List blocks, by default newest first.

    Filters are the label, parts of label, value or description, tags, identities and numbers of
    agents.
    """
    return await context.store.read(
        lambda tx: blocks.listed(tx, context.scope, paging.page(), query.filter(tx, context.scope))
    )


@router.get("/blocks/count", response_model=int)
def count(tx: Transaction, context: RequestContext) -> int:
    """Return the number of blocks."""
    return blocks.count(tx, context.scope)


@router.get("/blocks/{block_id}", response_model=BlockResponse)
def retrieve(tx: Transaction, context: RequestContext, block_id: str) -> Block:
    """Return one block."""
    return blocks.get(tx, context.scope, block_id)


@router.patch("/blocks/{block_id}", response_model=BlockResponse)
@needs("agents:write", "memory:write")
def modify(
    tx: Transaction,
    context: RequestContext,
    block_id: str,
    body: BlockUpdate,
    if_match: IfMatch = None,
) -> Response:
    """Change a block; omitted fields keep their values. Agents see it at their next turn.

    If the policy of a user's block requires approval, a change of text or label becomes a proposal.
    Then the block does not change, and `proposal_id` and the header `x-proposal-id` contain the
    proposal's id.
    """
    return _change(tx, context, _writable(tx, context.scope, block_id), body, if_match)


@router.delete("/blocks/{block_id}", response_model=NoteResponse)
@needs("agents:write", "memory:write")
def delete(tx: Transaction, context: RequestContext, block_id: str) -> Response:
    """Delete a block; it leaves the prompts of all its agents."""
    block = _writable(tx, context.scope, block_id)
    outcome = submission.remove(tx, block, context.submission(reason="Delete"))
    message = f"Block id={block_id} successfully deleted"
    if outcome.proposal:
        message = f"Proposed as {outcome.proposal.id}: the block stays until its owner decides."
    return with_outcome(answer(note(message)), outcome)


@router.get("/blocks/{block_id}/agents", response_model=list[AgentResponse])
def list_agents(
    tx: Transaction, context: RequestContext, block_id: str, paging: Paged
) -> list[Json]:
    """List the agents to which the block is attached."""
    blocks.get(tx, context.scope, block_id)
    states = agents.page(tx, context.scope, paging.page(), agents.has_block(block_id))
    return [agent_json(context, state) for state in context.runtime.complete(tx, states)]


@router.get("/agents/{agent_id}/core-memory", response_model=CoreMemoryResponse)
def core_memory(tx: Transaction, context: RequestContext, agent_id: str) -> AgentState:
    """Return the agent's core memory."""
    (state,) = context.runtime.complete(tx, (agents.load_whole(tx, context.scope, agent_id),))
    return state


@router.get("/agents/{agent_id}/core-memory/blocks", response_model=list[BlockResponse])
def list_of_agent(
    tx: Transaction, context: RequestContext, agent_id: str, paging: Paged
) -> Sequence[Block]:
    """List the blocks of the agent, and of the user of its conversation."""
    ids = tuple(block.id for block in agents.blocks_seen(tx, context.scope, agent_id))
    return blocks.listed(tx, context.scope, paging.page(default=100), blocks.BlockFilter(ids=ids))


@router.get(
    "/agents/{agent_id}/core-memory/blocks/{block_label:path}", response_model=BlockResponse
)
def retrieve_of_agent(
    tx: Transaction, context: RequestContext, agent_id: str, block_label: str
) -> Block:
    """Return the agent's block with this label."""
    return _labelled(tx, agents.load(tx, context.scope, agent_id), context.scope, block_label)


@router.patch(
    "/agents/{agent_id}/core-memory/blocks/attach/{block_id}", response_model=AgentResponse
)
def attach(tx: Transaction, context: RequestContext, agent_id: str, block_id: str) -> Json:
    """Put a block into the agent's prompt."""
    attach_block(tx, context.scope, agent_id, block_id)
    return whole_agent(tx, context, agent_id)


@router.patch(
    "/agents/{agent_id}/core-memory/blocks/detach/{block_id}", response_model=AgentResponse
)
def detach(tx: Transaction, context: RequestContext, agent_id: str, block_id: str) -> Json:
    """Detach a block from the agent, without deleting the block."""
    agents.require(tx, context.scope, agent_id)
    blocks.get(tx, context.scope, block_id)
    blocks.detach(tx, agent_id, block_id)
    return whole_agent(tx, context, agent_id)


@router.patch(
    "/agents/{agent_id}/core-memory/blocks/{block_label:path}", response_model=BlockResponse
)
@needs("agents:write", "memory:write")
def modify_of_agent(
    tx: Transaction,
    context: RequestContext,
    agent_id: str,
    block_label: str,
    body: BlockUpdate,
    if_match: IfMatch = None,
) -> Response:
    """Change the agent's block with this label; omitted fields keep their values.

    If the agent's conversation belongs to a user, a change of an unshared block changes the user's
    copy.
    """
    state = agents.load(tx, context.scope, agent_id)
    block = _labelled(tx, state, context.scope, block_label)
    user_id = state.conversation.user_id
    if not block.is_users and (block.shared or block.is_read_only):
        _require_agents(context.scope)
    if user_id and needs_copy(block, user_id):
        block = copy_of(
            tx, state.agent, block, users_chain(tx, state.agent, user_id).id, context.scope.actor
        )
        block = blocks.get(tx, context.scope, block.id)
    return _change(tx, context, block, body, if_match)


@router.get("/blocks/{block_id}/history", response_model=list[VersionResponse])
def list_versions(
    tx: Transaction,
    context: RequestContext,
    block_id: str,
    limit: Limit = 50,
    before: Before = None,
) -> Sequence[BlockVersion]:
    """List the block's versions, newest first."""
    block = blocks.get(tx, context.scope, block_id)
    return page_of(tx, block.chain_id, block.label, limit, before)


@router.get(
    "/blocks/{block_id}/versions/{sha}", response_model=VersionTextResponse, name="retrieve"
)
def retrieve_version(tx: Transaction, context: RequestContext, block_id: str, sha: str) -> Json:
    """Return the block at a version of its memory.

    The version is named by its id, or its first seven digits or more.
    """
    block = blocks.get(tx, context.scope, block_id)
    return one_of(tx, block.chain_id, block.label, sha)


@router.post("/blocks/{block_id}/restore", response_model=BlockResponse)
@needs("agents:write", "memory:write")
def restore(
    tx: Transaction, context: RequestContext, block_id: str, body: RestoreRequest
) -> Response:
    """Make the block's text at a version its next version.

    Its policy may turn this into a proposal.
    """
    versions.lock(tx, _writable(tx, context.scope, block_id).chain_id)
    block = blocks.get(tx, context.scope, block_id)
    version = _version_at(tx, block.chain_id, block.label, body.sha)
    text = _text_of(tx, version)
    if text is None:
        raise _absent_at(block.label, body.sha)
    block.require_fits(text)
    reason = body.message or f"Restore {block.label} as of {version.id.hex()[:12]}"
    if text == block.value:
        return _shown(SubmissionOutcome(block))
    return _shown(
        submission.change(tx, block, replace(block, value=text), context.submission(reason=reason))
    )


@dataclass(frozen=True, slots=True)
class LineQuery:
    """The range of lines in a long answer."""

    after: Annotated[
        int, Query(ge=0, le=MAX_COUNT, description="Only lines after this number.")
    ] = 0
    limit: Annotated[
        int | None,
        Query(
            ge=1, le=MAX_COUNT, description="The most lines to return; at most RICORDO_MAX_LINES."
        ),
    ] = None

    def bounded_limit(self, context: RequestContext) -> int:
        """Return the most lines of the answer."""
        bound = context.runtime.settings.max_lines
        return min(self.limit or bound, bound)


Lines = Annotated[LineQuery, Depends()]


@router.get("/blocks/{block_id}/blame", response_model=BlameResponse)
async def list_lines(context: RequestContext, block_id: str, part: Lines, at: At = None) -> Json:
    """List the block's lines, each with the version that wrote it; long blocks have pages."""
    return await lines_of(context, lambda tx: _place(tx, context, block_id), part, at)


@router.get("/blocks/{block_id}/compare", response_model=ComparisonResponse)
async def compare(
    context: RequestContext, block_id: str, part: Lines, from_: From = None, to: To = None
) -> Json:
    """Compare two versions of the block, by lines and by words; a long comparison has pages."""
    return await comparison_of(
        context, lambda tx: _place(tx, context, block_id), part, older=from_, newer=to
    )


def _place(tx: Transaction, context: RequestContext, block_id: str) -> Place:
    block = blocks.get(tx, context.scope, block_id)
    return block.chain_id, block.label


def _labelled(tx: Transaction, state: AgentState, scope: Scope, label: str) -> Block:
    block = next((block for block in state.blocks if block.shown_label == label), None)
    if block is None:
        raise NotFound(f"Block with label {label} not found for agent {state.agent.id}")
    return replace(blocks.get(tx, scope, block.id), is_users=block.is_users)


def _writable(tx: Transaction, scope: Scope, block_id: str) -> Block:
    """Return the block if it is the caller's own, or if the caller may change shared blocks."""
    block = blocks.get(tx, scope, block_id)
    own_chain = versions.of_owner(tx, scope, "user", scope.subject or "")
    if own_chain is None or own_chain.id != block.chain_id:
        _require_agents(scope)
    return block


def _require_agents(scope: Scope) -> None:
    if scope.subject_id is not None and not scope.may("agents:write"):
        raise Forbidden(
            "Others share this block. To change it for everybody, use a key with the scope "
            "agents:write."
        )


def _shown(outcome: SubmissionOutcome) -> Response:
    if outcome.proposal:
        proposal_id = outcome.proposal.id
    else:
        proposal_id = None
    return with_outcome(answer(BlockResponse.of(outcome.block, proposal_id=proposal_id)), outcome)


def _change(
    tx: Transaction, context: RequestContext, block: Block, body: BlockUpdate, if_match: str | None
) -> Response:
    require_match(block, if_match)
    scope = context.scope
    names = body.model_fields_set
    changes: dict[str, Any] = {
        name: field
        for name in ("value", "limit", "read_only", "hidden", "metadata")
        if (field := getattr(body, name)) is not None
    }
    if "description" in names:
        changes["description"] = body.description
    if body.shared is not None:
        changes["shared"] = body.shared
        chain = versions.lock(tx, block.chain_id)
        if body.shared and chain and chain.owner_kind == "user":
            raise Invalid("A user's block cannot be shared. Share a block that belongs to no user.")
        if body.shared and not block.shared and block.policy == "direct":
            changes["policy"] = SHARED_POLICY
    changes |= _policy_changes(tx, block, body)
    if body.tags is not None:
        changes["tags"] = tuple(sorted(set(body.tags)))
    if body.label not in (None, block.label, block.shown_label):
        changes |= {"label": require_label(body.label), "seen_as": None}
        _require_free_label(tx, scope, block, body.label)
    changed = replace(block, **changes, updated_by=scope.user_id)
    changed.require_fits(changed.value)
    read_rotation(changed.metadata)
    return _shown(submission.change(tx, block, changed, context.submission()))


def _policy_changes(tx: Transaction, block: Block, body: BlockUpdate) -> dict[str, Any]:
    """Return the changes that follow from a sent policy or read-only flag.

    The read-only flag of the retired Letta V1 server overrides the policy. So a policy sent alone
    clears the flag, and clearing the flag replaces the policy `read_only`.
    """
    if body.policy is not None:
        if body.read_only is not None:
            return {"policy": body.policy}
        return {"policy": body.policy, "read_only": False}
    if body.read_only is False and block.policy == "read_only":
        chain = versions.lock(tx, block.chain_id)
        return {"policy": "propose" if chain and chain.owner_kind == "user" else "direct"}
    return {}


def _require_free_label(tx: Transaction, scope: Scope, block: Block, label: str) -> None:
    for agent_id in blocks.agent_ids(tx, block.id):
        if any(other.label == label for other in blocks.attached(tx, agent_id)):
            raise Conflict(
                f'Agent {agent_id} already has a block labelled "{label}". Choose another label.'
            )
    same_chain = blocks.page(
        tx, scope, blocks.ONE, blocks.BlockFilter(label=label, chain_id=block.chain_id)
    )
    if same_chain:
        raise Conflict(f'A block labelled "{label}" already exists here. Choose another label.')


def page_of(
    tx: Transaction, chain_id: str, label: str, limit: int, before: str | None
) -> Sequence[BlockVersion]:
    """Return the versions of a block, newest first, even of a deleted block.

    Args:
        tx: The transaction, or a read.
        chain_id: The chain of the block.
        label: A label that the block has or had. If several had it, the last one is meant.
        limit: The most versions to return.
        before: Return only versions older than this one: its hex id or at least its first 7 digits.

    Raises:
        NotFound: The block never existed, or there is no version `before`.
        Conflict: Several versions begin with the digits of `before`.
    """
    if before:
        end = history.get(tx, chain_id, before).number
    else:
        end = None
    rows = history.page(tx, chain_id, label=label, limit=limit, before=end)
    if not rows:
        _newest(tx, chain_id, label)
    return rows


def one_of(tx: Transaction, chain_id: str, label: str, sha: str) -> Json:
    """Return the block's version and text at a version of its chain.

    Args:
        tx: The transaction, or a read.
        chain_id: The chain of the block.
        label: The label that the block has, or had.
        sha: The chain's version: its hex id or at least its first 7 digits.

    Raises:
        NotFound: There is no such version, or the block did not exist then.
        Conflict: Several versions begin with these digits.
    """
    version = _version_at(tx, chain_id, label, sha)
    return VersionTextResponse.of(version, body=_text_of(tx, version))


async def lines_of(
    context: RequestContext, find: Callable[[Transaction], Place], part: LineQuery, at: str | None
) -> Json:
    """Return the lines of a block, now or at a version, each with the version that wrote it.

    Args:
        context: The caller's context.
        find: Returns the block's chain and label. It also checks that the caller may see the block.
        part: The range of lines.
        at: The version to read: its hex id or at least its first 7 digits. None: the current one.

    Raises:
        NotFound: There is no such block or version.
        Conflict: Several versions begin with these digits.
    """
    blame = await blame_beside(context.store, find, at)
    return await offload(
        partial(BlameResponse.from_blame, blame, part.after, part.bounded_limit(context)),
        blame.count * 100,
    )


async def comparison_of(
    context: RequestContext,
    find: Callable[[Transaction], Place],
    part: LineQuery,
    *,
    older: str | None,
    newer: str | None,
) -> Json:
    """Compare two versions of a block.

    Args:
        context: The caller's context.
        find: Returns the block's chain and label. It also checks that the caller may see the block.
        part: The range of the comparison's lines and pieces.
        older: The older version: its hex id or at least its first 7 digits. None: the one before
            `newer`.
        newer: The newer version, likewise. None: the current one.

    Raises:
        NotFound: There is no such block or version.
        Conflict: Several versions begin with these digits.
    """

    def read(tx: Transaction) -> tuple[str, list[tuple[str | None, str]]]:
        chain_id, label = find(tx)
        if newer:
            after = _version_at(tx, chain_id, label, newer)
        else:
            after = _newest(tx, chain_id, label)
        if older:
            before: BlockVersion | None = _version_at(tx, chain_id, label, older)
        else:
            before = next(
                iter(history.page(tx, chain_id, label=label, limit=1, before=after.number)), None
            )
        sides: list[tuple[str | None, str]] = [
            (version.id.hex(), _text_of(tx, version) or "") if version else (None, "")
            for version in (before, after)
        ]
        return label, sides

    async with few_at_once():
        label, (older_side, newer_side) = await context.store.read(read)
        compare = partial(
            ComparisonResponse.from_texts,
            older_side,
            newer_side,
            label,
            after=part.after,
            limit=part.bounded_limit(context),
        )
        # Count each character 16 times, since comparing words takes that much longer than comparing
        # bytes.
        return await offload(compare, (len(older_side[1]) + len(newer_side[1])) * 16)


def _newest(tx: Transaction, chain_id: str, label: str) -> BlockVersion:
    newest = next(iter(history.page(tx, chain_id, label=label, limit=1)), None)
    if newest is None:
        raise NotFound(f'There is no memory block "{label}". Read the list of blocks.')
    return newest


def _version_at(tx: Transaction, chain_id: str, label: str, sha: str) -> BlockVersion:
    version = history.known_block_at(tx, chain_id, label, history.get(tx, chain_id, sha))
    if version is None:
        raise _absent_at(label, sha)
    return version


def _absent_at(label: str, sha: str) -> NotFound:
    return NotFound(
        f'There was no memory block "{label}" at version {sha[:40]}. Choose another version.'
    )


def _text_of(tx: Transaction, version: BlockVersion) -> str | None:
    if version.blob is None:
        return None
    return versions.read_text(tx, version.chain_id, version.blob)
