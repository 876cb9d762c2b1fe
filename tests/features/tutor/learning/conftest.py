"""A class of students in a course with skills, without a running server."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ricordo.domain.agent import Agent
from ricordo.domain.message import Message
from ricordo.domain.scope import Scope, User
from ricordo.features.knowledge.facts.records import UserFact
from ricordo.features.tutor.courses import queries as courses
from ricordo.features.tutor.courses.course_file import Course, parse_course
from ricordo.features.tutor.courses.queries import StoredCourse
from ricordo.features.tutor.learning import queries, service
from ricordo.features.tutor.learning.records import Level, Result, SkillState
from ricordo.features.tutor.learning.service import Learner, NewLevel, Observation
from ricordo.storage import agents, conversations, messages, users
from ricordo.storage.engine.store import Store, Transaction
from tests.seams import make

SKILLS = ("sums", "fractions", "percent")
COURSE = """
title = "Numbers"
skill_policy = "direct"
[[agent]]
name = "coach"
instructions = "Coach."
[[skill]]
name = "sums"
[[skill]]
name = "fractions"
prerequisites = ["sums"]
examples = ["1/2 + 1/3"]
misconceptions = ["adds the denominators"]
[[skill]]
name = "percent"
prerequisites = ["fractions"]
"""


@dataclass
class Classroom:
    """Students of one course, whose messages are stored and noted as observations."""

    store: Store
    course: Course
    agent: Agent
    students: dict[str, User]

    def learner(self, tx: Transaction, name: str) -> Learner:
        return service.learner_of(tx, self.students[name], self.course)

    def say(self, tx: Transaction, name: str, text: str) -> Message:
        said = make.message(
            self.agent,
            text,
            conversation_id=f"conv-{name}",
            user_id=self.students[name].id,
            created_at=tx.clock.now(),
        )
        messages.insert_all(tx, [said])
        return said

    def show(
        self,
        tx: Transaction,
        name: str,
        skill: str,
        result: Result,
        *,
        text: str = "",
        misconception: str = "",
    ) -> UserFact:
        """Let a student send a message that shows a skill, and store the observation."""
        learner = self.learner(tx, name)
        said = self.say(tx, name, text or f"My answer on {skill}.")
        noted = Observation(
            learner.skill(skill),
            f"Worked on {skill}.",
            said,
            said.text,
            result=result,
            misconception=misconception,
        )
        return service.note(tx, learner, noted)

    def level(self, tx: Transaction, name: str, skill: str, level: Level) -> UserFact:
        learner = self.learner(tx, name)
        return service.propose_level(
            tx, learner, NewLevel(learner.skill(skill), level, "It shows.")
        )

    def state(self, tx: Transaction, name: str, skill: str) -> SkillState:
        states = service.states_of(tx, self.learner(tx, name))
        return next(state for state in states if state.skill.name == skill)

    def choose(self, tx: Transaction, name: str, **chosen: Any) -> None:
        learner = self.learner(tx, name)
        choice = replace(learner.choice, **chosen)
        user = learner.user
        queries.set_choice(tx, user.organization_id, user.id, self.course.name, choice)


async def open_classroom(
    store: Store, names: Iterable[str], text: str = COURSE, name: str = "numbers"
) -> Classroom:
    """Store a course, its agent, and students with a conversation each."""
    course = parse_course(text, name)
    agent = make.agent(settings={"course": {"course": name, "agent": "coach"}})

    def work(tx: Transaction) -> dict[str, User]:
        stored = StoredCourse(
            f"course-{name}",
            agent.organization_id,
            name,
            source=text,
            agents={"coach": agent.id},
        )
        courses.insert(tx, stored)
        agents.insert_one(tx, agent, [])
        students = {}
        for student in names:
            students[student] = users.find_or_make(tx, Scope(), student)
            talk = make.conversation(agent, id=f"conv-{student}", user_id=students[student].id)
            conversations.insert_one(tx, talk)
        return students

    return Classroom(store, course, agent, await store.write(work))


@pytest.fixture
async def room(store: Store) -> Classroom:
    return await open_classroom(store, ("ada", "bea"))
