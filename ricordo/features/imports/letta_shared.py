"""What agents of the retired Letta V1 server share: users, tools, folders, files, archives with passages, blocks with versions."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from ricordo.domain.block import Block, Chain, new_in, require_label
from ricordo.domain.clock import to_micros
from ricordo.domain.ids import new_id
from ricordo.domain.passage import Archive, Passage
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Invalid
from ricordo.features.agent_files.mending import custom_tool
from ricordo.features.agent_files.service import free_folder_name
from ricordo.features.agent_files.tolerance import ImportNotes
from ricordo.features.custom_tools import service as custom_tools
from ricordo.features.files import service as folders
from ricordo.features.files.records import Folder
from ricordo.features.files.texts import PARSED
from ricordo.features.imports.letta_run import REFUSALS, LettaRun, reason_of
from ricordo.features.imports.letta_tables import Row
from ricordo.features.imports.queries import Outcome
from ricordo.search.index import insert_archive, insert_passages
from ricordo.storage import archives, blocks, tools, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.users import UserDraft

_REASON = "Imported from Letta"
_PASSAGES = 20  # of one transaction: each is indexed by itself
_BLOCK = "id label value limit description metadata_ read_only hidden"
_TOOL = (
    "id name tool_type description source_type source_code json_schema args_json_schema tags return_char_limit"
    " default_requires_approval enable_parallel_execution pip_requirements npm_requirements"
)
# A block, and the texts that it had, the oldest first.
BlockTexts = tuple[Row, list[Row]]


async def take_users(run: LettaRun) -> None:
    """Take identities as users; one with the key of a user who is here is this user."""

    def take(tx: Transaction, out: Outcome, row: Row) -> None:
        key = str(row["identifier_key"])
        if users.named(tx, run.organization, key) is None:
            properties = tuple(one for one in row["properties"] or () if isinstance(one, dict))
            draft = UserDraft(str(row["name"] or key), key, None, row["identity_type"], properties)
            users.create(
                tx, run.scope, replace(draft, id=run.id("user", users.user_id_of(row["id"])))
            )
        out.take("users")

    rows = await run.rows(
        "identities", "id identifier_key name identity_type properties", order="created_at id"
    )
    for row in rows:
        await run.once(row["id"], "users", row["name"], partial(take, row=row))
        run.step()
    found = await run.store.read(
        lambda tx: [users.named(tx, run.organization, str(row["identifier_key"])) for row in rows]
    )
    run.users = {row["id"]: user.id for row, user in zip(rows, found, strict=True) if user}


async def take_tools(run: LettaRun) -> None:
    """Take custom tools; of others, agents get those that are here under the same name."""

    def take(tx: Transaction, out: Outcome, row: Row) -> None:
        notes = ImportNotes()
        request, schema = custom_tool(row, str(row["name"]), notes)
        found = tools.by_names(tx, run.scope, [schema.name]).get(schema.name)
        if found is None:
            custom_tools.create(tx, run.scope, request, schema)
        elif found.source_code != request.source_code:
            out.leave(
                "tools",
                schema.name,
                "another tool of this name was here already, and agents use that",
            )
            return
        if row["npm_requirements"]:
            out.leave(
                "requirements of tools", schema.name, "packages of npm are not installed here"
            )
        for told in notes.lines():
            out.leave("settings of tools", schema.name, told)
        out.take("tools")

    for row in await run.rows("tools", _TOOL, order="created_at id"):
        kind, name = str(row["tool_type"]), str(row["name"])
        if kind == "custom":
            await run.once(row["id"], "tools", name, partial(take, row=row))
        elif not kind.startswith("letta_"):
            run.refused.leave(
                "tools",
                name,
                f"tools of the type {kind} lie with a service that has to be connected here",
            )
        run.step()


async def take_folders(run: LettaRun) -> None:
    """Take folders, and of their files the texts. What was uploaded is not kept there."""
    embedding = await run.runtime.models.embedders.choose(None)

    def take_folder(tx: Transaction, out: Outcome, row: Row) -> None:
        name, id = free_folder_name(tx, run.context, str(row["name"])), run.id("source", row["id"])
        more = (row["description"], row["instructions"], embedding, row["metadata_"] or {})
        folders.create_folder(tx, run.scope, Folder(id, run.organization, "", name, *more))
        out.take("folders")

    def take_file(tx: Transaction, out: Outcome, row: Row, name: str, texts: Sequence[Row]) -> None:
        text = "".join(one["text"] or "" for one in texts)
        if not text:
            out.leave("files", name, "its text was not kept there")
            return
        kept = (
            f"{name}.txt" if PurePosixPath(name).suffix.lower() in PARSED else name
        )  # it is a text now
        upload = folders.Upload(kept, text.encode(errors="replace"), id=run.id("file", row["id"]))
        folders.add_file(tx, run.scope, run.id("source", row["source_id"]), upload)
        out.take("files")

    for row in await run.rows(
        "sources", "id name description instructions metadata_", order="created_at id"
    ):
        await run.once(row["id"], "folders", row["name"], partial(take_folder, row=row))
        run.step()
    for row in await run.rows(
        "files", "id source_id file_name original_file_name", order="created_at id"
    ):
        if row["id"] not in run.done:
            name = str(row["original_file_name"] or row["file_name"] or "file")
            texts = await run.rows("file_contents", "text", file_id=row["id"])
            await run.once(
                row["id"], "files", name, partial(take_file, row=row, name=name, texts=texts)
            )
        run.step()


async def take_archives(run: LettaRun) -> None:
    """Take archives with their passages. Vectors are made here."""
    embedding = await run.runtime.models.embedders.choose(None)

    def take(tx: Transaction, out: Outcome, archive: Archive) -> None:
        insert_archive(tx, archive)
        out.take("archives")

    for row in await run.rows(
        "archives", "id name description metadata_ created_at", order="created_at id"
    ):
        id, at = run.id("archive", row["id"]), to_micros(row["created_at"])
        archive = Archive(id, run.organization, str(row["name"]), row["description"], embedding)
        archive = replace(archive, metadata=row["metadata_"] or {}, created_at=at, updated_at=at)
        if await run.once(row["id"], "archives", archive.name, partial(take, archive=archive)):
            await _take_passages(run, row["id"], archive)
        run.step()


async def _take_passages(run: LettaRun, theirs: str, archive: Archive) -> None:
    if (item := f"{theirs}/passages") in run.done:
        return

    def insert(tx: Transaction, some: Sequence[Passage]) -> None:
        there = {one.id for one in archives.passages_by_ids(tx, [one.id for one in some])}
        for one in some:
            if one.id not in there:
                # One by one: those that are stored together are searched as parts of one text.
                insert_passages(tx, archive, [one])

    total, wanted = 0, "id text tags metadata_ created_at"
    async for batch in run.batches(
        "archival_passages", wanted, order="created_at id", size=_PASSAGES, archive_id=theirs
    ):
        made = [_passage(run, row, archive) for row in batch]
        try:
            await run.store.write(partial(insert, some=made))
        except REFUSALS as error:
            run.refused.leave("passages", archive.name, reason_of(error))
            return
        total += len(made)
        run.step(len(made))
    await run.once(item, "passages", archive.name, lambda _tx, out: out.take("passages", total))


def _passage(run: LettaRun, row: Row, archive: Archive) -> Passage:
    id, at = run.id("passage", row["id"]), to_micros(row["created_at"])
    tags, metadata = row["tags"], row["metadata_"]
    return Passage(
        id,
        run.organization,
        archive.id,
        str(row["text"]),
        tuple(map(str, tags)) if isinstance(tags, list) else (),
        metadata if isinstance(metadata, dict) else {},
        created_by=run.scope.user_id,
        created_at=at,
        updated_at=at,
    )


async def take_blocks(run: LettaRun) -> dict[str, list[str]]:
    """Take blocks that several agents have, or none; returns the ids of the blocks there by those of agents there."""
    there, holders = {row["id"] for row in await run.rows("agents", "id")}, Counter[str]()
    blocks_of: dict[str, list[str]] = defaultdict(list)
    for row in await run.rows("blocks_agents", "agent_id block_id", order="agent_id block_label"):
        if row["agent_id"] in there:
            blocks_of[row["agent_id"]].append(row["block_id"])
            holders[row["block_id"]] += 1

    def take(tx: Transaction, out: Outcome, found: list[BlockTexts]) -> None:
        chain = Chain(
            new_id("chain"), run.organization, "block", run.id("block", found[0][0]["id"])
        )
        insert_blocks(tx, run, chain, found, out)

    for row in await run.rows("block", "id label is_template", order="created_at id"):
        if row["is_template"]:
            run.refused.leave(
                "templates of blocks", str(row["label"]), "there are no templates here"
            )
        elif holders[row["id"]] != 1 and row["id"] not in run.done:
            await run.once(
                row["id"],
                "blocks",
                row["label"],
                partial(take, found=await texts_of(run, [row["id"]])),
            )
    return blocks_of


async def texts_of(run: LettaRun, ids: Sequence[str]) -> list[BlockTexts]:
    """Return these blocks with the texts that they had."""
    found: list[BlockTexts] = []
    for id in ids:
        for row in await run.rows("block", _BLOCK, id=id):
            tags = await run.rows("blocks_tags", "tag", block_id=id)
            row["tags"] = sorted(str(one["tag"]) for one in tags)
            found.append(
                (
                    row,
                    await run.rows(
                        "block_history", "value created_at", order="sequence_number", block_id=id
                    ),
                )
            )
    return found


def insert_blocks(
    tx: Transaction, run: LettaRun, chain: Chain, found: Sequence[BlockTexts], out: Outcome
) -> list[Block]:
    """Store blocks of a new chain, with a version for each text that they had."""
    last = [_block(tx, run, chain, row, history, out) for row, history in found]
    begun = [
        replace(one, value=str(history[0]["value"] or "")) if history else one
        for one, (_, history) in zip(last, found, strict=True)
    ]
    made = (
        blocks.insert_all(tx, begun, [chain], ChangeMetadata(run.scope.actor, _REASON))
        if begun
        else []
    )
    for place, (_, history) in enumerate(found):
        texts = [(str(one["value"] or ""), to_micros(one["created_at"])) for one in history[1:]]
        for text, made_at in (*texts, (last[place].value, None)):
            if text != made[place].value:
                change = ChangeMetadata(run.scope.actor, _REASON, made_at=made_at)
                made[place] = blocks.write(tx, made[place], text, change) or made[place]
        if history:
            out.take("earlier versions of blocks", len(history))
    out.take("blocks", len(made))
    return made


def _block(
    tx: Transaction, run: LettaRun, chain: Chain, row: Row, history: Sequence[Row], out: Outcome
) -> Block:
    label, value = str(row["label"]), str(row["value"] or "")
    try:
        require_label(label)
    except Invalid as error:
        label = f"block {row['id'][-8:]}"
        out.leave(
            "labels of blocks",
            str(row["label"]),
            f"the block is taken under another label. {error}",
        )
    longest = max(
        len(value), *(len(one["value"] or "") for one in history), int(row["limit"] or 0), 1
    )
    return new_in(
        chain,
        label,
        run.scope.user_id,
        tx.clock.now(),
        id=run.id("block", row["id"]),
        value=value,
        limit=longest,
        description=row["description"],
        metadata=row["metadata_"] or {},
        read_only=bool(row["read_only"]),
        hidden=bool(row["hidden"]),
        tags=tuple(row["tags"]),
        policy="direct",
    )
