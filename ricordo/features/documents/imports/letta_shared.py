"""Import the items of a Letta database that agents share.

These are users, tools, folders with files, archives with passages, and blocks with versions.
"""

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
from ricordo.features.custom_tools.source import service as custom_tools
from ricordo.features.documents.agent_files.mending import custom_tool
from ricordo.features.documents.agent_files.service import free_folder_name
from ricordo.features.documents.agent_files.tolerance import ImportNotes
from ricordo.features.documents.imports.letta_run import REFUSALS, LettaRun, reason_of
from ricordo.features.documents.imports.letta_tables import Row
from ricordo.features.documents.imports.queries import Outcome
from ricordo.features.files.folders import service as folders
from ricordo.features.files.folders.records import Folder
from ricordo.features.files.folders.texts import PARSED
from ricordo.search.index import insert_archive, insert_passages
from ricordo.storage import archives, blocks, tools, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.users import UserDraft

_REASON = "Imported from Letta"
_BATCH = 20  # passages in one transaction; each is indexed separately
_BLOCK = "id label value limit description metadata_ read_only hidden"
_TOOL = (
    "id name tool_type description source_type source_code json_schema args_json_schema tags"
    " return_char_limit default_requires_approval enable_parallel_execution pip_requirements"
    " npm_requirements"
)
# A block, and its earlier texts, the oldest first.
BlockTexts = tuple[Row, list[Row]]


async def import_users(run: LettaRun) -> None:
    """Import identities as users.

    If a user of this server has the identity's key, the identity becomes that user.
    """

    def import_row(tx: Transaction, outcome: Outcome, row: Row) -> None:
        key = str(row["identifier_key"])
        if users.named(tx, run.organization, key) is None:
            properties = tuple(
                entry for entry in row["properties"] or () if isinstance(entry, dict)
            )
            draft = UserDraft(
                str(row["name"] or key),
                key,
                None,
                row["identity_type"],
                properties,
                id=run.id("user", users.user_id_of(row["id"])),
            )
            users.create(tx, run.scope, draft)
        outcome.take("users")

    rows = await run.rows(
        "identities", "id identifier_key name identity_type properties", order="created_at id"
    )
    for row in rows:
        await run.import_once(row["id"], "users", row["name"], partial(import_row, row=row))
        run.step()
    stored_users = await run.store.read(
        lambda tx: [users.named(tx, run.organization, str(row["identifier_key"])) for row in rows]
    )
    run.users = {row["id"]: user.id for row, user in zip(rows, stored_users, strict=True) if user}


async def import_tools(run: LettaRun) -> None:
    """Import custom tools.

    If this server has a tool with the same name, agents get this server's tool.
    """

    def import_row(tx: Transaction, outcome: Outcome, row: Row) -> None:
        notes = ImportNotes()
        request, schema = custom_tool(row, str(row["name"]), notes)
        stored_tool = tools.by_names(tx, run.scope, [schema.name]).get(schema.name)
        if stored_tool is None:
            custom_tools.create(tx, run.scope, request, schema)
        elif stored_tool.source_code != request.source_code:
            outcome.leave(
                "tools",
                schema.name,
                "this server already had another tool of this name, which agents use",
            )
            return
        if row["npm_requirements"]:
            outcome.leave(
                "requirements of tools", schema.name, "packages of npm are not installed here"
            )
        for sentence in notes.lines():
            outcome.leave("settings of tools", schema.name, sentence)
        outcome.take("tools")

    for row in await run.rows("tools", _TOOL, order="created_at id"):
        kind = str(row["tool_type"])
        name = str(row["name"])
        if kind == "custom":
            await run.import_once(row["id"], "tools", name, partial(import_row, row=row))
        elif not kind.startswith("letta_"):
            run.refused.leave(
                "tools",
                name,
                f"tools of the type {kind} are stored by a service that must be connected here",
            )
        run.step()


async def import_folders(run: LettaRun) -> None:
    """Import folders, with the texts of their files.

    The Letta server does not keep the uploaded files themselves.
    """
    embedding = await run.runtime.models.embedders.choose(None)

    def take_folder(tx: Transaction, outcome: Outcome, row: Row) -> None:
        folder = Folder(
            id=run.id("source", row["id"]),
            organization_id=run.organization,
            archive_id="",
            name=free_folder_name(tx, run.context, str(row["name"])),
            description=row["description"],
            instructions=row["instructions"],
            embedding=embedding,
            metadata=row["metadata_"] or {},
        )
        folders.create_folder(tx, run.scope, folder)
        outcome.take("folders")

    def take_file(
        tx: Transaction, outcome: Outcome, row: Row, name: str, texts: Sequence[Row]
    ) -> None:
        text = "".join(part["text"] or "" for part in texts)
        if not text:
            outcome.leave("files", name, "that server did not keep its text")
            return
        # If the format was parsed, that server stored only the text.
        is_parsed = PurePosixPath(name).suffix.lower() in PARSED
        file_name = f"{name}.txt" if is_parsed else name
        upload = folders.Upload(
            file_name, text.encode(errors="replace"), id=run.id("file", row["id"])
        )
        folders.add_file(tx, run.scope, run.id("source", row["source_id"]), upload)
        outcome.take("files")

    for row in await run.rows(
        "sources", "id name description instructions metadata_", order="created_at id"
    ):
        await run.import_once(row["id"], "folders", row["name"], partial(take_folder, row=row))
        run.step()
    for row in await run.rows(
        "files", "id source_id file_name original_file_name", order="created_at id"
    ):
        if row["id"] not in run.done:
            name = str(row["original_file_name"] or row["file_name"] or "file")
            texts = await run.rows("file_contents", "text", file_id=row["id"])
            await run.import_once(
                row["id"], "files", name, partial(take_file, row=row, name=name, texts=texts)
            )
        run.step()


async def import_archives(run: LettaRun) -> None:
    """Import archives with their passages; vectors are computed here."""
    embedding = await run.runtime.models.embedders.choose(None)

    def import_archive(tx: Transaction, outcome: Outcome, archive: Archive) -> None:
        insert_archive(tx, archive)
        outcome.take("archives")

    for row in await run.rows(
        "archives", "id name description metadata_ created_at", order="created_at id"
    ):
        created_at = to_micros(row["created_at"])
        archive = Archive(
            run.id("archive", row["id"]),
            run.organization,
            str(row["name"]),
            row["description"],
            embedding,
            metadata=row["metadata_"] or {},
            created_at=created_at,
            updated_at=created_at,
        )
        if await run.import_once(
            row["id"], "archives", archive.name, partial(import_archive, archive=archive)
        ):
            await _import_passages(run, row["id"], archive)
        run.step()


async def _import_passages(run: LettaRun, letta_id: str, archive: Archive) -> None:
    if (item := f"{letta_id}/passages") in run.done:
        return

    def insert(tx: Transaction, passages: Sequence[Passage]) -> None:
        stored = archives.passages_by_ids(tx, [passage.id for passage in passages])
        stored_ids = {passage.id for passage in stored}
        for passage in passages:
            if passage.id not in stored_ids:
                # Store passages one by one, because passages that are stored together are searched
                # as parts of one text.
                insert_passages(tx, archive, [passage])

    total = 0
    columns = "id text tags metadata_ created_at"
    async for batch in run.batches(
        "archival_passages", columns, order="created_at id", size=_BATCH, archive_id=letta_id
    ):
        passages = [_passage(run, row, archive) for row in batch]
        try:
            await run.store.write(partial(insert, passages=passages))
        except REFUSALS as error:
            run.refused.leave("passages", archive.name, reason_of(error))
            return
        total += len(passages)
        run.step(len(passages))
    await run.import_once(
        item, "passages", archive.name, lambda _tx, outcome: outcome.take("passages", total)
    )


def _passage(run: LettaRun, row: Row, archive: Archive) -> Passage:
    created_at = to_micros(row["created_at"])
    tags = row["tags"]
    metadata = row["metadata_"]
    return Passage(
        id=run.id("passage", row["id"]),
        organization_id=run.organization,
        archive_id=archive.id,
        text=str(row["text"]),
        tags=tuple(map(str, tags)) if isinstance(tags, list) else (),
        metadata=metadata if isinstance(metadata, dict) else {},
        created_by=run.scope.user_id,
        created_at=created_at,
        updated_at=created_at,
    )


async def import_blocks(run: LettaRun) -> dict[str, list[str]]:
    """Import the blocks that several agents share or no agent has.

    A template of a block is imported like any other block if an agent has it.

    Returns:
        The Letta ids of the blocks that an agent gets, by the Letta id of the agent. A shared
        block that could not be imported is left out, since no agent may take it for itself.
    """
    agent_ids = {row["id"] for row in await run.rows("agents", "id")}
    agent_counts = Counter[str]()
    blocks_of: dict[str, list[str]] = defaultdict(list)
    for row in await run.rows("blocks_agents", "agent_id block_id", order="agent_id block_label"):
        if row["agent_id"] in agent_ids:
            blocks_of[row["agent_id"]].append(row["block_id"])
            agent_counts[row["block_id"]] += 1

    def import_block(tx: Transaction, outcome: Outcome, texts: list[BlockTexts]) -> None:
        block_id = run.id("block", texts[0][0]["id"])
        chain = Chain(new_id("chain"), run.organization, "block", block_id)
        insert_blocks(tx, run, chain, texts, outcome)

    for row in await run.rows("block", "id label is_template", order="created_at id"):
        if row["is_template"] and not agent_counts[row["id"]]:
            run.refused.leave(
                "templates of blocks", str(row["label"]), "there are no templates here"
            )
        elif agent_counts[row["id"]] != 1 and row["id"] not in run.done:
            texts = await texts_of(run, [row["id"]])
            await run.import_once(
                row["id"], "blocks", row["label"], partial(import_block, texts=texts)
            )
    return {
        agent_id: [id for id in ids if agent_counts[id] == 1 or id in run.done]
        for agent_id, ids in blocks_of.items()
    }


async def texts_of(run: LettaRun, ids: Sequence[str]) -> list[BlockTexts]:
    """Return these blocks with their earlier texts.

    A block that is missing or deleted there is left out.

    Args:
        run: The import.
        ids: The Letta ids of the blocks.
    """
    texts: list[BlockTexts] = []
    for id in ids:
        for row in await run.rows("block", _BLOCK, id=id):
            tags = await run.rows("blocks_tags", "tag", block_id=id)
            row["tags"] = sorted(str(link["tag"]) for link in tags)
            history = await run.rows(
                "block_history", "value created_at", order="sequence_number", block_id=id
            )
            texts.append((row, history))
    return texts


def insert_blocks(
    tx: Transaction, run: LettaRun, chain: Chain, texts: Sequence[BlockTexts], outcome: Outcome
) -> list[Block]:
    """Store the blocks on a new chain, with one version for each change of a text.

    Args:
        tx: The transaction.
        run: The import, for the ids of the blocks.
        chain: A new chain, which is stored with the blocks.
        texts: The blocks with their earlier texts; if there are none, the chain is not stored.
        outcome: Counts the blocks, and notes labels that had to be replaced.
    """
    if not texts:
        return []
    newest = []
    oldest = []
    for row, history in texts:
        block = _block(tx, run, chain, row=row, history=history, outcome=outcome)
        newest.append(block)
        oldest.append(replace(block, value=_value(history[0])) if history else block)
    stored = blocks.insert_all(tx, oldest, [chain], ChangeMetadata(run.scope.actor, _REASON))
    for index, (_, history) in enumerate(texts):
        later: list[tuple[str, int | None]] = [
            (_value(row), to_micros(row["created_at"])) for row in history[1:]
        ]
        for value, made_at in (*later, (newest[index].value, None)):
            if value != stored[index].value:
                change = ChangeMetadata(run.scope.actor, _REASON, made_at=made_at)
                stored[index] = blocks.write(tx, stored[index], value, change) or stored[index]
        if history:
            outcome.take("earlier versions of blocks", len(history))
    outcome.take("blocks", len(stored))
    return stored


def _value(row: Row) -> str:
    return str(row["value"] or "")


def _block(
    tx: Transaction,
    run: LettaRun,
    chain: Chain,
    *,
    row: Row,
    history: Sequence[Row],
    outcome: Outcome,
) -> Block:
    label = str(row["label"])
    value = _value(row)
    try:
        require_label(label)
    except Invalid as error:
        label = f"block {row['id'][-8:]}"
        outcome.leave(
            "labels of blocks",
            str(row["label"]),
            f"the block is imported under another label. {error}",
        )
    lengths = [len(value), *(len(_value(earlier)) for earlier in history)]
    return new_in(
        chain,
        label,
        run.scope.user_id,
        tx.clock.now(),
        id=run.id("block", row["id"]),
        value=value,
        limit=max(*lengths, int(row["limit"] or 0), 1),
        description=row["description"],
        metadata=row["metadata_"] or {},
        read_only=bool(row["read_only"]),
        hidden=bool(row["hidden"]),
        tags=tuple(row["tags"]),
        policy="direct",
    )
