"""Blocks in storage: chains, concurrent writes, labels, tags and attachments."""

from dataclasses import replace

import pytest

from ricordo.domain.scope import Scope
from ricordo.errors import Collision, Conflict, NotFound
from ricordo.storage import agent_access, blocks, users, versions
from ricordo.storage.block_filter import AgentCount
from ricordo.storage.blocks import BlockFilter
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.schema.memory_tables import chains
from tests.seams import make
from tests.seams.stores import count_statements

ELSEWHERE = Scope(organization_id="org-2")


async def test_a_block_reads_back_as_it_was_written(store: SqliteStore, scope: Scope) -> None:
    (block,) = await make.stored_blocks(
        store,
        make.block(
            "course/week 1",
            "Plätzchen 🍵\n\x01",
            description="What we did",
            limit=500,
            read_only=True,
            policy="propose",
            hidden=True,
            metadata={"a": {"b": [1, None, "ü"]}},
            tags=("course", "tea"),
            version=3,
            created_by="user-1",
            updated_by="agent-1",
        ),
    )
    assert await store.read(lambda tx: blocks.get(tx, scope, block.id)) == block


async def test_blocks_are_returned_in_the_order_of_the_ids_with_their_tags(
    store: SqliteStore, scope: Scope
) -> None:
    one, two = await make.stored_blocks(store, make.block(tags=("b",)), make.block(tags=("a", "c")))
    assert await store.read(lambda tx: blocks.by_ids(tx, scope, [two.id, one.id, two.id])) == [
        two,
        one,
        two,
    ]
    with pytest.raises(NotFound, match="Block with id 'block-gone' not found"):
        await store.read(lambda tx: blocks.by_ids(tx, scope, [one.id, "block-gone"]))


async def test_another_organizations_block_is_not_found(store: SqliteStore) -> None:
    (block,) = await make.stored_blocks(store, make.block())
    with pytest.raises(NotFound):
        await store.read(lambda tx: blocks.get(tx, ELSEWHERE, block.id))
    assert await store.read(
        lambda tx: (blocks.count(tx, ELSEWHERE), blocks.page(tx, ELSEWHERE, Page(), BlockFilter()))
    ) == (0, [])


async def test_agents_that_the_caller_may_not_use_are_not_counted(
    store: SqliteStore, scope: Scope
) -> None:
    (block,) = await make.stored_blocks(store, make.block(created_by=None))
    ada = await store.write(lambda tx: users.find_or_make(tx, scope, "ada"))
    for _ in range(2):
        agent = (await make.stored_agent(store)).agent
        await store.write(lambda tx, agent=agent: blocks.attach(tx, agent.id, [block]))  # type: ignore[misc]
    await store.write(lambda tx: agent_access.attach_user(tx, agent.id, ada.id))

    async def has(count: int, caller: Scope) -> bool:
        which = BlockFilter(
            agents=AgentCount(any_of=(count,), more_than=count - 1, fewer_than=count + 1)
        )
        return await store.read(lambda tx: blocks.page(tx, caller, Page(), which)) == [block]

    users_own = replace(scope, role="user")
    assert await has(2, scope)
    assert await has(2, replace(users_own, subject_id=ada.id))
    assert await has(1, replace(users_own, subject_id="user-bob"))


async def test_a_label_occurs_once_in_a_chain(store: SqliteStore, scope: Scope) -> None:
    chain = make.chain("user", "user-1")
    twice = [make.block("human", chain_id=chain.id), make.block("human", chain_id=chain.id)]
    with pytest.raises(Collision):
        await store.write(lambda tx: blocks.insert_all(tx, twice, [chain], make.change_metadata()))
    assert await store.read(
        lambda tx: (blocks.count(tx, scope), versions.of_owner(tx, Scope(), "user", "user-1"))
    ) == (
        0,
        None,
    )


async def test_a_write_from_an_older_version_changes_nothing(
    store: SqliteStore, scope: Scope
) -> None:
    (block,) = await make.stored_blocks(store, make.block(value="old"))
    await store.write(lambda tx: blocks.write(tx, block, "first", make.change_metadata("agent-1")))
    assert (
        await store.write(
            lambda tx: blocks.write(tx, block, "second", make.change_metadata("agent-2"))
        )
        is None
    )
    assert (await store.read(lambda tx: blocks.get(tx, scope, block.id))).value == "first"


async def test_an_update_from_an_older_version_is_a_conflict_that_changes_nothing(
    store: SqliteStore, scope: Scope
) -> None:
    (block,) = await make.stored_blocks(store, make.block(tags=("tea",)))
    newer = await store.write(
        lambda tx: blocks.write(tx, block, "first", make.change_metadata("agent-1"))
    )
    with pytest.raises(
        Conflict, match=r'Block "human" changed since you read it\. Read it again and retry'
    ):
        await store.write(
            lambda tx: blocks.update(
                tx, block, replace(block, label="other", tags=("x",)), make.change_metadata()
            )
        )
    assert await store.read(lambda tx: blocks.get(tx, scope, block.id)) == newer


async def test_an_update_replaces_tags_and_moves_attachments_to_the_new_label(
    store: SqliteStore, scope: Scope
) -> None:
    (block,) = await make.stored_blocks(store, make.block("human", tags=("a", "b")))
    agent = (await make.stored_agent(store)).agent
    await store.write(lambda tx: blocks.attach(tx, agent.id, [block]))
    wanted = replace(
        block,
        label="friend",
        limit=9_000,
        metadata={"k": 1},
        hidden=True,
        tags=("b", "c"),
        updated_by="u",
    )
    changed = await store.write(lambda tx: blocks.update(tx, block, wanted, make.change_metadata()))
    assert changed == replace(
        wanted, version=2, head=changed.head, updated_by="user-1", updated_at=changed.updated_at
    )
    assert changed.head != block.head
    assert await store.read(lambda tx: blocks.get(tx, scope, block.id)) == changed
    (second,) = await make.stored_blocks(store, make.block("friend"))
    with pytest.raises(Collision):
        await store.write(lambda tx: blocks.attach(tx, agent.id, [second]))


async def test_a_users_attached_block_is_shown_only_in_their_conversations(
    store: SqliteStore,
) -> None:
    chain = make.chain("user", "user-ada")
    (hers,) = [make.block("diary", "I am Ada.", chain_id=chain.id)]
    await store.write(lambda tx: blocks.insert_all(tx, [hers], [chain], make.change_metadata()))
    agent = (await make.stored_agent(store)).agent
    await store.write(lambda tx: blocks.attach(tx, agent.id, [hers]))
    for user_id, is_untrusted in (("user-ada", [False]), ("user-bob", []), (None, [])):
        seen = await store.read(lambda tx, user_id=user_id: blocks.of_agent(tx, agent.id, user_id))  # type: ignore[misc]
        assert [block.is_untrusted for block in seen] == is_untrusted, user_id
    assert [block.id for block in await store.read(lambda tx: blocks.attached(tx, agent.id))] == [
        hers.id
    ]


async def test_removing_an_ownerless_block_removes_its_chain_and_attachments(
    store: SqliteStore, scope: Scope
) -> None:
    block, other = await make.stored_blocks(store, make.block(tags=("tea",)), make.block("other"))
    agent = (await make.stored_agent(store)).agent
    await store.write(lambda tx: blocks.attach(tx, agent.id, [block, other]))
    await store.write(lambda tx: blocks.remove(tx, block, make.change_metadata()))
    assert await store.read(lambda tx: blocks.of_agent(tx, agent.id)) == (other,)
    left = await store.read(lambda tx: [row.id for row in tx.all(chains.select())])
    assert left == [other.chain_id]


async def test_reading_any_number_of_blocks_costs_one_statement(
    store: SqliteStore, scope: Scope
) -> None:
    made = await make.stored_blocks(store, *(make.block(tags=("t",)) for _ in range(30)))
    with count_statements(store) as counted:
        await store.read(lambda tx: blocks.by_ids(tx, scope, [block.id for block in made]))
    assert len(counted.statements) == 1
