"""A migration normalizes the names in an older database, and a job normalizes its blocks.

Each change of a block is a version.
"""

import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from ricordo.domain.block import Block
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.features.files.folders.tables import files, folders
from ricordo.memory.normal_form import normalise_blocks
from ricordo.storage import agents, blocks, history, versions
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.migrations.normal_names import NORMALISE_BLOCKS, normalise_names
from ricordo.storage.versions import Change
from tests.seams import make

GRUSS = "Grüße"
ODD = unicodedata.normalize("NFD", GRUSS)


def rows(tx: Transaction, sql: str) -> list[Any]:
    return [tuple(row) for row in tx.connection.execute(text(sql))]


async def test_names_are_normalized_and_a_duplicate_gets_a_number(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [make.tool(name) for name in ("one", "two", "three")]
    agent = (await make.stored_agent(store, with_tools=tools, tags=("a", "b"))).agent

    def spoil(tx: Transaction) -> None:
        files.metadata.create_all(tx.connection, tables=[folders, files])
        run = tx.connection.execute
        run(text("UPDATE agents SET name = :name"), {"name": f"\u200b{ODD}"})
        run(text("UPDATE agents_tags SET tag = :tag WHERE tag = 'a'"), {"tag": ODD})
        run(text("UPDATE agents_tags SET tag = :tag WHERE tag = 'b'"), {"tag": GRUSS})
        for name, new in (("one", ODD), ("two", GRUSS), ("three", f"{ODD}\u200b")):
            run(text("UPDATE tools SET name = :new WHERE name = :name"), {"name": name, "new": new})

    await store.write(spoil)
    await store.write(lambda tx: normalise_names(tx.connection))
    assert await store.read(lambda tx: rows(tx, "SELECT name FROM agents")) == [(GRUSS,)]
    assert await store.read(lambda tx: rows(tx, "SELECT tag FROM agents_tags")) == [(GRUSS,)]
    names = await store.read(
        lambda tx: rows(tx, "SELECT name FROM tools WHERE tool_type = 'custom' ORDER BY seq")
    )
    assert names == [(f"{GRUSS}_2",), (GRUSS,), (f"{GRUSS}_3",)]
    assert [record.getMessage() for record in caplog.records].count(
        "a number was added to a name, since another name has the same normal form"
    ) == 2
    assert await store.read(lambda tx: rows(tx, "SELECT kind FROM jobs")) == [(NORMALISE_BLOCKS,)]
    # A second run has nothing to do.
    before = await store.read(lambda tx: rows(tx, "SELECT name FROM tools"))
    await store.write(
        lambda tx: (
            tx.connection.execute(text("DELETE FROM jobs")) and normalise_names(tx.connection)
        )
    )
    assert await store.read(lambda tx: rows(tx, "SELECT name FROM tools")) == before
    assert agent.id in {
        row[0] for row in await store.read(lambda tx: rows(tx, "SELECT id FROM agents"))
    }


async def spoiled(store: Store, block: Block, label: str, value: str) -> Block:
    """The block as it was stored before there was a normal form."""

    def spoil(tx: Transaction) -> Block:
        chain = versions.lock(tx, block.chain_id)
        assert chain
        old_label = block.label if label != block.label else None
        change = Change(label, value, before=block.value, old_label=old_label)
        _, (head,) = versions.record(
            tx, chain, [change], ChangeMetadata(Actor("user", "ada"), "Write")
        )
        odd = replace(block, label=label, value=value, head=head)
        given = {"label": label, "value": value, "head": head, "id": block.id}
        tx.connection.execute(
            text("UPDATE blocks SET label = :label, value = :value, head = :head WHERE id = :id"),
            given,
        )
        tx.connection.execute(
            text("UPDATE agents_blocks SET label = :label WHERE block_id = :id"),
            {"label": label, "id": block.id},
        )
        return odd

    return await store.write(spoil)


async def test_blocks_are_normalized_by_one_version_each_and_keep_their_history(
    store: Store, scope: Scope
) -> None:
    odd_label, other, plain = await make.stored_blocks(
        store,
        make.block("human", "tea", policy="read_only"),
        make.block("plans", "milk"),
        make.block("plain", "water"),
    )
    agent = (await make.stored_agent(store)).agent
    await store.write(lambda tx: blocks.attach(tx, agent.id, [odd_label, other, plain]))
    await spoiled(store, odd_label, ODD, "one\r\ntwo\r\n")
    await spoiled(store, other, "plans", f"\ufeff{ODD}\rend")
    before = await store.read(lambda tx: history.page(tx, odd_label.chain_id, limit=10))

    assert await normalise_blocks(store) == 2
    assert await normalise_blocks(store) == 0

    seen = {block.id: block for block in await store.read(lambda tx: blocks.of_agent(tx, agent.id))}
    assert (seen[odd_label.id].label, seen[odd_label.id].value) == (GRUSS, "one\ntwo\n")
    assert seen[other.id].value == f"{GRUSS}\nend"
    assert seen[plain.id].version == plain.version
    after = await store.read(lambda tx: history.page(tx, odd_label.chain_id, limit=10))
    assert after[1:] == before
    assert (after[0].author.kind, after[0].old_label, after[0].reason) == (
        *("system", ODD),
        "Bring the text into its normal form",
    )
    # From now on an edit of one line shows as one changed line, and each version keeps its text.
    texts = await store.read(
        lambda tx: [
            versions.read_text(tx, odd_label.chain_id, one.blob) for one in after if one.blob
        ]
    )
    assert texts == ["one\ntwo\n", "one\r\ntwo\r\n", "tea"]
    assert (await store.read(lambda tx: agents.load(tx, scope, agent.id))).agent.id == agent.id
    assert await store.read(
        lambda tx: blocks.page(tx, scope, Page(), blocks.BlockFilter(label=ODD))
    ) == [replace(seen[odd_label.id], tags=())]


async def test_a_label_that_is_in_use_in_its_normal_form_gets_a_number(store: Store) -> None:
    first, second = await make.stored_blocks(
        store, make.block("first", "a"), make.block("second", "b")
    )
    agent = (await make.stored_agent(store)).agent
    await store.write(lambda tx: blocks.attach(tx, agent.id, [first, second]))
    await spoiled(store, first, GRUSS, "a")
    await spoiled(store, second, ODD, "b")
    await normalise_blocks(store)
    labels = [block.label for block in await store.read(lambda tx: blocks.of_agent(tx, agent.id))]
    assert labels == [GRUSS, f"{GRUSS}_2"]
