"""Storing facts of messages, with evidence, and compared with known facts."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import pytest

from ricordo.domain.clock import DAY
from ricordo.domain.message import EventPart, Message
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.features.knowledge.facts import decisions, queries
from ricordo.features.knowledge.facts.decisions import FactChange
from ricordo.features.knowledge.facts.extraction import drafts_in
from ricordo.features.knowledge.facts.filing import Reading, file_drafts
from ricordo.features.knowledge.facts.options import FactPolicy
from ricordo.features.knowledge.facts.records import Evidence, FactDraft, UserFact
from ricordo.storage import users
from ricordo.storage.engine.store import Store, Transaction
from tests.features.knowledge.facts.conftest import FactBook, message, moment
from tests.features.knowledge.facts.pairs import CONTRADICTIONS, UNRELATED

DATABASES = ("sqlite", "postgresql")
PAIRS = [pair for pairs in CONTRADICTIONS.values() for pair in pairs]


def midnight(day: str) -> int:
    return moment(f"2026-{day}") - DAY // 2


async def test_a_contradicting_fact_ends_the_older_one(store: Store) -> None:
    assert len(PAIRS) == 50

    def faults_of(tx: Transaction, old: str, new: str) -> Iterator[str]:
        direct = users.find_or_make(tx, Scope(), f"direct: {old}{new}")
        say(tx, direct.id, old, "direct")
        say(tx, direct.id, new, "direct")
        current = queries.of_states(tx, direct.id, "current")
        ended = queries.of_states(tx, direct.id, "ended")
        if [fact.sentence for fact in (*current, *ended)] != [new, old]:
            yield f"direct: {old} -> {new}: {current}, {ended}"
        proposing = users.find_or_make(tx, Scope(), f"propose: {old}{new}")
        say(tx, proposing.id, old, "direct")
        say(tx, proposing.id, new, "propose")
        kept = queries.of_states(tx, proposing.id, "current")
        proposed = queries.of_states(tx, proposing.id, "proposed")
        found = [(fact.relation, fact.replaces_id) for fact in proposed]
        if found != [("contradicts", kept[0].id)]:
            yield f"propose: {old} -> {new}: {kept}, {proposed}"

    def all_faults(tx: Transaction) -> list[str]:
        return [fault for old, new in PAIRS for fault in faults_of(tx, old, new)]

    faults = await store.write(all_faults)
    assert not faults, "\n".join(faults)


async def test_unrelated_facts_never_end_each_other(book: FactBook) -> None:
    pairs = Random(5).sample(list(combinations(UNRELATED, 2)), 200)  # noqa: S311 - a choice of pairs
    await book.say(*UNRELATED)
    facts = await book.facts("current")
    assert {fact.sentence for fact in facts} == set(UNRELATED)
    assert await book.facts("ended", "replaced", "proposed") == []
    # A model that calls everything a contradiction still ends no facts.
    known = {fact.sentence: fact for fact in facts}

    def claim_all(tx: Transaction) -> None:
        for old, new in pairs:
            said = message(new, book.user.id)
            draft = claim_of(known[new], said, old_id=known[old].id, relation="contradicts")
            reading = Reading(LOCAL_ORGANIZATION, book.user.id, "direct", [said])
            file_drafts(tx, reading, [draft])

    await book.changed(claim_all)
    assert await book.facts("ended", "replaced") == []


def claim_of(fact: UserFact, said: Message, **fields: Any) -> FactDraft:
    """Return a model's output about a message that repeats a fact."""
    return FactDraft(
        fact.sentence,
        fact.kind,
        (Evidence(said.id, fact.sentence),),
        subject=fact.subject,
        slot=fact.slot,
        value=fact.value,
        source="model",
        **fields,
    )


def say(tx: Transaction, user_id: str, text: str, policy: FactPolicy) -> None:
    said = message(text, user_id)
    reading = Reading(LOCAL_ORGANIZATION, user_id, policy, [said])
    users.lock(tx, user_id)
    file_drafts(tx, reading, drafts_in(said.id, said.text, said.created_at))


async def test_repeated_facts_gain_evidence_and_more_precise_ones_replace_them(
    book: FactBook,
) -> None:
    await book.say("I live in Graz.")
    await book.say("As I said, I live in Graz.")
    (fact,) = await book.facts()
    assert len(fact.evidence) == 2
    await book.say("My birthday is 3 May.")
    await book.say("My birthday is 3 May 1990.")
    assert {fact.value for fact in await book.facts()} == {"graz", "3 may 1990"}
    (older,) = await book.facts("replaced")
    assert older.value == "3 may"


async def test_a_fact_names_the_conversation_of_its_first_quote(book: FactBook) -> None:
    first = message("I live in Graz.", book.user.id)
    later = replace(message("I live in Graz.", book.user.id), conversation_id="conv-2")
    evidence = tuple(Evidence(said.id, said.text) for said in (first, later))
    draft = replace(drafts_in(first.id, first.text, first.created_at)[0], evidence=evidence)

    def file_draft(tx: Transaction) -> None:
        reading = Reading(LOCAL_ORGANIZATION, book.user.id, "direct", [first, later])
        file_drafts(tx, reading, [draft])

    await book.changed(file_draft)
    (fact,) = await book.facts()
    # The page of facts links the first quote to this conversation.
    assert (fact.evidence, fact.conversation_id) == (evidence, "conv-1")


async def test_only_trusted_words_of_the_user_are_evidence(book: FactBook) -> None:
    user_id = book.user.id
    words = "I live in Graz."
    untrusted = message(words, user_id, is_untrusted=True)
    event = replace(message(words, user_id), parts=(EventPart(words),))
    others = message(words, user_id, sender_id="agent-2")
    agent = message("You live in Graz.", user_id, role="assistant")
    denial = message("Yes, but not any more.", user_id)
    tool = message(words, user_id, role="tool")
    summary = message(words, user_id, role="summary")
    foreign = message(words, "user-bob")
    shown = [untrusted, event, others, tool, summary, foreign, agent, denial]
    drafts = [FactDraft(words, "who", (Evidence(one.id, one.text),)) for one in shown[:-1]]
    drafts += [
        FactDraft(words, "who", (Evidence("message-none", words),)),
        FactDraft(words, "who", (Evidence(denial.id, words),)),
        FactDraft(words, "who", ()),
    ]
    report = await book.file(shown, drafts)
    assert (report.added, report.refused) == (0, len(drafts))
    confirmed = message("Yes, exactly.", user_id)
    claim = FactDraft(
        "Lives in Graz.", "who", (Evidence(agent.id, "live in Graz"),), source="model"
    )
    await book.file([agent, confirmed], [claim])
    (fact,) = await book.facts()
    assert [piece.message_id for piece in fact.evidence] == [agent.id, confirmed.id]


@pytest.mark.parametrize(
    "sentence",
    ["Her name is John Doe.", "Has 7 cats in Graz.", "Enjoys long walks with the neighbours."],
)
async def test_invented_facts_are_refused(book: FactBook, sentence: str) -> None:
    said = message("I live in Graz with my cats.", book.user.id)
    claim = FactDraft(sentence, "who", (Evidence(said.id, "live in Graz"),), source="model")
    report = await book.file([said], [claim])
    assert report.refused == 1


async def test_rejected_facts_are_not_proposed_again(
    book: FactBook,
) -> None:
    await book.say("I live in Graz.", policy="propose")
    (fact,) = await book.facts("proposed")
    await book.changed(lambda tx: decisions.reject(tx, fact, book.user.id))
    report = await book.say("I really live in Graz now.", policy="propose")
    assert (report.added, report.refused) == (0, 1)
    assert await book.facts("proposed", "current") == []


async def test_an_approved_fact_ends_what_it_contradicts(book: FactBook) -> None:
    await book.say("My favourite drink is tea.", at="2026-05-01")
    await book.say("My favourite drink is now coffee.", policy="propose", at="2026-11-02")
    (proposed,) = await book.facts("proposed")
    await book.changed(lambda tx: decisions.approve(tx, proposed, book.user.id))
    (current,) = await book.facts()
    (ended,) = await book.facts("ended")
    assert (current.value, ended.value) == ("coffee", "tea")
    assert ended.holds_until == current.holds_from == moment("2026-11-02")
    assert await book.held("2026-06-01") == ["My favourite drink is tea."]


async def test_a_corrected_proposal_ends_what_it_contradicts(book: FactBook) -> None:
    await book.say("My favourite drink is tea.", at="2026-05-01")
    await book.say("My favourite drink is now coffee.", policy="propose", at="2026-11-02")
    (proposed,) = await book.facts("proposed")
    change = FactChange(sentence="My favourite drink is black coffee.")
    new = await book.changed(lambda tx: decisions.change(tx, proposed, change, book.user.id))
    (current,) = await book.facts()
    (ended,) = await book.facts("ended")
    assert (current, current.value, ended.value) == (new, "black coffee", "tea")
    assert ended.holds_until == current.holds_from == moment("2026-11-02")


async def test_a_corrected_fact_keeps_its_old_wording_and_both_are_deleted_together(
    book: FactBook,
) -> None:
    await book.say("I live in Graz.")
    (fact,) = await book.facts()
    change = FactChange(sentence="I live in Gratwein.")

    def correct(tx: object) -> UserFact:
        return decisions.change(tx, fact, change, book.user.id)  # type: ignore[arg-type]

    new = await book.changed(correct)
    assert (new.value, new.evidence) == ("gratwein", fact.evidence)
    assert [older.sentence for older in await book.facts("replaced")] == ["I live in Graz."]
    assert await book.store.write(lambda tx: queries.remove(tx, new)) == 2
    assert await book.facts("current", "replaced") == []


async def test_a_corrected_date_moves_the_end_of_a_plan(book: FactBook) -> None:
    await book.say("I will move to Vienna in June.", at="2026-04-01")
    (plan,) = await book.facts()
    change = FactChange(sentence="I will move to Vienna in August.")
    new = await book.changed(lambda tx: decisions.change(tx, plan, change, book.user.id))
    assert new.stated_time
    assert (new.stated_time.start, new.stated_time.end) == (midnight("08-01"), midnight("09-01"))
    assert (plan.holds_until, new.holds_until) == (midnight("07-01"), midnight("09-01"))
    assert new.holds_from == plan.holds_from


# The rules alone take the second one for a fact of another kind.
@pytest.mark.parametrize(
    "sentence", ["My exam is on 20 May.", "I have a dentist appointment on 20 May."]
)
async def test_the_date_of_an_added_plan_is_the_next_one(book: FactBook, sentence: str) -> None:
    plan = await book.store.write(
        lambda tx: decisions.add(tx, book.user, sentence, "plan", book.user.id)
    )
    assert plan.holds_until
    assert plan.holds_until > plan.said_at


async def test_a_fact_that_becomes_a_plan_with_a_corrected_date_ends_with_it(
    book: FactBook,
) -> None:
    await book.say("I have a piano lesson on 20 May.", at="2026-04-01")
    (fact,) = await book.facts()
    assert (fact.kind, fact.holds_until) == ("who", None)
    change = FactChange(sentence="I have a piano lesson on 21 May.", kind="plan")
    plan = await book.changed(lambda tx: decisions.change(tx, fact, change, book.user.id))
    assert (plan.kind, plan.holds_until) == ("plan", midnight("05-22"))


async def test_a_corrected_sentence_keeps_an_end_that_a_person_set(book: FactBook) -> None:
    await book.say("I will move to Vienna in June.", at="2026-04-01")
    (plan,) = await book.facts()
    end = midnight("06-10")

    def correct(tx: Transaction) -> UserFact:
        dated = decisions.change(tx, plan, FactChange(holds_until=end), book.user.id)
        change = FactChange(sentence="I will move to Graz in August.")
        return decisions.change(tx, dated, change, book.user.id)

    new = await book.changed(correct)
    assert new.holds_until == end
    change = FactChange(sentence="I will move to Graz in May.", holds_until=midnight("05-20"))
    newest = await book.changed(lambda tx: decisions.change(tx, new, change, book.user.id))
    assert (newest.holds_from, newest.holds_until) == (plan.holds_from, midnight("05-20"))


async def test_a_fact_with_very_many_old_wordings_can_be_deleted(book: FactBook) -> None:
    await book.say("I live in Graz.")
    (fact,) = await book.facts()
    corrections = sys.getrecursionlimit()

    def correct_and_remove(tx: Transaction) -> int:
        newest = fact
        for number in range(corrections):
            change = FactChange(sentence=f"I live in Graz, at number {number}.")
            newest = decisions.change(tx, newest, change, book.user.id)
        return queries.remove(tx, newest)

    assert await book.changed(correct_and_remove) == corrections + 1


SAID = [
    ("2024-01-10", "I live in Graz."),
    ("2024-01-10", "My favourite drink is tea."),
    ("2024-02-01", "I work at Siemens."),
    ("2024-03-05", "I'm married."),
    ("2024-09-15", "I moved to Vienna in June 2024."),
    ("2025-01-20", "I lived in Paris from 2015 to 2019."),
    ("2025-02-02", "I now work at Bosch."),
    ("2025-03-01", "I'm going to fly to Rome on 3 June."),
    ("2025-05-11", "My favourite drink is now coffee."),
    ("2025-08-01", "I'm divorced."),
    ("2025-10-01", "I like climbing."),
    ("2026-02-01", "I don't like climbing any more."),
    ("2026-04-01", "I ran a marathon on 29 March."),
]
AS_OF = [
    ("2016-03-01", "Paris"),
    ("2019-12-30", "Paris"),
    ("2020-01-02", "!Paris"),
    ("2014-12-30", "!Paris"),
    ("2024-01-09", "!Graz"),
    ("2024-01-11", "Graz"),
    ("2024-01-11", "tea"),
    ("2024-05-30", "Graz"),
    ("2024-05-30", "!Vienna"),
    ("2024-06-02", "Vienna"),
    ("2024-06-02", "!Graz"),
    ("2026-06-01", "Vienna"),
    ("2024-02-02", "Siemens"),
    ("2025-02-01", "Siemens"),
    ("2025-02-03", "Bosch"),
    ("2025-02-03", "!Siemens"),
    ("2024-03-04", "!married"),
    ("2024-03-06", "married"),
    ("2025-07-31", "married"),
    ("2025-08-02", "divorced"),
    ("2025-08-02", "!married"),
    ("2025-04-01", "Rome"),
    ("2025-06-03", "Rome"),
    ("2025-06-05", "!Rome"),
    ("2025-05-10", "tea"),
    ("2025-05-12", "coffee"),
    ("2025-05-12", "!tea"),
    ("2025-12-01", "I like climbing"),
    ("2026-02-03", "don't like climbing"),
    ("2026-04-02", "marathon"),
]


async def test_facts_can_be_queried_as_of_a_date(book: FactBook) -> None:
    assert len(AS_OF) == 30
    for day, sentence in SAID:
        await book.say(sentence, at=day)
    faults = []
    for day, words in AS_OF:
        held = " ".join(await book.held(day))
        if (words.removeprefix("!") in held) == words.startswith("!"):
            faults.append(f"{day} {words}: {held}")
    assert not faults, "\n".join(faults)
