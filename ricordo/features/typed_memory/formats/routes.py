"""The export of a user's memory: one zip archive, streamed while it is read.

    blocks/<label>.md     each block's text, exactly as it is
    blocks.jsonl          each block's settings
    history.jsonl         every version with its text, newest first
    proposals.jsonl       every proposal with its texts and its outcome
    facts.jsonl           every fact with its evidence, and files of other features

Little of it is in memory at a time. Texts and history are as they were when the export began;
settings and proposals are read after them.
"""

import asyncio
import zipfile
from collections.abc import AsyncIterator
from typing import IO, Any, cast

import orjson
from fastapi.responses import StreamingResponse

from ricordo.api.call import RequestContext
from ricordo.api.models.base import binary
from ricordo.api.models.memory import ProposalResponse, UserBlockResponse, VersionResponse
from ricordo.api.routing import Routes
from ricordo.domain.block import Chain
from ricordo.domain.clock import to_datetime
from ricordo.domain.text import Json
from ricordo.memory import user_memory
from ricordo.memory.user_memory import UserMemory
from ricordo.storage import history, proposals, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter

router = Routes(prefix="/users/{user_id}", tags=["users' memory"], scope="memory")
_ZIP = "application/zip"
# Characters that separate paths on Windows, where a name with them would lead to another folder.
_ODD = str.maketrans({"\\": "%5C", ":": "%3A"})
_PORTION = 20  # versions or proposals, with their texts, in memory at a time


class _Sink(list[bytes]):
    """The file that the archive is written to: the bytes since the last `take`."""

    def write(self, chunk: Any) -> int:
        self.append(bytes(chunk))
        return len(chunk)

    def flush(self) -> None:
        """Do nothing, since no bytes are held back."""

    def take(self) -> bytes:
        content = b"".join(self)
        self.clear()
        return content


@router.get("/export", response_class=StreamingResponse, responses=binary(_ZIP))
async def export(context: RequestContext, user_id: str) -> StreamingResponse:
    """Return the user's whole memory as a zip archive.

    It has blocks as files, and history and proposals as lines of JSON.
    """
    owned = await context.store.read(lambda tx: user_memory.open_memory(tx, context.scope, user_id))
    headers = {"content-disposition": 'attachment; filename="memory.zip"'}
    return StreamingResponse(_archive(context, user_id, owned), media_type=_ZIP, headers=headers)


async def _archive(
    context: RequestContext, user_id: str, memory: UserMemory
) -> AsyncIterator[bytes]:
    chain = memory.chain
    sink = _Sink()
    when = to_datetime(context.store.clock.now()).timetuple()[:6]

    def begin(name: str) -> IO[bytes]:
        entry = zipfile.ZipInfo(name, when)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = 0o600 << 16
        return archive.open(entry, "w", force_zip64=True)

    with zipfile.ZipFile(cast(IO[bytes], sink), "w") as archive:
        for label, (blob, _) in sorted(chain.files.items()):
            text = await context.store.read(
                lambda tx, blob=blob: versions.read_text(tx, chain.id, blob)  # type: ignore[misc]
            )
            with begin(f"blocks/{label.translate(_ODD)}.md") as file:
                await asyncio.to_thread(file.write, text.encode())
            yield sink.take()
        for name, portions in (
            ("blocks.jsonl", _settings(context, user_id)),
            ("history.jsonl", _history(context, chain)),
            ("proposals.jsonl", _proposals(context, chain)),
            *(await _of_features(context, memory.user.id)),
        ):
            with begin(name) as file:
                async for portion in portions:
                    lines = b"".join(
                        orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in portion
                    )
                    await asyncio.to_thread(file.write, lines)
                    yield sink.take()
    yield sink.take()


async def _of_features(
    context: RequestContext, user_id: str
) -> list[tuple[str, AsyncIterator[list[Json]]]]:
    """Return the files of features with their records."""
    exports = context.runtime.plugins.user_exports()
    contents = [
        await context.store.read(lambda tx, read=read: read(tx, context.scope, user_id))  # type: ignore[misc]
        for read in exports
    ]
    return [
        (name, _one_portion([dict(record) for record in records])) for name, records in contents
    ]


async def _one_portion(records: list[Json]) -> AsyncIterator[list[Json]]:
    yield records


async def _settings(context: RequestContext, user_id: str) -> AsyncIterator[list[dict[str, Any]]]:
    def read(tx: Transaction) -> list[dict[str, Any]]:
        owned = user_memory.open_memory(tx, context.scope, user_id)
        waiting = proposals.waiting_counts(tx, owned.chain.id)
        responses = (
            UserBlockResponse.of(block, pending=waiting.get(block.label, 0))
            for block in user_memory.listed(tx, owned)
        )
        return [
            {name: field for name, field in response.items() if name != "body"}
            for response in responses
        ]

    yield await context.store.read(read)


async def _history(context: RequestContext, chain: Chain) -> AsyncIterator[list[dict[str, Any]]]:
    before = chain.versions + 1

    def read(tx: Transaction) -> list[dict[str, Any]]:
        page = history.page(tx, chain.id, limit=_PORTION, before=before)
        blobs = [version.blob for version in page if version.blob]
        texts = versions.read_texts(tx, chain.id, blobs)
        return [
            {
                **VersionResponse.of(version),
                "body": texts[version.blob] if version.blob else None,
            }
            for version in page
        ]

    while before > 1:
        portion = await context.store.read(read)
        yield portion
        before = portion[-1]["number"] if portion else 0


async def _proposals(context: RequestContext, chain: Chain) -> AsyncIterator[list[dict[str, Any]]]:
    of_chain = ProposalFilter(chain_id=chain.id)
    after = None
    while True:
        page = Page(limit=_PORTION, after=after)
        rows = await context.store.read(
            lambda tx, page=page: list(  # type: ignore[misc]
                proposals.page(tx, context.scope, page, of_chain)
            )
        )
        if not rows:
            return
        after = rows[-1].id
        yield [ProposalResponse.of(proposal) for proposal in rows]
