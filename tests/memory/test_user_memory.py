"""A user's memory: put, delete, restore and rename, also while others write.

`test_history.py` compares any sequence of them with a plain model.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ricordo.domain.block import Block
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import BlockVersion
from ricordo.errors import Forbidden, Invalid, NotFound, TooLong
from ricordo.memory import submission, user_memory
from ricordo.memory.user_memory import PutOptions
from ricordo.storage import blocks, history, users
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import users as users_table
from ricordo.storage.schema.memory_tables import chains
from tests.memory.steps import ADA, TUTOR, owned_of, put


async def run_on_memory(
    store: SqliteStore, work: Callable[..., Any], *arguments: Any, **options: Any
) -> Any:
    return await store.write(
        lambda tx: work(tx, user_memory.open_memory(tx, Scope(), "ada"), *arguments, **options)
    )


async def history_of(store: SqliteStore, label: str | None = None) -> list[BlockVersion]:
    owned = await owned_of(store)
    return await store.read(lambda tx: history.page(tx, owned.chain.id, label=label))


async def found(store: SqliteStore, label: str) -> Block | None:
    return await run_on_memory(store, user_memory.find, label)


async def test_a_user_without_memory_has_no_blocks_and_reading_creates_nothing(
    store: SqliteStore,
) -> None:
    await store.write(lambda tx: users.find_or_make(tx, Scope(), "ada"))
    assert await run_on_memory(store, user_memory.listed) == ()
    assert await history_of(store) == []
    with pytest.raises(NotFound, match="Write a block first"):
        await run_on_memory(store, user_memory.delete, "human", ADA)
    with pytest.raises(NotFound, match='no user "bob"'):
        await owned_of(store, "bob")
    assert await store.read(lambda tx: tx.all(chains.select())) == []


async def test_ten_concurrent_first_puts_create_one_user_and_one_chain(
    store: SqliteStore,
) -> None:
    await asyncio.gather(*(put(store, f"block {number}", str(number)) for number in range(10)))
    owned = await owned_of(store)
    listed = await run_on_memory(store, user_memory.listed)
    assert {block.label: block.value for block in listed} == {
        f"block {number}": str(number) for number in range(10)
    }
    assert len(await store.read(lambda tx: tx.all(chains.select()))) == 1
    # The store also has the local user.
    assert len(await store.read(lambda tx: tx.all(users_table.select()))) == 2
    assert owned.chain.versions == 10


async def test_two_concurrent_puts_from_one_version_are_merged_or_one_is_refused(
    store: SqliteStore,
) -> None:
    first = await put(store, "human", "a\nb\nc\nd")
    expected = (first.head or b"").hex()
    await asyncio.gather(
        put(store, "human", "A\nb\nc\nd", expected=expected),
        put(store, "human", "a\nb\nc\nD", expected=expected),
    )
    block = await found(store, "human")
    assert block.value == "A\nb\nc\nD"
    results = await asyncio.gather(
        *(
            put(store, "human", f"{word}\nb\nc\nd", expected=(block.head or b"").hex())
            for word in ("x", "y")
        ),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["Block", "Stale"]


async def test_restoring_a_label_whose_block_was_renamed_creates_a_new_block(
    store: SqliteStore,
) -> None:
    block = await put(store, "human", "one", title="You")
    first = (block.head or b"").hex()
    await run_on_memory(store, user_memory.delete, "human", ADA)
    await run_on_memory(store, user_memory.restore, "human", first, ADA)
    await run_on_memory(store, user_memory.rename, "human", "profile", ADA)
    again = await run_on_memory(store, user_memory.restore, "human", first, ADA)
    profile = await found(store, "profile")
    assert (profile.id, again.id != block.id, again.value, again.title) == (
        block.id,
        True,
        "one",
        "You",
    )


async def test_invalid_input_is_refused_with_what_to_do_and_stores_nothing(
    store: SqliteStore,
) -> None:
    for label, text, options, message in (
        ("a/../b", "x", {}, "cannot be used"),
        ("human", "x\0", {}, "NUL"),
        ("human", "x", {"message": "a\0b"}, "NUL"),
        ("human", "x" * 11, {"limit": 10}, "limit is 10"),
        ("human", "x", {"limit": 0}, "between 1 and"),
        ("human", "x", {"policy": "open"}, 'no policy "open"'),
        ("human", "\ud800", {}, "half a character"),
    ):
        with pytest.raises(Invalid, match=message):
            await put(store, label, text, **options)
    for name in ("", "a/b", "..", " ada", "x" * 256, "a\nb"):
        with pytest.raises(Invalid, match="cannot be called"):
            await put(store, "human", "x", name)
    assert await store.read(
        lambda tx: (tx.all(chains.select()), len(tx.all(users_table.select())))
    ) == ([], 1)


async def test_a_too_long_text_is_refused_before_it_is_compared(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    for module, name in (
        (user_memory, "change_summary"),
        (submission, "change_summary"),
        (user_memory, "merge_lines"),
    ):
        monkeypatch.setattr(
            module, name, lambda *texts: compared.append(max(map(len, texts))) or "told"
        )
    await put(store, "human", "x")

    def submit(tx: Transaction) -> None:
        memory = user_memory.open_memory(tx, Scope(), "ada")
        edit = submission.Submission(Actor("agent", "agent-1", "Nina"))
        submission.put(tx, memory, "human", "\n" * 400_000, PutOptions(expected="0" * 40), edit)

    for write in (put(store, "human", "\n" * 400_000), store.write(submit)):
        with pytest.raises(TooLong, match="would hold 400000 characters"):
            await write
    assert (await put(store, "human", "\n" * 1_000, limit=1_000)).limit == 1_000
    assert max(compared) == 1_000


async def test_a_user_cannot_be_created_by_an_id_or_in_another_users_name(
    store: SqliteStore,
) -> None:
    with pytest.raises(NotFound, match="no user"):
        await put(store, "human", "x", "user-00000000-0000-4000-8000-00000000000a")
    await put(store, "human", "x")
    ada = (await owned_of(store)).user
    narrowed = Scope(subject_id=ada.id)
    assert (await store.read(lambda tx: user_memory.open_memory(tx, narrowed, "ada"))).user == ada
    assert (await store.read(lambda tx: user_memory.open_memory(tx, narrowed, ada.id))).user == ada
    await put(store, "human", "y", "bob")
    for name in ("bob", "carl"):
        with pytest.raises(NotFound, match=f'no user "{name}"'):
            await store.write(
                lambda tx, name=name: user_memory.open_memory(tx, narrowed, name, makes=True)
            )  # type: ignore[misc]
    with pytest.raises(NotFound):
        await store.write(
            lambda tx: user_memory.open_memory(tx, Scope(organization_id="org-2"), ada.id)
        )


async def test_an_agent_cannot_put_against_the_policy_or_change_settings(
    store: SqliteStore,
) -> None:
    with pytest.raises(Forbidden, match="policy propose"):
        await put(store, "human", "x", by=TUTOR)
    await put(store, "human", "x", policy="direct")
    assert (await put(store, "human", "y", by=TUTOR)).updated_by == "agent-tutor"
    with pytest.raises(Forbidden, match="Only the owner"):
        await put(store, "human", "z", by=TUTOR, policy="guarded")
    await put(store, "human", "y", policy="guarded")
    with pytest.raises(Forbidden):
        await run_on_memory(
            store, user_memory.change_settings, "human", {"policy": "direct"}, TUTOR
        )
    block = await found(store, "human")
    assert (block.value, block.policy) == ("y", "guarded")


@pytest.mark.parametrize("name", blocks.SETTINGS)
async def test_a_setting_without_a_value_is_removed_or_refused(
    store: SqliteStore, name: str
) -> None:
    before = await put(store, "human", "x", title="About", limit=77)
    if getattr(Block("", "", "", "", ""), name) is None:
        await run_on_memory(store, user_memory.change_settings, "human", {name: None}, ADA)
        assert getattr(await found(store, "human"), name) is None
    else:
        with pytest.raises(Invalid, match=f'"{name}" of a memory block needs a value'):
            await run_on_memory(store, user_memory.change_settings, "human", {name: None}, ADA)
        assert await found(store, "human") == before


async def test_users_with_equal_labels_have_separate_blocks(store: SqliteStore) -> None:
    mine = await put(store, "human", "mine")
    await put(store, "human", "yours", "bob")
    assert await found(store, "human") == mine
    bobs = await owned_of(store, "bob")
    (theirs,) = await store.read(lambda tx: history.page(tx, bobs.chain.id))
    with pytest.raises(NotFound):
        await run_on_memory(store, user_memory.restore, "human", theirs.id.hex(), ADA)
