"""A user's blocks as they were at a given time."""

from random import Random

import pytest

from ricordo.domain.scope import Scope
from ricordo.errors import Conflict
from ricordo.memory import user_memory
from ricordo.storage.engine.store import Store, Transaction
from tests.seams.stores import ManualClock

LABELS = ("human", "plans", "notes/a", "notes/b")


@pytest.mark.parametrize("seed", range(3))
async def test_blocks_are_listed_as_they_were(store: Store, clock: ManualClock, seed: int) -> None:
    """After puts, deletions and renames in any order, each earlier time shows its own memory."""
    dice = Random(seed)  # noqa: S311 - repeatable
    past: list[tuple[int, dict[str, str]]] = [(clock.now(), {})]
    texts: dict[str, str] = {}

    def act(tx: Transaction, number: int) -> None:
        memory = user_memory.open_memory(tx, Scope(), "ada", makes=True)
        label, other = dice.sample(LABELS, 2)
        what = dice.choice(("put", "put", "put", "delete", "rename"))
        if what == "put":
            text = f"Text {number}."
            user_memory.put(tx, memory, label, text, memory.owner)
            texts[label] = text
        elif label in texts and what == "delete":
            user_memory.delete(tx, memory, label, memory.owner)
            del texts[label]
        elif label in texts and other not in texts:
            user_memory.rename(tx, memory, label, other, memory.owner)
            texts[other] = texts.pop(label)

    for number in range(40):
        try:
            await store.write(lambda tx, number=number: act(tx, number))  # type: ignore[misc]
        except Conflict:
            continue
        past.append((clock.now(), dict(texts)))
        clock.advance(3600)

    def shown(tx: Transaction, moment: int) -> dict[str, str]:
        memory = user_memory.open_memory(tx, Scope(), "ada")
        return {block.label: block.value for block in user_memory.listed_at(tx, memory, moment)}

    for moment, wanted in past:
        assert await store.read(lambda tx, moment=moment: shown(tx, moment)) == wanted  # type: ignore[misc]
