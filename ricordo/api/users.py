"""A user's memory: blocks by label, their versions, and the formats in which people read and write them.

A label may hold slashes, so what can follow it in a path is matched first; no part of a label can be one of those words.
"""

from typing import Annotated, Any, Literal

import orjson
from fastapi import Depends, Query, Response

from ricordo.api.block_formats import PUT_BODY, IfMatch, IfNoneMatch, Message, read_sent, require_match, show_as, tagged
from ricordo.api.call import Here, RequestContext, answer, note
from ricordo.api.errors import text_conflict
from ricordo.api.models.base import NoteResponse, TextConflict
from ricordo.api.models.memory import (
    BlamedLineResponse,
    ComparisonResponse,
    PutBlockRequest,
    RestoreRequest,
    UserBlockResponse,
    UserBlockUpdate,
    VersionResponse,
    VersionTextResponse,
)
from ricordo.api.routing import Routes
from ricordo.api.versions import At, Before, From, Limit, To, comparison_of, lines_of, one_of, page_of
from ricordo.domain.block import Block
from ricordo.errors import NotFound, Stale
from ricordo.memory import user_memory
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.storage import history, proposals, versions
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/users/{user_id}/blocks", tags=["users' memory"])
_ONE = "/{label:path}"
Sent = Annotated[PutBlockRequest, Depends(read_sent)]
_HOW = 'Write a text that keeps what both sides want, and send it with the "version" that the block has now.'


@router.get("", response_model=list[UserBlockResponse])
@router.get("/", response_model=list[UserBlockResponse], include_in_schema=False)
async def list_blocks(here: Here, user_id: str) -> Response:
    """The user's blocks in the order of their labels, each with how many proposals wait."""

    def read(tx: Transaction) -> list[dict[str, Any]]:
        memory = user_memory.open_memory(tx, here.scope, user_id)
        waiting = proposals.waiting_counts(tx, memory.chain.id)
        return [
            UserBlockResponse.of(block, pending=waiting.get(block.label, 0)) for block in user_memory.listed(tx, memory)
        ]

    return answer(await here.store.read(read))


@router.get(_ONE + "/history", response_model=list[VersionResponse])
async def list_versions(here: Here, user_id: str, label: str, limit: Limit = 50, before: Before = None) -> Response:
    """The block's versions, newest first; also of one that was deleted."""
    return answer(await _of_chain(here, user_id, lambda tx, chain_id: page_of(tx, chain_id, label, limit, before)))


@router.get(_ONE + "/versions/{sha}", response_model=VersionTextResponse)
async def retrieve_version(here: Here, user_id: str, label: str, sha: str) -> Response:
    """The block as it was at a version of the user's memory, named by its id or the first seven digits of it or more."""
    return answer(await _of_chain(here, user_id, lambda tx, chain_id: one_of(tx, chain_id, label, sha)))


@router.get(_ONE + "/blame", response_model=list[BlamedLineResponse])
async def list_lines(here: Here, user_id: str, label: str, at: At = None) -> Response:
    """The block's lines, each with the version that wrote it: by whom, why, and in which step."""
    return answer(await _of_chain(here, user_id, lambda tx, chain_id: lines_of(tx, chain_id, label, at)))


@router.get(_ONE + "/compare", response_model=ComparisonResponse)
async def compare(here: Here, user_id: str, label: str, from_: From = None, to: To = None) -> Response:
    """Two versions of the block compared: as a unified diff, and word by word."""
    return answer(await _of_chain(here, user_id, lambda tx, chain_id: comparison_of(tx, chain_id, label, from_, to)))


@router.post(_ONE + "/restore", response_model=UserBlockResponse)
async def restore(here: Here, user_id: str, label: str, body: RestoreRequest) -> Response:
    """Make the text that the block had at a version its next version; a block that was deleted comes back."""

    def work(tx: Transaction) -> tuple[Block, int]:
        memory = user_memory.open_memory(tx, here.scope, user_id)
        block = user_memory.restore(tx, memory, label, body.sha, memory.actor, message=body.message)
        return block, waiting_for(tx, block)

    return _shown(await here.store.write(work))


@router.get(_ONE, response_model=UserBlockResponse)
async def retrieve(
    here: Here,
    user_id: str,
    label: str,
    format: Annotated[Literal["json", "markdown", "toml"], Query(description="How it is shown.")] = "json",
    if_none_match: IfNoneMatch = None,
) -> Response:
    """One block, with its ETag; as Markdown with a front matter or as TOML where that is asked for."""

    def read(tx: Transaction) -> tuple[Block, int]:
        memory = user_memory.open_memory(tx, here.scope, user_id)
        block = user_memory.require(tx, memory, label)
        return block, waiting_for(tx, block)

    block, pending = await here.store.read(read)
    if format == "json":
        return _shown((block, pending), if_none_match)
    content, media_type = await show_as(here, block, format)
    return tagged(block, content.encode(), media_type, if_none_match)


@router.put(_ONE, response_model=UserBlockResponse, openapi_extra=PUT_BODY)
async def put(
    here: Here, user_id: str, label: str, body: Sent, if_match: IfMatch = None, if_none_match: IfNoneMatch = None
) -> Response:
    """Write a block's text, and create the user and the block where they are new. The text may also be sent as Markdown or TOML.

    With If-Match nothing is written unless the block is as it was read (412). With `version` in the body, what others wrote
    since that version is merged by lines, and refused where lines collide (409, with the texts).
    """

    def work(tx: Transaction) -> tuple[Block, int]:
        memory = user_memory.open_memory(tx, here.scope, user_id, makes=True)
        _require(tx, memory, label, if_match, if_none_match)
        block = user_memory.put(tx, memory, label, body.body, memory.actor, _options(body))
        # What a new block cannot be created with, and what null takes back.
        if rest := {name: value for name, value in body.settings().items() if value is None or name == "metadata"}:
            block = user_memory.change_settings(tx, memory, label, rest, memory.actor)
        return block, waiting_for(tx, block)

    try:
        return _shown(await here.store.write(work))
    except Stale as stale:
        return await _collision(here, user_id, label, body, stale)


@router.patch(_ONE, response_model=UserBlockResponse)
async def modify(here: Here, user_id: str, label: str, body: UserBlockUpdate, if_match: IfMatch = None) -> Response:
    """Change what a block has beside its text, its policy above all; with `label` it is renamed. What is left out stays."""

    def work(tx: Transaction) -> tuple[Block, int]:
        memory = user_memory.open_memory(tx, here.scope, user_id)
        _require(tx, memory, label, if_match)
        block = user_memory.change_settings(tx, memory, label, _with_flag(body.settings()), memory.actor)
        if body.label is not None:
            block = user_memory.rename(tx, memory, label, body.label, memory.actor, message=body.message)
        return block, waiting_for(tx, block)

    return _shown(await here.store.write(work))


@router.delete(_ONE, response_model=NoteResponse)
async def delete(here: Here, user_id: str, label: str, message: Message = None, if_match: IfMatch = None) -> Response:
    """Delete a block. Its history stays, and any version of it can be restored."""

    def work(tx: Transaction) -> None:
        memory = user_memory.open_memory(tx, here.scope, user_id)
        _require(tx, memory, label, if_match)
        user_memory.delete(tx, memory, label, memory.actor, message=message)

    await here.store.write(work)
    return note(f'Block "{label}" deleted. Its history stays.')


def waiting_for(tx: Transaction, block: Block) -> int:
    return proposals.waiting_counts(tx, block.chain_id).get(block.label, 0)


def _shown(found: tuple[Block, int], known: str | None = None) -> Response:
    block, pending = found
    return tagged(block, orjson.dumps(UserBlockResponse.of(block, pending=pending)), "application/json", known)


async def _of_chain(here: RequestContext, user_id: str, read: Any) -> Any:
    return await here.store.read(lambda tx: read(tx, user_memory.open_memory(tx, here.scope, user_id).chain.id))


def _require(
    tx: Transaction, memory: UserMemory, label: str, if_match: str | None, if_none_match: str | None = None
) -> None:
    if if_match is not None or if_none_match is not None:
        versions.lock(tx, memory.chain.id)
        require_match(user_memory.find(tx, memory, label), if_match, if_none_match)


def _options(body: PutBlockRequest) -> PutOptions:
    given = {name: value for name, value in body.settings().items() if value is not None and name != "metadata"}
    return PutOptions(message=body.message, expected=body.version, **given)


def _with_flag(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "read_only": False} if "policy" in settings else settings


async def _collision(here: RequestContext, user_id: str, label: str, body: PutBlockRequest, stale: Stale) -> Response:
    """Say why a text could not be merged, with all three texts, as far as they are known."""

    def read(tx: Transaction) -> tuple[str | None, str | None]:
        memory = user_memory.open_memory(tx, here.scope, user_id)
        block = user_memory.find(tx, memory, label)
        now = block.value if block else None
        try:
            version = history.get(tx, memory.chain.id, body.version or "")
        except NotFound:
            return None, now
        return history.text_at(tx, memory.chain.id, label, version), now

    base, ours = await here.store.read(read)
    return text_conflict(
        str(stale), TextConflict.of(None, proposal_id=None, base=base, ours=ours, theirs=body.body, how=_HOW)
    )
