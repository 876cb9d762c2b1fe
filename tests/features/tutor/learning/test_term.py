"""A term of one course: 30 students, 12 skills, 8 weeks, in simulated time.

A seed chooses the messages. The due skills are compared with those of the package `fsrs`. The
teacher's digest is compared with the script. No prompt may hold the canaries of other students.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pytest
from fsrs import Card, Rating, Scheduler

from ricordo.domain.clock import DAY, to_datetime
from ricordo.features.tutor.learning import digest, prompt, queries, service
from ricordo.storage.engine.store import Store, Transaction
from tests.features.tutor.learning.conftest import Classroom, open_classroom
from tests.seams.stores import ManualClock

STUDENTS = tuple(f"student{number:02}" for number in range(30))
SKILLS = tuple(f"skill-{number:02}" for number in range(12))
WEEKS = 8
COURSE = "\n".join(
    [
        'title = "A term"',
        'skill_policy = "direct"',
        '[[agent]]\nname = "coach"\ninstructions = "Coach."',
        *(
            f'[[skill]]\nname = "{name}"\nmisconceptions = ["mistake of {name}"]\n'
            + (f'prerequisites = ["{SKILLS[number - 1]}"]' if number else "")
            for number, name in enumerate(SKILLS)
        ),
    ]
)
RATINGS = {
    "failed": Rating.Again,
    "hard": Rating.Hard,
    "good": Rating.Good,
    "easy": Rating.Easy,
}


@dataclass
class Truth:
    """The script's actions, recorded without the product's code.

    `results` are by week, skill and student, in order; `cards` are by student and skill.
    """

    results: dict[tuple[str, str], dict[str, list[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    mistakes: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    cards: dict[tuple[str, str], Card] = field(default_factory=dict)
    scheduler: Scheduler = field(
        default_factory=lambda: Scheduler(
            learning_steps=(), relearning_steps=(), enable_fuzzing=False
        )
    )

    def add(self, student: str, skill: str, result: str, said_at: int, *, is_mistake: bool) -> None:
        year, week, _ = to_datetime(said_at).isocalendar()
        self.results[f"{year}-W{week:02}", skill][student].append(result)
        if is_mistake:
            self.mistakes[f"{year}-W{week:02}", skill].add(student)
        card = self.cards.get((student, skill)) or Card(card_id=1)
        self.cards[student, skill], _ = self.scheduler.review_card(
            card, RATINGS[result], to_datetime(said_at)
        )

    def due(self, student: str, today: date) -> set[str]:
        return {
            skill
            for (name, skill), card in self.cards.items()
            if name == student and card.due.date() <= today
        }

    def digest(self) -> dict[tuple[str, str], tuple[int | None, int | None, int | None]]:
        """Count students, stuck students and students with the mistake, by week and skill."""
        rows = {}
        for key, by_student in self.results.items():
            stuck = sum(results[-1] in ("failed", "hard") for results in by_student.values())
            mistaken = len(self.mistakes[key])
            rows[key] = (
                hidden(len(by_student)),
                hidden(stuck) if len(by_student) >= 5 else None,
                mistaken if mistaken >= 5 else None,
            )
        return rows


def hidden(number: int) -> int | None:
    """Return a number as teachers see it."""
    return None if 0 < number < 5 else number


@dataclass
class Term:
    """The term: each week every student works on some skills, the early ones first."""

    room: Classroom
    clock: ManualClock
    chance: random.Random
    truth: Truth = field(default_factory=Truth)

    async def run(self) -> None:
        for week in range(WEEKS):
            for day in range(7):
                await self.room.store.write(lambda tx, at=(week, day): self._day(tx, *at))
                await self.room.store.read(self._check_due)
                self.clock.advance(86_400)

    def _day(self, tx: Transaction, week: int, day: int) -> None:
        for number, student in enumerate(STUDENTS):
            if (number + day) % 7 not in (0, 3):
                continue  # each student works on two days of a week
            for skill in self.chance.sample(SKILLS[week : week + 5], 2):
                self._work(tx, student, skill)

    def _work(self, tx: Transaction, student: str, skill: str) -> None:
        is_mistake = self.chance.random() < 0.3
        result: Any = "failed" if is_mistake else self.chance.choice(["hard", "good", "easy"])
        noted = self.room.show(
            tx,
            student,
            skill,
            result,
            text=f"canary-{student} on {skill}",
            misconception=f"mistake of {skill}" if is_mistake else "",
        )
        self.truth.add(student, skill, result, noted.said_at, is_mistake=is_mistake)

    def _check_due(self, tx: Transaction) -> None:
        today = to_datetime(tx.clock.now()).date()
        for student in STUDENTS[:: len(STUDENTS) // 3]:
            states = service.states_of(tx, self.room.learner(tx, student))
            found = {state.skill.name for state in states if state.is_due}
            assert found == self.truth.due(student, today), (student, today)


@pytest.fixture
async def term(store: Store, clock: ManualClock) -> Term:
    room = await open_classroom(store, STUDENTS, COURSE, "term")
    chance = random.Random(37)  # noqa: S311 - the same each time
    return Term(room, clock, chance)


async def test_a_simulated_term_of_thirty_students_matches_the_reference(term: Term) -> None:
    await term.run()
    room, truth = term.room, term.truth
    assert len(truth.cards) > 200
    assert sum(len(found) for rows in truth.results.values() for found in rows.values()) == 960

    def check(tx: Transaction) -> None:
        today = to_datetime(tx.clock.now()).date()
        due_count = 0
        for student in STUDENTS:
            learner = room.learner(tx, student)
            states = service.states_of(tx, learner)
            for state in states:
                card = truth.cards.get((student, state.skill.name))
                due = to_datetime(state.due_at) if state.due_at is not None else None
                assert due == (card.due if card else None)
            assert {one.skill.name for one in states if one.is_due} == truth.due(student, today)
            due_count += sum(one.is_due for one in states)
            text = prompt.learner_text(tx, learner)
            canaries = {name for name in STUDENTS if f"canary-{name}" in text}
            ids = {name for name in STUDENTS if room.students[name].id in text}
            assert canaries | ids <= {student}
        assert due_count > 30
        _check_digest(tx)

    def _check_digest(tx: Transaction) -> None:
        organization_id = room.agent.organization_id
        since = tx.clock.now() - 60 * DAY
        noted = queries.observations_of_students(tx, organization_id, "term", since)
        rows = digest.weeks_of(room.course, noted)
        found = {
            (row.week, row.skill): (
                row.students,
                row.stuck,
                row.misconceptions[0].students if row.misconceptions else None,
            )
            for row in rows
        }
        assert found == truth.digest()
        shown = [number for row in found.values() for number in row if number]
        assert min(shown) >= digest.LEAST_GROUP
        assert None in [stuck for students, stuck, _ in found.values() if students]

    await room.store.read(check)


async def test_observations_never_contain_another_students_words(term: Term) -> None:
    """The observations quote canaries, and a prompt has only the canaries of its student."""
    room = term.room

    def work(tx: Transaction) -> None:
        for student in STUDENTS[:6]:
            learner = room.learner(tx, student)
            skill = learner.skill(SKILLS[0])
            said = room.say(tx, student, f"canary-{student}")
            noted = service.Observation(skill, f"Said canary-{student}.", said, said.text)
            service.note(tx, learner, noted)
        for student in STUDENTS[:6]:
            text = prompt.learner_text(tx, room.learner(tx, student))
            assert {name for name in STUDENTS if f"canary-{name}" in text} == {student}

    await room.store.write(work)
