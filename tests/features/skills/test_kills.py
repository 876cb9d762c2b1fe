"""Writes of skills that are killed change nothing, and the next attempt succeeds once."""

from collections.abc import Callable
from typing import Any

import pytest

from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.features.skills import service
from ricordo.features.skills.service import SkillOwner, SkillOwnerKind
from ricordo.features.skills.skill import make_skill
from ricordo.memory.submission import Submission
from ricordo.storage import organizations
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.features.skills.conftest import skill_md
from tests.memory.test_kills import all_rows
from tests.seams.stores import Killed, killed_at

BOSS = Submission(Actor("administrator", "boss", "Boss"))
BY_AGENT = ChangeMetadata(Actor("agent", "agent-1", "Agent"), "So.", is_untrusted=True)
ONE = make_skill(skill_md("hi"), {"a.txt": "One."})
TWO = make_skill(skill_md("hi", body="Two."), {"a.txt": "Two."})
NEW = make_skill(skill_md("new"), {})


def owner(tx: Transaction, kind: SkillOwnerKind) -> SkillOwner:
    return service.open_owner(tx, Scope(), kind, "ada", makes=True)


def _approve(tx: Transaction, kind: SkillOwnerKind) -> Any:
    place = owner(tx, kind)
    proposed = service.propose_by_agent(tx, place, TWO, BY_AGENT, None).proposal
    assert proposed
    return service.approve(tx, Scope(), place, "hi", proposed.id, BOSS.author)


def _restore(tx: Transaction, kind: SkillOwnerKind) -> Any:
    place = owner(tx, kind)
    head = service.get(tx, place, "hi").block.head or b""
    service.remove(tx, place, "hi", BOSS)
    return service.restore(tx, place, "hi", head.hex(), BOSS)


OPERATIONS: dict[str, Callable[[Transaction, SkillOwnerKind], Any]] = {
    "make": lambda tx, kind: service.put(tx, owner(tx, kind), NEW, BOSS),
    "change": lambda tx, kind: service.put(tx, owner(tx, kind), TWO, BOSS),
    "propose": lambda tx, kind: service.propose_by_agent(tx, owner(tx, kind), TWO, BY_AGENT, None),
    "approve": _approve,
    "delete": lambda tx, kind: service.remove(tx, owner(tx, kind), "hi", BOSS),
    "delete and restore": _restore,
}


@pytest.mark.parametrize("kind", ["user", "organization"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_interrupted_write_changes_nothing(
    store: SqliteStore, name: str, kind: SkillOwnerKind
) -> None:
    await store.write(lambda tx: service.put(tx, owner(tx, kind), ONE, BOSS))
    before = await all_rows(store)
    for place in range(1, 200):
        try:
            with killed_at(store, place):
                await store.write(lambda tx: OPERATIONS[name](tx, kind))
        except Killed:
            assert await all_rows(store) == before, place
            continue
        break
    assert place > 2
    assert await all_rows(store) != before


async def test_a_proposal_repeated_after_a_kill_waits_once(store: SqliteStore) -> None:
    await store.write(lambda tx: service.put(tx, owner(tx, "user"), ONE, BOSS))
    outcomes = [
        await store.write(
            lambda tx: service.propose_by_agent(tx, owner(tx, "user"), TWO, BY_AGENT, None)
        )
        for _ in range(2)
    ]
    first, second = (outcome.proposal for outcome in outcomes)
    assert first
    assert second
    assert (first.is_repeated, second.is_repeated, first.id) == (False, True, second.id)


async def test_an_organization_has_one_chain_for_its_skills(store: SqliteStore) -> None:
    def make(tx: Transaction) -> str:
        assert organizations.named(tx, Scope().organization_id)
        return owner(tx, "organization").chain.id

    assert await store.write(make) == await store.write(make)
