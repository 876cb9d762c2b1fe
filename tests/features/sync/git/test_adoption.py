"""Commits that are pushed with git become versions with their ids.

Blocks and the newest version change in one transaction, by the policy of each block.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from ricordo.domain.block import Block, Chain
from ricordo.domain.git_objects import GitObject
from ricordo.domain.scope import Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Forbidden, Stale, TooLong
from ricordo.features.sync.git.adoption import Adoption, adopt
from ricordo.features.sync.git.push import Push
from ricordo.features.sync.git.repository import refreshed
from ricordo.memory.proposals import ProposalDraft, propose
from ricordo.storage import blocks, history, proposals, versions
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.schema.memory_tables import blobs, commits, git_objects
from tests.seams import make
from tests.support.git import commit_of, fsck, git

_PUSHED: dict[bytes, GitObject] = {}
FILES = {"human": "Name: Ada", "goals": "Rest", "plans/week": "Read"}


@pytest.fixture
async def chain(store: SqliteStore) -> Chain:
    made = make.chain("user", "user-1")
    await store.write(lambda tx: versions.insert_chain(tx, made))
    return await adopt_commit(store, made, *commit_of(FILES))


async def adopt_commit(
    store: SqliteStore,
    chain: Chain,
    tip: bytes,
    new: dict[bytes, GitObject],
    metadata: ChangeMetadata | None = None,
) -> Chain:
    adoption = await plan_adoption(store, chain, tip, new)
    _PUSHED.update(new)  # The repository of the memory already has the earlier pushes.
    return await store.write(
        lambda tx: adopt(tx, Scope(), chain.id, adoption, metadata or make.change_metadata())
    )


async def plan_adoption(
    store: SqliteStore, chain: Chain, tip: bytes, new: dict[bytes, GitObject]
) -> Adoption:
    rows = select(git_objects.c.id, git_objects.c.kind, git_objects.c.data)
    here = await store.read(
        lambda tx: {row.id: GitObject(row.kind, row.id, row.data) for row in tx.all(rows)}
    )
    return Push(_PUSHED | new, here.get).adoption(chain.head, tip)


async def current_blocks(store: SqliteStore) -> dict[str, Block]:
    found = await store.read(lambda tx: blocks.of_user(tx, Scope(), "user-1"))
    return {block.label: block for block in found}


async def row_counts(store: SqliteStore) -> list[int]:
    tables = (commits, blobs, git_objects)
    return await store.read(
        lambda tx: [
            tx.all(select(func.count().label("rows")).select_from(table))[0].rows
            for table in tables
        ]
    )


async def test_a_pushed_commit_can_rename_delete_add_and_change_blocks(
    store: SqliteStore, chain: Chain, tmp_path: Path
) -> None:
    before = await current_blocks(store)
    agent = (await make.stored_agent(store)).agent
    await store.write(lambda tx: blocks.attach(tx, agent.id, [before["human"]]))
    # Renamed in a circle, one deleted, one new, one changed; then written by the product again.
    renamed, first = commit_of(
        {"goals": "Name: Ada", "human": "Rest", "new": "x"}, chain.head or b""
    )
    after = await adopt_commit(store, chain, renamed, first)
    moved, second = commit_of({"me": "Name: Ada", "human": "Rest", "new": "y"}, renamed)
    after = await adopt_commit(store, after, moved, second)
    there = await current_blocks(store)
    assert {label: block.value for label, block in there.items()} == {
        "me": "Name: Ada",
        "human": "Rest",
        "new": "y",
    }
    assert there["me"].id == before["goals"].id
    assert [
        block.label for block in await store.read(lambda tx: blocks.attached(tx, agent.id))
    ] == ["human"]
    await store.write(
        lambda tx: blocks.write(tx, there["human"], "Rest well", make.change_metadata())
    )

    path = await refreshed(store, tmp_path, chain.id)
    assert fsck(path) == ""
    assert git(path, "rev-list", "--count", "main") == "4"
    assert git(path, "ls-tree", "-r", "--name-only", "main").split() == [
        "human.md",
        "me.md",
        "new.md",
    ]


async def test_each_block_of_a_commit_has_its_own_version(store: SqliteStore, chain: Chain) -> None:
    there = await current_blocks(store)
    heads = {block.id: (block.head or b"").hex() for block in there.values()}
    assert len(set(heads.values())) == 1
    # The old names of the blocks belong to other blocks now, and one block is deleted.
    for later in (
        {"human": "Name: Ada", "goals": "Rest"},
        {"plans/week": "Name: Ada", "goals": "Rest"},
        {"plans/week": "Name: Ada", "human": "Rest"},
    ):
        chain = await adopt_commit(store, chain, *commit_of(later, chain.head or b""))

    found = await store.read(lambda tx: history.of_blocks(tx, Scope(), heads))

    assert {label: found[block.id].label for label, block in there.items()} == {
        label: label for label in FILES
    }


async def test_a_deleted_block_comes_back_with_its_id_and_settings(
    store: SqliteStore, chain: Chain
) -> None:
    before = (await current_blocks(store))["goals"]
    wanted = replace(before, policy="guarded", title="Goals", limit=500)
    await store.write(lambda tx: blocks.update(tx, before, wanted, make.change_metadata()))
    without = {label: text for label, text in FILES.items() if label != "goals"}
    gone, first = commit_of(without, chain.head or b"")
    chain = await adopt_commit(store, chain, gone, first)
    assert "goals" not in await current_blocks(store)
    back, second = commit_of({**without, "goals": "Run"}, gone)
    await adopt_commit(store, chain, back, second)
    there = (await current_blocks(store))["goals"]
    assert (there.id, there.policy, there.title, there.limit, there.value) == (
        before.id,
        "guarded",
        "Goals",
        500,
        "Run",
    )


async def test_proposals_follow_a_block_renamed_by_a_push(store: SqliteStore, chain: Chain) -> None:
    there = await current_blocks(store)
    ids_of = {}
    for label in ("human", "goals"):
        draft = ProposalDraft(chain.id, label, f"More of {label}", there[label])
        made = await store.write(lambda tx, draft=draft: propose(tx, draft, make.change_metadata()))  # type: ignore[misc]
        ids_of[made.id] = there[label].id
    # In one push they exchange their names.
    tip, new, week = chain.head or b"", dict[bytes, GitObject](), {"plans/week": "Read"}
    for files in ({"aside": "Name: Ada", "goals": "Rest"}, {"aside": "Name: Ada", "human": "Rest"}):
        tip, more = commit_of(files | week, tip)
        new |= more
    tip, more = commit_of({"goals": "Name: Ada", "human": "Rest"} | week, tip)
    await adopt_commit(store, chain, tip, new | more)
    waiting = await store.read(lambda tx: proposals.waiting(tx, chain.id))
    labels = {block.id: label for label, block in (await current_blocks(store)).items()}
    assert {one.id: one.label for one in waiting} == {
        id: labels[block_id] for id, block_id in ids_of.items()
    }


async def test_a_block_id_that_was_deleted_twice_is_restored_once(
    store: SqliteStore, chain: Chain
) -> None:
    rest = {label: text for label, text in FILES.items() if label != "goals"}
    tip = chain.head or b""
    # The block is deleted as "goals", comes back, is renamed to "aims", and is deleted as that.
    for files in (rest, FILES, {**rest, "aims": "Rest"}, rest):
        tip, new = commit_of(files, tip)
        chain = await adopt_commit(store, chain, tip, new)
    first, one = commit_of({**rest, "goals": "Run"}, tip)
    second, two = commit_of(rest, first)
    third, three = commit_of({**rest, "aims": "Sleep"}, second)
    fourth, four = commit_of({**rest, "aims": "Sleep", "goals": "Run"}, third)
    chain = await adopt_commit(store, chain, fourth, {**one, **two, **three, **four})
    there = await current_blocks(store)
    assert there.keys() == chain.files.keys()
    assert len({block.id for block in there.values()}) == len(there)


async def test_a_push_with_a_key_without_a_user_follows_block_policies(
    store: SqliteStore, chain: Chain
) -> None:
    there, rows = await current_blocks(store), await row_counts(store)
    tip, new = commit_of({**FILES, "human": "Name: Eve"}, chain.head or b"")
    with pytest.raises(Forbidden, match='Block "human" has the policy propose'):
        await adopt_commit(store, chain, tip, new, make.change_metadata("agent-1"))
    assert (await current_blocks(store), await row_counts(store)) == (there, rows)
    for policy in ("direct", "propose"):
        block = (await current_blocks(store))["human"]
        await store.write(
            lambda tx, b=block, p=policy: blocks.update(
                tx, b, replace(b, policy=p), make.change_metadata()
            )
        )  # type: ignore[misc]
        if policy == "direct":
            chain = await adopt_commit(store, chain, tip, new, make.change_metadata("agent-1"))
    assert (await current_blocks(store))["human"].value == "Name: Eve"
    tip, new = commit_of({**FILES, "human": "Name: Eve", "secret": "x"}, tip)
    with pytest.raises(Forbidden, match='Block "secret"'):
        await adopt_commit(store, chain, tip, new, make.change_metadata("agent-1"))


async def test_a_push_is_refused_after_newer_writes_or_beyond_limits(
    store: SqliteStore, chain: Chain
) -> None:
    adoption = await plan_adoption(
        store, chain, *commit_of({**FILES, "human": "Pushed"}, chain.head or b"")
    )
    with pytest.raises(Conflict, match="erased"):
        await store.write(
            lambda tx: adopt(tx, Scope(), "chain-gone", adoption, make.change_metadata())
        )
    there, rows = await current_blocks(store), await row_counts(store)
    limited = replace(there["human"], limit=10)
    await store.write(lambda tx: blocks.update(tx, there["human"], limited, make.change_metadata()))
    long, first = commit_of({**FILES, "human": "x" * 11}, chain.head or b"")
    short, second = commit_of({**FILES, "human": "x"}, long)
    with pytest.raises(TooLong, match="its limit is 10"):
        await adopt_commit(store, chain, short, first | second)
    assert await row_counts(store) == rows
    await store.write(
        lambda tx: blocks.write(tx, there["goals"], "Written", make.change_metadata())
    )
    with pytest.raises(Stale, match="Fetch and merge first"):
        await store.write(lambda tx: adopt(tx, Scope(), chain.id, adoption, make.change_metadata()))
    assert (await current_blocks(store))["human"].value == "Name: Ada"
