"""Observations of a student.

They need evidence in the student's messages, and the student decides.
"""

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
from fsrs import Card, Rating, Scheduler

from ricordo.domain.clock import DAY, to_datetime, to_micros
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.knowledge.facts import decisions
from ricordo.features.knowledge.facts import queries as facts
from ricordo.features.knowledge.facts.profile import facts_profile
from ricordo.features.knowledge.facts.records import UserFact
from ricordo.features.tutor.courses import queries as courses
from ricordo.features.tutor.courses.queries import StoredCourse
from ricordo.features.tutor.learning import prompt, queries, service
from ricordo.features.tutor.learning.records import Result, misconception_of
from ricordo.storage.engine.store import Store, Transaction
from tests.features.tutor.learning.conftest import Classroom, open_classroom
from tests.seams.stores import ManualClock, count_statements

DATABASES = ("sqlite", "postgresql")


async def test_an_observation_is_stored_as_a_fact_with_its_message(room: Classroom) -> None:
    def work(tx: Transaction) -> Any:
        noted = room.show(tx, "ada", "fractions", "failed", misconception="adds the denominators")
        return noted, room.state(tx, "ada", "fractions"), room.state(tx, "bea", "fractions")

    noted, of_ada, of_bea = await room.store.write(work)
    assert (noted.state, noted.kind, noted.user_id) == ("current", "skill", room.students["ada"].id)
    assert [piece.quote for piece in noted.evidence] == ["My answer on fractions."]
    assert of_ada.misconceptions == {"adds the denominators": 1}
    assert misconception_of(of_ada.observations[0]) == "adds the denominators"
    assert not of_bea.observations


async def test_a_course_that_was_never_applied_is_not_said_to_lack_skills(room: Classroom) -> None:
    def work(tx: Transaction) -> None:
        faulty = StoredCourse("course-1", Scope().organization_id, "faulty", fault="Line 3: wrong.")
        courses.insert(tx, faulty)
        service.course_with_skills(tx, Scope(), "faulty")

    with pytest.raises(NotFound, match="has never been applied"):
        await room.store.write(work)


async def test_a_message_yields_one_current_observation_of_a_skill(room: Classroom) -> None:
    def work(tx: Transaction) -> list[tuple[str, str]]:
        learner = room.learner(tx, "ada")
        said = room.say(tx, "ada", "5/6")
        for result in ("good", "good", "hard"):
            noted = service.Observation(
                learner.skill("fractions"), "Adds them.", said, "5/6", result=result
            )
            service.note(tx, learner, noted)
        found = facts.of_states(tx, learner.user.id, "current", "ended")
        return sorted((fact.state, fact.value) for fact in found)

    assert await room.store.write(work) == [("current", "hard"), ("ended", "good")]


@pytest.mark.parametrize("decision", ["approve", "correct"])
async def test_a_message_counts_once_after_any_observations_and_decisions(
    room: Classroom, decision: str
) -> None:
    chance = Random(12)  # noqa: S311 - replayed by its seed
    shown: list[tuple[Result, str]] = [
        ("good", ""),
        ("good", "adds the denominators"),
        ("hard", ""),
    ]

    def decide(tx: Transaction, fact: UserFact) -> None:
        if decision == "approve":
            decisions.approve(tx, fact, fact.user_id)
        else:
            change = decisions.FactChange(holds_from=fact.holds_from)
            decisions.change(tx, fact, change, fact.user_id)

    def work(tx: Transaction) -> list[int]:
        learner = room.learner(tx, "ada")
        counts = []
        for number in range(1, 21):
            said = room.say(tx, "ada", "5/6")
            for _ in range(4):
                result, misconception = chance.choice(shown)
                noted = service.Observation(
                    learner.skill("fractions"),
                    "Adds them.",
                    said,
                    "5/6",
                    result=result,
                    misconception=misconception,
                    is_guarded=chance.random() < 0.5,
                )
                fact = service.note(tx, learner, noted)
                if fact.state == "proposed" and chance.random() < 0.5:
                    decide(tx, fact)
            for fact in room.state(tx, "ada", "fractions").waiting:
                decide(tx, fact)
            counts.append(len(room.state(tx, "ada", "fractions").observations) - number)
        return counts

    assert await room.store.write(work) == [0] * 20


async def test_a_level_needs_evidence_and_replaces_the_earlier_level(room: Classroom) -> None:
    def work(tx: Transaction) -> Any:
        with pytest.raises(Invalid, match="no evidence"):
            room.level(tx, "ada", "sums", "seen")
        room.show(tx, "ada", "sums", "seen")
        seen = room.level(tx, "ada", "sums", "seen")
        with pytest.raises(Invalid, match="not tried"):
            room.level(tx, "ada", "sums", "practised")
        with pytest.raises(Invalid, match="Only a level of"):
            room.level(tx, "ada", "sums", "forgotten")
        first = room.show(tx, "ada", "sums", "good")
        with pytest.raises(Invalid, match="two messages"):
            room.level(tx, "ada", "sums", "secure")
        second = room.show(tx, "ada", "sums", "easy")
        secure = room.level(tx, "ada", "sums", "secure")
        with pytest.raises(Invalid, match="newest observation"):
            room.level(tx, "ada", "sums", "forgotten")
        seen = facts.get(tx, Scope(seen.organization_id), seen.id)
        return seen, first, second, secure

    seen, first, second, secure = await room.store.write(work)
    assert (seen.state, seen.replacement_id, secure.state) == ("ended", secure.id, "current")
    assert {*first.evidence, *second.evidence} <= {*secure.evidence}
    assert seen.holds_until == secure.holds_from


async def test_waiting_evidence_counts_after_the_students_approval(room: Classroom) -> None:
    def work(tx: Transaction) -> Any:
        learner = room.learner(tx, "ada")
        facts.set_policy(tx, learner.user.organization_id, learner.user.id, "propose")
        noted = room.show(tx, "ada", "sums", "good")
        level = room.level(tx, "ada", "sums", "practised")
        before = room.state(tx, "ada", "sums")
        text = prompt.learner_text(tx, learner)
        service.approve_all(tx, learner, learner.user.id)
        return noted, level, before, text, room.state(tx, "ada", "sums")

    noted, level, before, text, after = await room.store.write(work)
    assert (noted.state, level.state) == ("proposed", "proposed")
    assert (before.level, before.observations, len(before.waiting)) == (None, [], 2)
    assert "Worked on" not in text
    assert (after.level_name, len(after.observations), after.waiting) == ("practised", 1, [])


async def test_approving_all_reads_the_students_facts_once(room: Classroom) -> None:
    def wait(tx: Transaction, count: int) -> None:
        learner = room.learner(tx, "ada")
        facts.set_policy(tx, learner.user.organization_id, learner.user.id, "propose")
        for _ in range(count):
            room.show(tx, "ada", "sums", "good")

    reads = []
    for count in (2, 9):
        await room.store.write(partial(wait, count=count))
        with count_statements(room.store) as counted:
            approved = await room.store.write(
                lambda tx: service.approve_all(tx, room.learner(tx, "ada"), None)
            )
        assert approved == count
        reads.append(sum("FROM user_facts" in text for text in counted.statements))
    assert reads == [2, 2]
    state = await room.store.read(lambda tx: room.state(tx, "ada", "sums"))
    assert (len(state.observations), state.waiting) == (11, [])


async def test_approving_all_leaves_nothing_waiting(room: Classroom) -> None:
    def work(tx: Transaction) -> tuple[int, int]:
        learner = room.learner(tx, "ada")
        facts.set_policy(tx, learner.user.organization_id, learner.user.id, "propose")
        fact = room.show(tx, "ada", "sums", "good")
        for number in range(queries.MOST_READ):
            facts.insert(tx, replace(fact, id=new_id("fact"), slot=f"{fact.slot}{number}"))
        approved = service.approve_all(tx, learner, None)
        return approved, len(room.state(tx, "ada", "sums").waiting)

    assert await room.store.write(work) == (queries.MOST_READ + 1, 0)


async def test_rejected_evidence_is_not_proposed_again_for_its_message(
    room: Classroom,
) -> None:
    def work(tx: Transaction) -> None:
        learner = room.learner(tx, "ada")
        facts.set_policy(tx, learner.user.organization_id, learner.user.id, "propose")
        said = room.say(tx, "ada", "5/6")
        noted = service.Observation(learner.skill("sums"), "Adds.", said, "5/6", result="good")
        decisions.reject(tx, service.note(tx, learner, noted), learner.user.id)
        with pytest.raises(Conflict, match="rejected"):
            service.note(tx, learner, noted)

    await room.store.write(work)


async def test_evidence_that_was_rejected_with_other_evidence_is_not_proposed_again(
    room: Classroom,
) -> None:
    def work(tx: Transaction) -> None:
        learner = room.learner(tx, "ada")
        facts.set_policy(tx, learner.user.organization_id, learner.user.id, "propose")
        said = room.say(tx, "ada", "1/2 and 1/3 make 5/6")
        noted = service.Observation(learner.skill("sums"), "Adds.", said, "5/6", result="good")
        service.note(tx, learner, noted)
        both = service.note(tx, learner, replace(noted, quote="1/2 and 1/3"))
        decisions.reject(tx, both, learner.user.id)
        with pytest.raises(Conflict, match="rejected"):
            service.note(tx, learner, noted)
        assert service.note(tx, learner, replace(noted, quote="make 5/6")).state == "proposed"

    await room.store.write(work)


async def test_a_level_waits_while_its_evidence_waits(room: Classroom) -> None:
    def work(tx: Transaction) -> list[str]:
        learner = room.learner(tx, "ada")
        said = room.say(tx, "ada", "5/6")
        noted = service.Observation(learner.skill("sums"), "Adds.", said, "5/6", result="good")
        waiting = service.note(tx, learner, replace(noted, is_guarded=True))
        level = room.level(tx, "ada", "sums", "practised")
        service.approve_all(tx, learner, learner.user.id)
        return [waiting.state, level.state, facts.get(tx, Scope(), level.id).state]

    assert await room.store.write(work) == ["proposed", "proposed", "current"]


async def test_two_observations_of_one_message_count_once_for_secure(room: Classroom) -> None:
    def work(tx: Transaction) -> None:
        learner = room.learner(tx, "ada")
        said = room.say(tx, "ada", "5/6")
        noted = service.Observation(learner.skill("sums"), "Adds.", said, "5/6", result="good")
        service.note(tx, learner, noted)
        service.note(tx, learner, replace(noted, result="easy", is_guarded=True))
        with pytest.raises(Invalid, match="needs two messages"):
            room.level(tx, "ada", "sums", "secure")

    await room.store.write(work)


async def test_a_dispute_is_in_the_prompt_until_a_new_level(room: Classroom) -> None:
    def work(tx: Transaction) -> Any:
        room.show(tx, "ada", "sums", "failed")
        room.level(tx, "ada", "sums", "practised")
        learner = room.learner(tx, "ada")
        service.claim(tx, learner, learner.skill("sums"), "I can.")
        service.claim(tx, learner, learner.skill("sums"), "I can do this.")
        disputed = prompt.learner_text(tx, learner)
        level = room.state(tx, "ada", "sums").level_name
        room.show(tx, "ada", "sums", "good")
        room.show(tx, "ada", "sums", "good")
        room.level(tx, "ada", "sums", "secure")
        return disputed, level, prompt.learner_text(tx, learner)

    disputed, level, answered = await room.store.write(work)
    assert 'the student says: "I can do this."' in disputed
    assert level == "practised"
    assert "the student says" not in answered


async def test_deleting_the_last_evidence_deletes_the_level(room: Classroom) -> None:
    def work(tx: Transaction) -> Any:
        first = room.show(tx, "ada", "sums", "good")
        second = room.show(tx, "ada", "sums", "good")
        room.level(tx, "ada", "sums", "secure")
        learner = room.learner(tx, "ada")
        one = service.remove_fact(tx, learner, first.id)
        left = room.state(tx, "ada", "sums")
        two = service.remove_fact(tx, learner, second.id)
        with pytest.raises(NotFound):
            service.remove_fact(tx, room.learner(tx, "bea"), second.id)
        return one, left, two, room.state(tx, "ada", "sums"), second

    one, left, two, gone, second = await room.store.write(work)
    assert (one, two) == (1, 2)
    assert left.level.evidence == second.evidence
    assert (gone.level, gone.observations, gone.due_at) == (None, [], None)


async def test_no_evidence_is_noted_for_a_student_who_opted_out(room: Classroom) -> None:
    def work(tx: Transaction) -> Any:
        room.show(tx, "ada", "sums", "good")
        room.choose(tx, "ada", is_off=True)
        with pytest.raises(Invalid, match="are off"):
            room.show(tx, "ada", "sums", "good")
        learner = room.learner(tx, "ada")
        due = service.students_with_due(tx, [learner.user], room.course)
        return prompt.learner_text(tx, learner), service.states_of(tx, learner), due

    text, states, due = await room.store.write(work)
    assert "sums" not in text
    assert states == []
    assert not due


async def test_due_reviews_of_many_students_are_found_by_few_statements(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_EXAMINED_AT_ONCE", 4)
    names = [f"student-{number}" for number in range(10)]
    room = await open_classroom(store, names)

    def show(tx: Transaction) -> None:
        for number, name in enumerate(names):
            for skill in ("sums", "fractions")[: number % 3]:
                room.show(tx, name, skill, "good" if number % 2 else "failed")
        room.choose(tx, names[1], is_off=True)
        room.choose(tx, names[4], shares=True)

    await store.write(show)
    for days in (0, 3, 60):
        clock.advance(days * 86_400)
        with count_statements(store) as counted:
            due = await store.read(
                lambda tx: service.students_with_due(tx, [*room.students.values()], room.course)
            )
        assert len(counted.statements) == 4

        def by_student(tx: Transaction) -> set[str]:
            learners = [room.learner(tx, name) for name in names]
            return {
                learner.user.id
                for learner in learners
                if any(state.is_due for state in service.states_of(tx, learner))
            }

        assert due == await store.read(by_student)
    assert len(due) == 5


async def test_old_evidence_is_deleted_with_its_levels(room: Classroom, clock: ManualClock) -> None:
    await room.store.write(lambda tx: room.show(tx, "ada", "sums", "good"))
    await room.store.write(lambda tx: room.level(tx, "ada", "sums", "practised"))
    clock.advance(40 * 86_400)
    await room.store.write(lambda tx: room.show(tx, "ada", "fractions", "good"))

    def work(tx: Transaction) -> Any:
        removed = service.remove_older(tx, room.learner(tx, "ada"), tx.clock.now() - 30 * DAY)
        return removed, room.state(tx, "ada", "sums"), room.state(tx, "ada", "fractions")

    removed, sums, fractions = await room.store.write(work)
    assert removed == 2
    assert (sums.level, sums.observations) == (None, [])
    assert len(fractions.observations) == 1


async def test_reviews_are_due_as_fsrs_schedules_them(room: Classroom, clock: ManualClock) -> None:
    card = Card(card_id=1)
    reference = Scheduler(learning_steps=(), relearning_steps=(), enable_fuzzing=False)
    ratings = {"failed": Rating.Again, "hard": Rating.Hard, "good": Rating.Good}
    for days, result in ((0, "good"), (3, "good"), (9, "failed"), (1, "hard"), (2, "good")):
        clock.advance(days * 86_400)

        def work(tx: Transaction, result: Any = result) -> Any:
            return room.show(tx, "ada", "sums", result), room.state(tx, "ada", "sums")

        noted, state = await room.store.write(work)
        card, _ = reference.review_card(card, ratings[result], to_datetime(noted.said_at))
        assert state.due_at == to_micros(card.due)
        assert not state.is_due
    clock.advance((to_micros(card.due) - clock.now()) // 1_000_000 + 1)
    later = await room.store.write(lambda tx: room.state(tx, "ada", "sums"))
    assert later.is_due


async def test_a_profile_contains_levels_but_no_observations(room: Classroom) -> None:
    def work(tx: Transaction) -> str:
        room.show(tx, "ada", "sums", "good")
        room.level(tx, "ada", "sums", "practised")
        user = room.students["ada"]
        return facts_profile(tx, user.id, limit=1000, tokens_of=len).text

    text = await room.store.write(work)
    assert "sums (Numbers): practised" in text
    assert "Worked on" not in text


async def test_observations_with_secrets_or_invalid_text_are_refused(
    room: Classroom,
) -> None:
    def work(tx: Transaction) -> None:
        learner = room.learner(tx, "ada")
        said = room.say(tx, "ada", "Hello")
        secret = "Her key is sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD."
        for sentence, words in ((secret, "secret"), ("  ", "one sentence")):
            noted = service.Observation(learner.skill("sums"), sentence, said, "Hello")
            with pytest.raises(Invalid, match=words):
                service.note(tx, learner, noted)
        assert queries.facts_of(tx, learner.user.id, "numbers") == []

    await room.store.write(work)


async def test_levels_remain_in_view_behind_many_newer_observations(room: Classroom) -> None:
    def work(tx: Transaction) -> Any:
        room.show(tx, "ada", "sums", "good")
        learner = room.learner(tx, "ada")
        level = service.propose_level(
            tx, learner, service.NewLevel(learner.skill("sums"), "practised", "Solved it.")
        )
        for _ in range(4):
            room.show(tx, "ada", "fractions", "good")
        ids = [fact.id for fact in queries.facts_of(tx, learner.user.id, "numbers", limit=3)]
        of_user = [fact.id for fact in queries.facts_of_user(tx, learner.user.id, limit=3)]
        of_skill = queries.facts_of_skill(tx, learner.user.id, "numbers", "sums", limit=2)
        return level.id, ids, of_user, [fact.id for fact in of_skill]

    level_id, ids, of_user, of_skill = await room.store.write(work)
    assert ids[-1] == of_user[-1] == of_skill[0] == level_id
    assert (len(ids), len(of_user), len(of_skill)) == (3, 3, 2)


async def test_a_prompt_reads_limited_facts_and_a_deletion_removes_all(
    room: Classroom,
) -> None:
    def work(tx: Transaction) -> Any:
        for _ in range(7):
            room.show(tx, "ada", "sums", "good")
        learner = room.learner(tx, "ada")
        newest = queries.facts_of(tx, learner.user.id, "numbers", limit=3)
        every = queries.facts_of(tx, learner.user.id, "numbers")
        return newest, every, service.remove_all(tx, learner)

    newest, every, removed = await room.store.write(work)
    assert newest == every[:3]
    assert removed == len(every) == 7
