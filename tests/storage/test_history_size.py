"""The stored size of a history equals the sum of its rows, after any writes, on both databases."""

import random
from dataclasses import replace

import pytest

from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, NotFound, TooLong
from ricordo.memory import proposals as drafts
from ricordo.memory import user_memory
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.storage import history, history_size, proposals, versions
from ricordo.storage.engine.store import Store, Transaction
from tests.conftest import BOTH

DATABASES = BOTH
ADA = "ada"
TUTOR = Actor("agent", "agent-1", "Nina")
TEXTS = (
    "",
    "Tea.",
    "Grüße an alle 🍵\n" * 40,
    "A line.\nAnother line.\n",
    "Ünï\0".replace("\0", ""),
)


def opened(tx: Transaction) -> UserMemory:
    return user_memory.open_memory(tx, Scope(), ADA, makes=True)


def size_of(tx: Transaction) -> int:
    chain = versions.lock(tx, opened(tx).chain.id)
    assert chain
    return chain.history_bytes


def do_something(tx: Transaction, choose: random.Random) -> None:
    """Make one random change that an owner or an agent can make to memory."""
    memory = opened(tx)
    owner, label, text = memory.owner, choose.choice("abc"), choose.choice(TEXTS)
    text += str(choose.randrange(5))
    match choose.choice(("put", "settings", "rename", "delete", "restore", "propose", "approve")):
        case "put":
            user_memory.put(tx, memory, label, text, owner, PutOptions(message=f"Über {text[:20]}"))
        case "settings":
            changed = {"description": text, "metadata": {"grüße": [text]}}
            user_memory.change_settings(tx, memory, label, changed, owner)
        case "rename":
            user_memory.rename(tx, memory, label, choose.choice("abc"), owner)
        case "delete":
            user_memory.delete(tx, memory, label, owner)
        case "restore":
            page = history.page(tx, memory.chain.id, label=label)
            if page:
                user_memory.restore(tx, memory, label, choose.choice(page).id.hex(), owner)
        case "propose":
            block = user_memory.require(tx, memory, label)
            draft = drafts.ProposalDraft(memory.chain.id, label, text, block, description=text)
            drafts.propose(tx, draft, ChangeMetadata(TUTOR, f"Weil {text[:20]}"))
        case "approve":
            waiting = proposals.waiting(tx, memory.chain.id)
            if waiting:
                user_memory.put(tx, memory, waiting[0].label, waiting[0].value or "", owner)


async def test_the_history_size_is_the_sum_of_its_rows_after_any_changes(
    store: Store,
) -> None:
    choose = random.Random(7)  # noqa: S311 - the same each time
    sizes = set[int]()
    for _ in range(60):
        try:
            await store.write(lambda tx: do_something(tx, choose))
        except (NotFound, Conflict, drafts.Unchanged):
            continue
        assert await store.read(history_size.wrong_ids) == []
        sizes.add(await store.write(size_of))
    assert len(sizes) > 20


async def test_a_wrong_history_size_is_found_and_recounted(store: Store) -> None:
    await store.write(lambda tx: user_memory.put(tx, opened(tx), "a", "Tea.", opened(tx).owner))
    size = await store.write(size_of)
    chain_id = (await store.write(opened)).chain.id
    await store.write(lambda tx: history_size.grow(tx, chain_id, 5))
    assert await store.read(history_size.wrong_ids) == [chain_id]
    assert await store.read(lambda tx: history_size.count_nearly_full(tx, size)) == 1
    assert await store.write(history_size.recount_all) == 1
    assert (await store.write(size_of), await store.read(history_size.wrong_ids)) == (size, [])


async def test_repeatedly_deleting_and_restoring_a_block_in_a_full_history_adds_little(
    store: Store,
) -> None:
    small = replace(store.quotas, history_mb=0)
    store.quotas = small
    long = "x" * 50_000

    def make(tx: Transaction) -> str:
        tx.quotas = replace(small, history_mb=1)
        memory = opened(tx)
        options = PutOptions(description=long, limit=90_000)
        block = user_memory.put(tx, memory, "a", "Tea.", memory.owner, options)
        return (block.head or b"").hex()

    first = await store.write(make)

    def cycle(tx: Transaction) -> int:
        user_memory.delete(tx, opened(tx), "a", opened(tx).owner)
        return size_of(tx)

    def revive(tx: Transaction) -> str | None:
        memory = opened(tx)
        return user_memory.restore(tx, memory, "a", first, memory.owner).description

    sizes = []
    for _ in range(4):
        sizes.append(await store.write(cycle))
        assert await store.write(revive) == long
        assert await store.read(history_size.wrong_ids) == []
    assert sizes[-1] - sizes[0] < 3 * 2_000
    with pytest.raises(TooLong, match="RICORDO_MAX_HISTORY_MB"):
        await store.write(
            lambda tx: user_memory.change_settings(
                tx, opened(tx), "a", {"description": long + "y"}, opened(tx).owner
            )
        )
