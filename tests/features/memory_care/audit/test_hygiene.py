"""Counts of faults by user, for blocks and for facts, and a short replay of some days of talk."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.hygiene import GATE, replay, worst
from ricordo.domain.clock import DAY
from ricordo.domain.ids import new_id
from ricordo.domain.model import LIBRARIAN
from ricordo.domain.scope import Scope
from ricordo.features.knowledge.facts import queries as fact_queries
from ricordo.features.knowledge.facts.audit import audit_facts
from ricordo.features.knowledge.facts.records import Evidence, UserFact
from ricordo.features.librarian.model import LIBRARIAN_MODEL
from ricordo.features.memory_care.audit import hygiene
from ricordo.features.memory_care.audit.hygiene import Tally, is_past
from ricordo.features.memory_care.audit.service import audit
from ricordo.memory import user_memory
from ricordo.memory.facts import Revision, revision_of
from ricordo.search.index import insert_messages
from ricordo.storage import conversations
from ricordo.storage.engine.store import Store, Transaction
from tests.agents.conftest import open_stage, stage
from tests.seams import make
from tests.seams.stage import Stage
from tests.seams.stores import ManualClock

__all__ = ["open_stage", "stage"]
SCOPE = Scope()
NOW = 1_800_000_000_000_000  # January 2027


async def remember(store: Store, name: str, *lines: str) -> None:
    def write(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, SCOPE, name, makes=True)
        user_memory.put(tx, owned, "human", "\n".join(lines), owned.owner)

    await store.write(write)


async def tallies(store: Store) -> dict[tuple[str, str], Tally]:
    outcome = await store.read(lambda tx: audit(tx, SCOPE, sources=[audit_facts]))
    return {(tally.name, tally.source): tally for tally in outcome.tallies}


async def test_faults_of_blocks_are_counted_by_user(store: Store) -> None:
    await remember(
        store,
        "ada",
        "I live in Graz.",
        "I live in Vienna.",
        "TODO",
        "Likes green tea in the morning.",
        "Likes green tea in the morning.",
        '2020-03-01: "My exam is on 12 May 2020."',
        "My sister's name is Mia.",
    )
    await remember(store, "ben", "I live in Rome.", "My name is Ben.", "Likes tea.")

    counted = await tallies(store)

    ada, ben = counted["ada", "block"], counted["ben", "block"]
    assert (ada.items, ada.junk, ada.duplicates, ada.contradictions, ada.stale) == (7, 1, 1, 1, 1)
    assert (ben.items, ben.worst_share) == (3, 0)


def test_each_line_is_compared_with_a_limited_number_of_later_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comparisons = 0

    def counted(lines: Sequence[str], statement: str) -> Revision | None:
        nonlocal comparisons
        comparisons += 1
        return revision_of(lines, statement)

    monkeypatch.setattr(hygiene, "revision_of", counted)

    def compared(*lines: str) -> tuple[int, int]:
        nonlocal comparisons
        comparisons = 0
        block = make.block(value="\n".join(lines))
        findings = list(hygiene.contradictions([block], "user-1"))
        return comparisons, len(findings)

    few, _ = compared(*["I live in Graz."] * 100)
    many, _ = compared(*["I live in Graz."] * 200)
    assert 0 < many <= 3 * few
    assert compared(*["I live in Graz."] * 500)[0] <= 20_000
    assert compared(*(f"I live in City{number}." for number in range(100))) == (99, 99)


async def test_faults_of_facts_are_counted_by_user(stage: Stage) -> None:
    state = await stage.state(await stage.agent())
    now = stage.store.clock.now()

    def write(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, SCOPE, "ada", makes=True)
        own = make.conversation(state.agent, id="conv-ada", user_id=owned.user.id)
        conversations.insert_one(tx, own)
        said = replace(
            make.message(state.agent, "I live in Graz. I like tea.", conversation_id="conv-ada"),
            user_id=owned.user.id,
        )
        insert_messages(tx, [said])
        quote = (Evidence(said.id, "I live in Graz."),)
        old = now - 40 * DAY
        rows: Iterable[tuple[str, dict[str, Any]]] = (
            ("Lives in Graz.", {"slot": "home", "value": "graz", "evidence": quote}),
            ("Lives in Vienna.", {"slot": "home", "value": "vienna", "evidence": quote}),
            ("Likes tea.", {"slot": "likes:tea", "value": "yes", "evidence": quote}),
            ("Is fond of tea.", {"slot": "likes:tea", "value": "yes", "evidence": quote}),
            ("Has a yacht.", {"evidence": (Evidence(said.id, "I have a yacht."),)}),
            ("TODO", {"evidence": quote}),
            (
                "Has an exam.",
                {"kind": "plan", "starts_at": old, "ends_at": old + DAY, "evidence": quote},
            ),
            ("Wrote this.", {"source": "user"}),
            ("Lived in Rome.", {"slot": "home", "value": "rome", "holds_until": old}),
        )
        for place, (sentence, more) in enumerate(rows):
            given: dict[str, Any] = {
                "kind": "who",
                "source": "rules",
                "state": "current",
                "said_at": old + place,
                "holds_from": old,
                "created_at": old,
            }
            fact = UserFact(
                new_id("fact"), SCOPE.organization_id, owned.user.id, sentence, **(given | more)
            )
            fact_queries.insert(tx, fact)

    await stage.store.write(write)

    facts = (await tallies(stage.store))["ada", "fact"]
    # An ended fact does not count as current.
    assert (facts.items, facts.junk, facts.duplicates) == (8, 1, 1)
    assert (facts.unsupported, facts.contradictions, facts.stale) == (1, 1, 1)


@pytest.mark.parametrize(
    ("line", "days", "is_over"),
    [
        ("My exam is on 12 May 2027.", 30, False),
        ("My exam is on 12 May 2027.", 200, True),
        ("My exam is on 12 May.", 30, False),
        ("My exam is on 12 May.", 200, True),
        ("I was born on 12 May 2001.", 200, False),
        ("I have a dentist's appointment tomorrow.", 3, False),
        ("I have a dentist's appointment tomorrow.", 30, True),
        ("Ich habe nächste Woche eine Prüfung.", 30, True),
        ("I like tea.", 900, False),
    ],
)
def test_a_line_is_stale_once_its_future_date_has_passed(
    line: str, days: int, is_over: bool
) -> None:
    assert is_past(line, NOW, NOW + days * DAY) is is_over


async def test_days_of_conversation_leave_few_faults_in_memory(
    stage: Stage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short form of `python -m bench.hygiene`."""
    for name, value in {"": "direct", "_BY": "rules", "_IDLE_SECONDS": "0"}.items():
        monkeypatch.setenv(f"RICORDO_FACTS{name}", value)
    stage.runtime.models.add(LIBRARIAN_MODEL)

    outcome = await replay(stage, clock, LIBRARIAN, people=2, days=3)

    assert {(tally.name, tally.source) for tally in outcome.tallies} == {
        (name, source) for name in ("ada", "ben") for source in ("block", "fact")
    }
    assert all(tally.items >= 5 for tally in outcome.tallies)
    assert {key: share for key, share in worst(outcome.tallies).items() if share >= GATE} == {}
