"""Write a person's memory as one zip archive, streamed while it is read.

    blocks/<label>.md     each block's text, exactly as it is
    blocks.jsonl          each block's settings
    history.jsonl         every version with its text, oldest first
    proposals.jsonl       every proposal with its texts and its outcome, oldest first
    settings-log.jsonl    every change of a block's settings
    git-objects.jsonl     pushed git objects that cannot be computed from the versions
    facts.jsonl …         the files of features: facts with their evidence, folders, files
    manifest.json         the person, and a hash of each file

Only a small part of the archive is in memory at a time. Texts and history show the state when the
export began. The other files show the state when they are read.
"""

import asyncio
import hashlib
import re
import zipfile
from collections.abc import AsyncIterator, Callable, Sequence
from typing import IO, Any, cast

import orjson

from ricordo import __version__
from ricordo.domain.block import Chain
from ricordo.domain.clock import to_datetime
from ricordo.domain.scope import Scope, User
from ricordo.domain.text import Json
from ricordo.features.documents.memory_archives.models import (
    BLOCKS,
    GIT_OBJECTS,
    HISTORY,
    MANIFEST,
    PROPOSALS,
    SETTINGS_LOG,
    TEXTS,
    ArchivedUser,
    BlockRecord,
    GitObjectRecord,
    ManifestBuilder,
    ProposalRecord,
    SettingsRecord,
    VersionRecord,
)
from ricordo.memory import user_memory
from ricordo.memory.user_memory import UserMemory
from ricordo.plugins import UserFile
from ricordo.runtime import Runtime
from ricordo.storage import blocks, history, memory_archives, proposals, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.proposals import ProposalFilter

# Windows treats `\` and `:` as parts of a path, so they could lead to another folder. A `%` is
# replaced only where it would read as a replacement, so that other names stay as they were.
_ODD = re.compile(r"[\\:]|%(?=5C|3A|25)", re.IGNORECASE)
_PORTION = 20  # versions or proposals, with their texts, in memory at a time
Records = AsyncIterator[Sequence[Json]]


class _Sink(list[bytes]):
    """A file for the zip writer. It holds the bytes written since the last `take`."""

    def write(self, chunk: Any) -> int:
        self.append(bytes(chunk))
        return len(chunk)

    def flush(self) -> None:
        """Do nothing, since `write` stores the bytes at once."""

    def take(self) -> bytes:
        content = b"".join(self)
        self.clear()
        return content


def text_name(label: str) -> str:
    """Return the name of the file with a block's text; different labels get different names.

    Args:
        label: The label of the block. Signs that Windows treats as parts of a path are replaced.

    >>> text_name("C:/100%")
    'blocks/C%3A/100%.md'
    >>> text_name("a%3Ab")
    'blocks/a%253Ab.md'
    """
    return f"{TEXTS}{_ODD.sub(lambda match: f'%{ord(match[0]):02X}', label)}.md"


async def archive_of(runtime: Runtime, scope: Scope, memory: UserMemory) -> AsyncIterator[bytes]:
    """Yield the bytes of the archive of this memory.

    Args:
        runtime: The running server.
        scope: The caller, who may read this memory.
        memory: The person and the chain. Its chain is the state that texts and history show.
    """
    store, chain = runtime.store, memory.chain
    sink = _Sink()
    made_at = store.clock.now()
    when = to_datetime(made_at).timetuple()[:6]
    manifest = ManifestBuilder()

    def begin(name: str) -> IO[bytes]:
        entry = zipfile.ZipInfo(name, when)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = 0o600 << 16
        return archive.open(entry, "w", force_zip64=True)

    with zipfile.ZipFile(cast(IO[bytes], sink), "w") as archive:
        for label, (blob, _) in sorted(chain.files.items()):
            content = (
                await store.read(
                    lambda tx, blob=blob: versions.read_text(tx, chain.id, blob)  # type: ignore[misc]
                )
            ).encode()
            name = text_name(label)
            with begin(name) as file:
                await asyncio.to_thread(file.write, content)
            manifest.add(name, hashlib.sha256(content).hexdigest())
            yield sink.take()
        for name, portions in (
            (BLOCKS, _settings(store, scope, memory)),
            (HISTORY, _history(store, chain)),
            (PROPOSALS, _proposals(store, scope, chain)),
            (SETTINGS_LOG, _in_order(store, chain, memory_archives.logged_after, SettingsRecord)),
            (GIT_OBJECTS, _in_order(store, chain, memory_archives.objects_after, GitObjectRecord)),
            *(
                (file.name, _of_feature(store, scope, memory.user, file))
                for file in runtime.plugins.user_files().values()
            ),
        ):
            digest = hashlib.sha256()
            with begin(name) as file:
                async for portion in portions:
                    lines = b"".join(
                        orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in portion
                    )
                    digest.update(lines)
                    await asyncio.to_thread(file.write, lines)
                    yield sink.take()
            manifest.add(name, digest.hexdigest())
        user = ArchivedUser(
            id=memory.user.id, identifier=memory.user.identifier, name=memory.user.name
        )
        with begin(MANIFEST) as file:
            closing = manifest.manifest(user, chain.head, made_at, f"Ricordo {__version__}")
            file.write(
                orjson.dumps(closing, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            )
    yield sink.take()


async def _of_feature(store: Store, scope: Scope, user: User, file: UserFile) -> Records:
    mark: str | None = None
    while True:
        records, mark = await store.read(
            lambda tx, mark=mark: file.read(tx, scope, user.id, mark)  # type: ignore[misc]
        )
        yield [dict(record) for record in records]
        if mark is None:
            return


async def _settings(store: Store, scope: Scope, memory: UserMemory) -> Records:
    def read(tx: Transaction) -> list[Json]:
        owned = user_memory.open_memory(tx, scope, memory.user.id)
        waiting = proposals.waiting_counts(tx, owned.chain.id)
        ids = [block.id for block in user_memory.listed(tx, owned)]
        return [
            BlockRecord.of(block, waiting.get(block.label, 0))
            for block in blocks.by_ids(tx, memory.scope, ids)
        ]

    yield await store.read(read)


async def _history(store: Store, chain: Chain) -> Records:
    number = 0

    def read(tx: Transaction) -> list[Json]:
        end = min(number + _PORTION, chain.versions)
        page = history.page(tx, chain.id, limit=end - number, before=end + 1)
        blobs = [version.blob for version in page if version.blob]
        texts = versions.read_texts(tx, chain.id, blobs)
        return [
            VersionRecord.of(version, texts[version.blob] if version.blob else None)
            for version in reversed(page)
        ]

    while number < chain.versions:
        portion = await store.read(read)
        yield portion
        number = min(number + _PORTION, chain.versions)


async def _proposals(store: Store, scope: Scope, chain: Chain) -> Records:
    of_chain = ProposalFilter(chain_id=chain.id)
    after = None
    while True:
        page = Page(limit=_PORTION, after=after, order="asc")
        rows = await store.read(
            lambda tx, page=page: list(  # type: ignore[misc]
                proposals.page(tx, scope, page, of_chain)
            )
        )
        if not rows:
            return
        after = rows[-1].id
        yield [ProposalRecord.of(proposal) for proposal in rows]


async def _in_order(
    store: Store,
    chain: Chain,
    read_after: Callable[[Transaction, str, int, int], tuple[list[Any], int]],
    record: type[SettingsRecord] | type[GitObjectRecord],
) -> Records:
    """Yield rows of the chain, in the order in which they were stored."""
    after = 0
    while True:
        rows, last = await store.read(
            lambda tx, after=after: read_after(tx, chain.id, after, _PORTION)  # type: ignore[misc]
        )
        if not rows:
            return
        after = last
        yield [record.of(row) for row in rows]
