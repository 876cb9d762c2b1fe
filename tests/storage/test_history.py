"""Reading versions: pages, ids and their prefixes, earlier texts, runs, deleted blocks."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import select, update

from ricordo.domain.block import Block, Chain
from ricordo.domain.git_objects import blob_id
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.domain.version import BlockVersion
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.storage import blocks, history, versions
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Overtaken, Transaction
from ricordo.storage.schema.memory_tables import blobs, commits, is_in_chain
from tests.seams import make
from tests.seams.stores import count_statements, overlapped


async def stored(store: SqliteStore, *labels: str) -> tuple[Chain, list[Block]]:
    chain = make.chain("user", "user-1")
    new = [make.block(label, f"{label} 1", chain_id=chain.id) for label in labels]
    return chain, await store.write(
        lambda tx: blocks.insert_all(tx, new, [chain], make.change_metadata())
    )


async def write(store: SqliteStore, block: Block, **fields: Any) -> Block:
    metadata = make.change_metadata(
        **{name: fields.pop(name) for name in ("run_id", "step_id") if name in fields}
    )
    return await store.write(
        lambda tx: blocks.update(tx, block, replace(block, **fields), metadata)
    )


async def numbers(store: SqliteStore, chain: Chain, **options: Any) -> list[int]:
    found = await store.read(lambda tx: history.page(tx, chain.id, **options))
    return [version.number for version in found]


async def test_a_history_page_is_newest_first_and_continues_below_a_number(
    store: SqliteStore,
) -> None:
    chain, (human, goals) = await stored(store, "human", "goals")
    for number in range(2, 5):
        human = await write(store, human, value=f"human {number}")
        goals = await write(store, goals, value=f"goals {number}")
    assert await numbers(store, chain) == [8, 7, 6, 5, 4, 3, 2, 1]
    assert await numbers(store, chain, limit=3) == [8, 7, 6]
    assert await numbers(store, chain, limit=3, before=6) == [5, 4, 3]
    assert await numbers(store, chain, label="goals") == [8, 6, 4, 2]
    assert await numbers(store, chain, label="goals", limit=2, before=6) == [4, 2]
    assert await numbers(store, chain, label="goals", before=1) == []
    assert await numbers(store, chain, label="gone") == []
    assert await store.read(lambda tx: history.page(tx, "chain-gone")) == []


async def test_history_follows_labels_back_and_separates_blocks_of_the_same_label(
    store: SqliteStore,
) -> None:
    chain, (one,) = await stored(store, "a")
    one = await write(store, one, label="b")  # 2
    (two,) = await store.write(
        lambda tx: blocks.insert_all(
            tx, [make.block("a", "other", chain_id=chain.id)], [], make.change_metadata()
        )
    )  # 3
    two = await write(store, two, label="aside")  # 4: they change places
    one = await write(store, one, label="a")  # 5
    two = await write(store, two, label="b")  # 6
    assert await numbers(store, chain, label="a") == [5, 2, 1]
    assert await numbers(store, chain, label="a", limit=1, before=5) == [2]
    assert await numbers(store, chain, label="b") == [6, 4, 3]
    made = {one.number: one for one in await store.read(lambda tx: history.page(tx, chain.id))}

    async def text(label: str, number: int) -> str | None:
        return await store.read(lambda tx: history.text_at(tx, chain.id, label, made[number]))

    assert [await text("a", number) for number in range(1, 7)] == ["a 1"] * 6
    assert [await text("b", number) for number in range(3, 7)] == ["other"] * 4
    # Before the block existed, another block had this label.
    assert [await text("b", number) for number in (1, 2)] == [None, "a 1"]
    assert [await text("aside", number) for number in (3, 4, 5, 6)] == [
        None,
        "other",
        "other",
        None,
    ]
    before = await store.read(
        lambda tx: [history.before(tx, made[number]) for number in (6, 5, 3, 1)]
    )
    assert [one and one.number for one in before] == [4, 2, None, None]
    now = await store.read(
        lambda tx: [history.label_now(tx, made[number]) for number in range(1, 7)]
    )
    assert now == ["a", "a", "b", "b", "a", "b"]


async def test_a_version_is_found_by_its_id_and_by_a_prefix(store: SqliteStore) -> None:
    chain, (human,) = await stored(store, "human")
    await write(store, human, value="2")
    version = (await store.read(lambda tx: history.page(tx, chain.id)))[-1]
    for length in (40, 12, 8, 7):
        name = version.id.hex()[:length]
        assert await store.read(lambda tx, name=name: history.get(tx, chain.id, name)) == version  # type: ignore[misc]
    assert (
        await store.read(lambda tx: history.get(tx, chain.id, version.id.hex().upper())) == version
    )
    for name in (
        version.id.hex()[:6],
        "",
        "xyz" * 4,
        version.id.hex() + "0",
        "0" * 40,
        "HEAD~1",
        "'; --",
    ):
        with pytest.raises(NotFound, match="no version"):
            await store.read(lambda tx, name=name: history.get(tx, chain.id, name))  # type: ignore[misc]
    with pytest.raises(NotFound):
        await store.read(lambda tx: history.get(tx, "chain-other", version.id.hex()))


async def test_a_prefix_of_several_versions_is_a_conflict(store: SqliteStore) -> None:
    chain, _ = await stored(store, "human")
    version = (await store.read(lambda tx: history.page(tx, chain.id)))[0]
    twin = bytes([*version.id[:4], version.id[4] ^ 1, *version.id[5:]])

    def copy(tx: Transaction) -> None:
        row = tx.first(commits.select())._asdict()
        del row["seq"]
        tx.run(commits.insert(), {**row, "id": twin, "number": 2})

    await store.write(copy)
    with pytest.raises(Conflict, match="Several versions begin with"):
        await store.read(lambda tx: history.get(tx, chain.id, version.id.hex()[:8]))
    found = await store.read(lambda tx: history.get(tx, chain.id, version.id.hex()[:10]))
    assert found.id == version.id


async def test_versions_of_a_run_and_its_steps_are_found_in_all_chains(
    store: SqliteStore, scope: Scope
) -> None:
    chain, (human,) = await stored(store, "human")
    (loose,) = await make.stored_blocks(store, make.block("loose"))
    await write(store, human, value="2", run_id="run-1", step_id="step-1")
    await write(store, loose, value="3", run_id="run-1", step_id="step-2")

    async def labels(found: list[BlockVersion]) -> list[str]:
        return sorted(version.label for version in found)

    assert await labels(await store.read(lambda tx: history.of_run(tx, scope, "run-1"))) == [
        "human",
        "loose",
    ]
    assert await labels(
        await store.read(lambda tx: history.of_step(tx, scope, "run-1", "step-2"))
    ) == ["loose"]
    elsewhere = Scope(organization_id="org-2")
    assert await store.read(lambda tx: history.of_run(tx, elsewhere, "run-1")) == []
    assert await store.read(lambda tx: history.of_step(tx, elsewhere, "run-1", "step-1")) == []
    heads = {human.id: (human.head or b"").hex(), loose.id: (loose.head or b"").hex()}
    await store.write(
        lambda tx: blocks.remove(tx, blocks.get(tx, scope, human.id), make.change_metadata())
    )
    held = await store.read(lambda tx: history.of_blocks(tx, scope, heads))
    assert {id: (version.label, version.chain_id) for id, version in held.items()} == {
        human.id: ("human", chain.id),
        loose.id: ("loose", loose.chain_id),
    }
    assert await store.read(lambda tx: history.of_blocks(tx, elsewhere, heads)) == {}


async def test_texts_read_together_equal_those_read_one_by_one(store: SqliteStore) -> None:
    chain, (human,) = await stored(store, "human")
    for number in range(80):
        human = await write(store, human, value=f"line\n{number}\nübrig 🍵")
    found = await store.read(lambda tx: history.page(tx, chain.id, limit=100))
    ids = [version.blob for version in found if version.blob]

    def work(tx: Transaction) -> None:
        assert versions.read_texts(tx, chain.id, ids) == {
            id: versions.read_text(tx, chain.id, id) for id in ids
        }
        assert versions.read_texts(tx, chain.id, []) == {}
        with pytest.raises(NotFound):
            versions.read_texts(tx, chain.id, [b"\0" * 20])

    await store.read(work)
    with count_statements(store) as counted:
        await store.read(lambda tx: versions.read_texts(tx, chain.id, ids))
    assert len(counted.statements) <= 4


damage_of_texts = st.tuples(
    st.integers(0, 2),
    st.floats(0, 1, exclude_max=True),
    st.none() | st.integers(1, 255),
)


@given(damage_of_texts)
@example((0, 0, 255))
@example((1, 0.5, 255))
@example((2, 0.9, None))
async def test_a_text_whose_stored_bytes_were_changed_or_cut_is_a_conflict(
    store: SqliteStore, damage: tuple[int, float, int | None]
) -> None:
    which, share, difference = damage
    chain = make.chain("user", new_id("user"))
    human = make.block("human", "\n".join(f"line {n} übrig 🍵" for n in range(20)))
    human = replace(human, chain_id=chain.id)
    await store.write(lambda tx: blocks.insert_all(tx, [human], [chain], make.change_metadata()))
    written = [human.value]
    for number in range(2):
        human = await write(store, human, value=f"{human.value}\nmore {number} 🫖")
        written.append(human.value)
    ids = [blob_id(value) for value in written]

    def look(tx: Transaction) -> str:
        is_it = is_in_chain(blobs) & (blobs.c.id == ids[which])
        (row,) = tx.all(select(blobs).where(is_it), {"chain_id": chain.id})
        assert (row.base is None) == (which == 0)
        position = int(share * len(row.data))
        changed = bytearray(row.data)
        if difference is None:
            del changed[position:]
        else:
            changed[position] ^= difference
        statement = update(blobs).where(blobs.c.seq == row.seq).values(data=bytes(changed))
        tx.run(statement)
        try:
            return versions.read_text(tx, chain.id, ids[which])
        except Conflict as error:
            return str(error)

    # A few bits, such as those for the level of compression, have no meaning for zlib.
    damaged = f"The stored text {ids[which].hex()} is damaged. Restore a backup."
    assert await store.write(look) in (damaged, written[which])


async def test_deleting_a_block_that_was_just_renamed_deletes_it_under_its_new_label(
    store: SqliteStore, scope: Scope
) -> None:
    chain, (human,) = await stored(store, "human")

    def rename(tx: Transaction) -> Block:
        block = blocks.get(tx, scope, human.id)
        return blocks.update(tx, block, replace(block, label="profile"), make.change_metadata())

    def remove(tx: Transaction) -> None:
        blocks.remove(tx, blocks.get(tx, scope, human.id), make.change_metadata())

    one, two = await overlapped(store, rename, remove)
    assert (one.label, two) == ("profile", None)
    last, *_ = await store.read(lambda tx: history.page(tx, chain.id))
    assert (last.label, last.blob) == ("profile", None)
    with pytest.raises((Overtaken, Conflict)):
        await store.write(
            lambda tx: blocks.update(tx, human, replace(human, value="x"), make.change_metadata())
        )


async def test_a_reason_that_no_commit_can_hold_is_refused(
    store: SqliteStore, scope: Scope
) -> None:
    chain, (human,) = await stored(store, "human")
    with pytest.raises(Invalid, match="cannot hold NUL"):
        await store.write(
            lambda tx: blocks.write(tx, human, "x", make.change_metadata(reason="be\0cause"))
        )
    assert await store.read(lambda tx: blocks.get(tx, scope, human.id)) == human
    assert await numbers(store, chain) == [1]
