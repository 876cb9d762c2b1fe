"""The versions of a block as they are shown: its history, a text as it was, who wrote which line, and two versions compared.

Here are the routes of a block that is named by its id; those of users' memory (users.py) show the same of a block by its label.
"""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query, Response

from ricordo.api.call import Here, answer
from ricordo.api.models.blocks import BlockResponse
from ricordo.api.models.memory import (
    BlamedLineResponse,
    ComparisonResponse,
    RestoreRequest,
    VersionResponse,
    VersionTextResponse,
)
from ricordo.api.routing import Routes
from ricordo.domain.block import Block
from ricordo.domain.version import BlockVersion, ChangeMetadata
from ricordo.errors import NotFound
from ricordo.memory.history import blame
from ricordo.storage import blobs, blocks, history
from ricordo.storage import versions as chains
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/blocks/{block_id}", tags=["blocks"])
Limit = Annotated[int, Query(ge=1, le=1000, description="How many versions at most.")]
Before = Annotated[str | None, Query(max_length=40, description="Only versions older than this one.")]
At = Annotated[str | None, Query(max_length=40, description="As of this version; by default the current one.")]
From = Annotated[
    str | None, Query(alias="from", max_length=40, description="The older version; that before the newer.")
]
To = Annotated[str | None, Query(max_length=40, description="The newer version; by default the current one.")]


@router.get("/history", response_model=list[VersionResponse])
async def list_versions(here: Here, block_id: str, limit: Limit = 50, before: Before = None) -> Response:
    """The block's versions, newest first."""

    def read(tx: Transaction) -> list[dict[str, Any]]:
        block = blocks.get(tx, here.scope, block_id)
        return page_of(tx, block.chain_id, block.label, limit, before)

    return answer(await here.store.read(read))


@router.get("/versions/{sha}", response_model=VersionTextResponse)
async def retrieve(here: Here, block_id: str, sha: str) -> Response:
    """The block as it was at a version of its memory, named by its id or the first seven digits of it or more."""

    def read(tx: Transaction) -> dict[str, Any]:
        block = blocks.get(tx, here.scope, block_id)
        return one_of(tx, block.chain_id, block.label, sha)

    return answer(await here.store.read(read))


@router.post("/restore", response_model=BlockResponse)
async def restore(here: Here, block_id: str, body: RestoreRequest) -> Response:
    """Make the text that the block had at a version its next version."""

    def work(tx: Transaction) -> Block:
        chains.lock(tx, blocks.get(tx, here.scope, block_id).chain_id)
        block = blocks.get(tx, here.scope, block_id)
        version, text = _text_at(tx, block.chain_id, block.label, body.sha)
        if text == block.value:
            return block
        block.require_fits(text)
        reason = body.message or f"Restore {block.label} as of {version.id.hex()[:12]}"
        metadata = ChangeMetadata(here.scope.actor, reason)
        return blocks.update(tx, block, replace(block, value=text), metadata)

    return answer(BlockResponse.of(await here.store.write(work)))


@router.get("/blame", response_model=list[BlamedLineResponse])
async def list_lines(here: Here, block_id: str, at: At = None) -> Response:
    """The block's lines, each with the version that wrote it."""

    def read(tx: Transaction) -> list[dict[str, Any]]:
        block = blocks.get(tx, here.scope, block_id)
        return lines_of(tx, block.chain_id, block.label, at)

    return answer(await here.store.read(read))


@router.get("/compare", response_model=ComparisonResponse)
async def compare(here: Here, block_id: str, from_: From = None, to: To = None) -> Response:
    """Two versions of the block beside each other: as a unified diff, and word by word."""

    def read(tx: Transaction) -> dict[str, Any]:
        block = blocks.get(tx, here.scope, block_id)
        return comparison_of(tx, block.chain_id, block.label, from_, to)

    return answer(await here.store.read(read))


def page_of(tx: Transaction, chain_id: str, label: str, limit: int, before: str | None) -> list[dict[str, Any]]:
    """The versions of a block, newest first, also of one that was deleted. Raises NotFound where there never was one."""
    end = history.get(tx, chain_id, before).number if before else None
    found = history.page(tx, chain_id, label=label, limit=limit, before=end)
    if not found:
        _newest(tx, chain_id, label)
    return [VersionResponse.from_version(version) for version in found]


def one_of(tx: Transaction, chain_id: str, label: str, sha: str) -> dict[str, Any]:
    """The version that a block had at a version of its chain, with its text. Raises NotFound, Conflict."""
    version = _version_at(tx, chain_id, label, sha)
    return {**VersionResponse.from_version(version), "body": _text_of(tx, version)}


def lines_of(tx: Transaction, chain_id: str, label: str, at: str | None) -> list[dict[str, Any]]:
    """Who wrote which line of a block, now or as of a version. Raises NotFound, Conflict."""
    lines = blame(tx, chain_id, label, at)
    # As in git, a line break ends a line: after the last one there is no line.
    return BlamedLineResponse.from_lines(lines if lines and lines[-1].text else lines[:-1])


def comparison_of(tx: Transaction, chain_id: str, label: str, older: str | None, newer: str | None) -> dict[str, Any]:
    """Two versions of a block beside each other. Raises NotFound, Conflict."""
    after = _version_at(tx, chain_id, label, newer) if newer else _newest(tx, chain_id, label)
    if older:
        before: BlockVersion | None = _version_at(tx, chain_id, label, older)
    else:
        before = next(iter(history.page(tx, chain_id, label=label, limit=1, before=after.number)), None)
    sides = [(version.id.hex(), _text_of(tx, version) or "") if version else (None, "") for version in (before, after)]
    return ComparisonResponse.from_texts(sides[0], sides[1], label)


def _newest(tx: Transaction, chain_id: str, label: str) -> BlockVersion:
    newest = next(iter(history.page(tx, chain_id, label=label, limit=1)), None)
    if newest is None:
        raise NotFound(f'There is no memory block "{label}". Read the list of blocks.')
    return newest


def _version_at(tx: Transaction, chain_id: str, label: str, sha: str) -> BlockVersion:
    version = history.block_at(tx, chain_id, label, history.get(tx, chain_id, sha))
    if version is None:
        raise NotFound(f'There was no memory block "{label}" at version {sha[:40]}. Choose another version.')
    return version


def _text_of(tx: Transaction, version: BlockVersion) -> str | None:
    return None if version.blob is None else blobs.read(tx, version.chain_id, version.blob)


def _text_at(tx: Transaction, chain_id: str, label: str, sha: str) -> tuple[BlockVersion, str]:
    version = _version_at(tx, chain_id, label, sha)
    text = _text_of(tx, version)
    if text is None:
        raise NotFound(f'There was no memory block "{label}" at version {sha[:40]}. Choose another version.')
    return version, text
