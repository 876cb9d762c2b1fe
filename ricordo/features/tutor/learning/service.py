"""Store and remove the observations, levels and claims about a student's skills.

They are facts with evidence. Each function that changes a student's facts locks the student's row
first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ricordo.domain.ids import new_id
from ricordo.domain.message import Message
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Scope, User
from ricordo.domain.text import normal_text
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.knowledge.facts import decisions
from ricordo.features.knowledge.facts import queries as facts
from ricordo.features.knowledge.facts.evidence import MOST_EVIDENCE
from ricordo.features.knowledge.facts.filing import settle
from ricordo.features.knowledge.facts.options import FactPolicy
from ricordo.features.knowledge.facts.records import Evidence, Relation, UserFact
from ricordo.features.tutor.courses import queries as courses
from ricordo.features.tutor.courses.applying import applied_course
from ricordo.features.tutor.courses.course_file import Course
from ricordo.features.tutor.courses.skills import CourseSkill
from ricordo.features.tutor.learning import queries
from ricordo.features.tutor.learning.records import (
    LEVELS,
    MANAGED,
    RESULTS,
    TRIED,
    Level,
    Result,
    SkillState,
    claim_slot,
    course_of,
    is_level,
    is_observation,
    level_slot,
    observation_slot,
    observed_value,
    result_of,
    skill_of,
)
from ricordo.features.tutor.learning.reviews import end_of_day
from ricordo.features.tutor.learning.state import skill_states
from ricordo.memory.schemas import similar_name
from ricordo.memory.unwanted import rules_of
from ricordo.storage import activity, users, versions
from ricordo.storage.engine.store import Transaction

LONGEST_QUOTE = 400
_EXAMINED_AT_ONCE = 100  # students whose facts are read together
LONGEST_CLAIM = 200
_KNOWN = ("practised", "secure")


@dataclass(frozen=True, slots=True)
class Learner:
    """A student in a course with skills."""

    user: User
    course: Course
    choice: queries.LearnerChoice

    @property
    def timezone(self) -> str:
        return self.course.timezone or "UTC"

    def skill(self, name: str) -> CourseSkill:
        """Return the course's skill of this name.

        Args:
            name: The name from a model or a request; spaces around it are ignored.

        Raises:
            Invalid: The course has no such skill; the message names all of them.
        """
        for skill in self.course.skills:
            if skill.name == name.strip():
                return skill
        names = [skill.name for skill in self.course.skills]
        raise Invalid(
            f'There is no skill "{name[:80]}" in this course.{similar_name(name, names)} '
            f"Use one of: {', '.join(names)}."
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """An agent's observation about a skill, from a message of its student.

    `is_guarded` is set if the step had read untrusted content. Then the student must approve the
    observation.
    """

    skill: CourseSkill
    sentence: str
    message: Message
    quote: str
    result: Result = "seen"
    misconception: str = ""
    is_guarded: bool = False


@dataclass(frozen=True, slots=True)
class NewLevel:
    """A level that an agent proposes for a skill, with its reason."""

    skill: CourseSkill
    level: Level
    reason: str
    agent_id: str | None = None
    conversation_id: str | None = None
    is_guarded: bool = False


def course_with_skills(tx: Transaction, scope: Scope, name: str) -> Course:
    """Return the last applied form of a course.

    Args:
        tx: The transaction, or a read.
        scope: The caller, whose organization is searched.
        name: The course's name.

    Raises:
        NotFound: There is no such course, it was never applied in this version, or it has no
            skills.
    """
    stored = courses.get(tx, scope, name)
    course = applied_course(stored.source, stored.name)
    if course is None:
        raise NotFound(
            f'The course "{name[:80]}" has never been applied in this version. Mend the faults of '
            "its file."
        )
    if not course.skills:
        raise NotFound(f'The course "{name[:80]}" names no skills. Add a [[skill]] to its file.')
    return course


def learner_of(tx: Transaction, user: User, course: Course) -> Learner:
    """Return the student in a course, with the student's choice.

    Args:
        tx: The transaction, or a read.
        user: The student.
        course: A course with skills.
    """
    choice = queries.choice_of(tx, user.organization_id, user.id, course.name)
    return Learner(user, course, choice)


def learning_of(tx: Transaction, user: User) -> list[tuple[Learner, list[SkillState]]]:
    """Return the courses with skills in which the user takes part, each with its states.

    A user takes part after talking with an agent of the course, or if a current or waiting fact of
    the course is stored. The number of statements does not depend on the number of courses.

    Args:
        tx: The transaction, or a read.
        user: The student.
    """
    scope = Scope(user.organization_id)
    stored = {course.name: course for course in courses.all_courses(tx, scope)}
    parsed = {name: applied_course(course.source, name) for name, course in stored.items()}
    taught = {name: course for name, course in parsed.items() if course and course.skills}
    agent_ids = [id for name in taught for id in stored[name].agents.values()]
    known_agents = activity.talked_with(tx, user.id, agent_ids)
    choices = queries.choices_of_user(tx, user.organization_id, user.id)
    noted: dict[str, list[UserFact]] = {}
    for fact in queries.facts_of_user(tx, user.id):
        noted.setdefault(course_of(fact), []).append(fact)
    found = []
    for name, course in taught.items():
        if name not in noted and known_agents.isdisjoint(stored[name].agents.values()):
            continue
        learner = Learner(user, course, choices.get(name, queries.LearnerChoice()))
        found.append((learner, _states(tx, learner, noted.get(name, []))))
    return found


def learning_in(
    tx: Transaction, user: User, course_name: str
) -> tuple[Learner, list[SkillState]] | None:
    """Return one of the courses of `learning_of`, or None.

    The other courses are not read.

    Args:
        tx: The transaction.
        user: The student.
        course_name: The course's name.
    """
    try:
        stored = courses.get(tx, Scope(user.organization_id), course_name)
    except NotFound:
        return None
    course = applied_course(stored.source, stored.name)
    if course is None or not course.skills:
        return None
    noted = queries.facts_of(tx, user.id, stored.name)
    if not noted and not activity.talked_with(tx, user.id, list(stored.agents.values())):
        return None
    learner = learner_of(tx, user, course)
    return learner, _states(tx, learner, noted)


def require_shared(learner: Learner) -> None:
    """Raise NotFound unless the student shares the skills with the course's teachers.

    Args:
        learner: The student in the course.
    """
    if learner.choice.is_off or not learner.choice.shares:
        raise NotFound("This student shares no skills with teachers.")


def kept_days(learner: Learner) -> int | None:
    """Return the days for which evidence is stored, or None for no limit.

    It is the smaller of the student's and the course's number.

    Args:
        learner: The student in the course.
    """
    bounds = (learner.choice.retention_days, learner.course.retention_days)
    return min((days for days in bounds if days is not None), default=None)


def states_of(tx: Transaction, learner: Learner) -> list[SkillState]:
    """Return the state of each skill; an empty list if the student switched the course off.

    Args:
        tx: The transaction, or a read.
        learner: The student in the course.
    """
    if learner.choice.is_off:
        return []
    return _states(tx, learner, queries.facts_of(tx, learner.user.id, learner.course.name))


def _states(tx: Transaction, learner: Learner, found: Sequence[UserFact]) -> list[SkillState]:
    if learner.choice.is_off:
        return []
    until = end_of_day(tx.clock.now(), learner.timezone)
    return skill_states(learner.course.skills, learner.course.name, found, until)


def students_with_due(tx: Transaction, students: Sequence[User], course: Course) -> set[str]:
    """Return the ids of the students who have something to review today.

    It takes one statement, and one more for each 100 students.

    Args:
        tx: The transaction, or a read.
        students: Students of one organization.
        course: A course with skills.
    """
    if not students:
        return set()
    choices = queries.choices_of_course(tx, students[0].organization_id, course.name)
    due: set[str] = set()
    for start in range(0, len(students), _EXAMINED_AT_ONCE):
        some = students[start : start + _EXAMINED_AT_ONCE]
        facts = queries.facts_of_students(tx, [student.id for student in some], course.name)
        for student in some:
            learner = Learner(student, course, choices.get(student.id, queries.LearnerChoice()))
            states = _states(tx, learner, facts.get(student.id, []))
            if any(state.is_due for state in states):
                due.add(student.id)
    return due


def policy_for(tx: Transaction, learner: Learner) -> FactPolicy:
    """Return the policy for notes: the student's, else the organization's, else the course's.

    `RICORDO_FACTS` does not apply here, since it is about facts from all conversations. A course
    with skills asks for notes by itself.

    Args:
        tx: The transaction, or a read.
        learner: The student in the course.
    """
    if learner.choice.is_off:
        return "off"
    choices = facts.policies(tx, learner.user.organization_id, learner.user.id)
    choice = choices.get(learner.user.id) or choices.get(facts.EVERYBODY)
    return choice or learner.course.skill_policy


def note(tx: Transaction, learner: Learner, observation: Observation) -> UserFact:
    """Store an observation, and return its fact.

    The same observation of the same message is stored once.

    Args:
        tx: The transaction.
        learner: The student in the course.
        observation: The observation, whose message the caller has found to be the student's.

    Raises:
        Invalid: if notes about this student are off, or this sentence is refused.
        Conflict: if the student rejected the same observation.
    """
    users.lock(tx, learner.user.id)
    policy = _require_on(tx, learner)
    message = observation.message
    fact = _new_fact(
        tx,
        learner,
        sentence=_sentence(tx, learner, observation.sentence),
        slot=observation_slot(learner.course.name, observation.skill.name, message.id),
        value=observed_value(observation.result, observation.misconception),
        evidence=(Evidence(message.id, observation.quote[:LONGEST_QUOTE]),),
    )
    fact = replace(
        fact,
        said_at=message.created_at,
        holds_from=message.created_at,
        agent_id=message.agent_id,
        conversation_id=message.conversation_id,
    )
    return _file(tx, fact, is_direct=policy == "direct" and not observation.is_guarded)


def propose_level(tx: Transaction, learner: Learner, new: NewLevel) -> UserFact:
    """Store a level with its observations as the policy allows, and return its fact.

    The level waits for the student if one of the skill's observations waits now.

    Args:
        tx: The transaction.
        learner: The student in the course.
        new: The level with the agent's reason.

    Raises:
        Invalid: if notes about this student are off, the observations do not show the level, or
            the reason is refused.
        Conflict: if the student rejected the same level with the same evidence.
    """
    users.lock(tx, learner.user.id)
    policy = _require_on(tx, learner)
    of_skill = queries.facts_of_skill(tx, learner.user.id, learner.course.name, new.skill.name)
    observations = [fact for fact in of_skill if is_observation(fact)]
    current = next((f for f in of_skill if is_level(f) and f.state == "current"), None)
    _require_shown(new, observations, current)
    pieces = dict.fromkeys(piece for fact in observations for piece in fact.evidence)
    fact = _new_fact(
        tx,
        learner,
        sentence=_sentence(
            tx,
            learner,
            f"{new.skill.shown_name} ({learner.course.title}): {new.level}. {new.reason}",
        ),
        slot=level_slot(learner.course.name, new.skill.name),
        value=new.level,
        evidence=tuple(pieces)[:MOST_EVIDENCE],
    )
    fact = replace(fact, agent_id=new.agent_id, conversation_id=new.conversation_id)
    is_waiting = new.is_guarded or any(fact.state == "proposed" for fact in observations)
    return _file(tx, fact, is_direct=policy == "direct" and not is_waiting)


def claim(tx: Transaction, learner: Learner, skill: CourseSkill, words: str) -> UserFact:
    """Store the student's view of a skill, and return its fact.

    An earlier claim is replaced. The level stays, and the prompt asks the tutor to check the claim.

    Args:
        tx: The transaction.
        learner: The student in the course.
        skill: A skill of the course.
        words: The student's text, of which at most 200 characters are stored.

    Raises:
        Invalid: if the student switched notes off in this course, or the text is empty, holds a
            secret, or is forbidden by the student's rules.
    """
    users.lock(tx, learner.user.id)
    if learner.choice.is_off:
        raise Invalid("Noting is switched off for you in this course. Switch it on first.")
    said = _sentence(tx, learner, words)[:LONGEST_CLAIM]
    fact = _new_fact(
        tx,
        learner,
        sentence=_sentence(
            tx, learner, f'{skill.shown_name} ({learner.course.title}), in my view: "{said}"'
        ),
        slot=claim_slot(learner.course.name, skill.name),
        value=said,
        evidence=(),
    )
    queries.remove(tx, queries.facts_of_slot(tx, fact.user_id, fact.slot))
    stored = replace(fact, source="user", state="current", resolved_at=tx.clock.now())
    facts.insert(tx, stored)
    return stored


def remove_fact(tx: Transaction, learner: Learner, fact_id: str) -> int:
    """Delete an observation, a level or a claim; return the number of deleted facts.

    Deleting a level's last observation deletes the level too.

    Args:
        tx: The transaction.
        learner: The student in the course.
        fact_id: The fact, in any state.

    Raises:
        NotFound: if the student has no such fact in the course.
    """
    users.lock(tx, learner.user.id)
    found = _every_fact(tx, learner)
    fact = next((fact for fact in found if fact.id == fact_id), None)
    if fact is None:
        raise NotFound(f"Fact with ID {fact_id[:80]} not found")
    queries.remove(tx, [fact])
    others = [other for other in found if other.id != fact.id]
    return 1 + (_drop_unfounded(tx, learner, others) if is_observation(fact) else 0)


def remove_all(tx: Transaction, learner: Learner) -> int:
    """Delete all facts of the student in the course; return their number.

    Args:
        tx: The transaction.
        learner: The student in the course. The student's choice remains.
    """
    users.lock(tx, learner.user.id)
    found = _every_fact(tx, learner)
    queries.remove(tx, found)
    return len(found)


def remove_older(tx: Transaction, learner: Learner, before: int) -> int:
    """Delete observations and claims from before this time; return the number of deleted facts.

    Levels without remaining observations are deleted too.

    Args:
        tx: The transaction.
        learner: The student in the course.
        before: A time in microseconds.
    """
    users.lock(tx, learner.user.id)
    found = _every_fact(tx, learner)
    old = [fact for fact in found if fact.said_at < before and not is_level(fact)]
    if not old:
        return 0
    queries.remove(tx, old)
    ids = {fact.id for fact in old}
    others = [fact for fact in found if fact.id not in ids]
    return len(old) + _drop_unfounded(tx, learner, others)


def approve_all(tx: Transaction, learner: Learner, by: str | None) -> int:
    """Approve the student's waiting facts of the course, oldest first; return their number.

    Args:
        tx: The transaction.
        learner: The student in the course.
        by: The id of the user who approves; None if it is not known.
    """
    users.lock(tx, learner.user.id)
    waiting = queries.facts_of(
        tx, learner.user.id, learner.course.name, ["proposed"], limit=queries.EVERY_FACT
    )
    # A fact of a skill can only contradict facts of its slot, so each is compared with few facts.
    live: dict[str, list[UserFact]] = {}
    for fact in queries.facts_of(
        tx, learner.user.id, learner.course.name, limit=queries.EVERY_FACT
    ):
        live.setdefault(fact.slot, []).append(fact)
    for fact in reversed(waiting):
        live[fact.slot] = decisions.approve_among(tx, fact, live[fact.slot], by)
    return len(waiting)


def _require_on(tx: Transaction, learner: Learner) -> FactPolicy:
    policy = policy_for(tx, learner)
    if policy == "off":
        raise Invalid("Notes about this student are off. Note nothing, and continue.")
    return policy


def _require_shown(
    new: NewLevel, observations: Sequence[UserFact], current: UserFact | None
) -> None:
    """Raise Invalid unless the observations show the level."""
    results = [result_of(fact) for fact in observations]
    if not observations:
        raise Invalid(f'There is no evidence for "{new.skill.name}". Call note_evidence first.')
    if new.level == "practised" and not TRIED.intersection(results):
        raise Invalid("The student has not tried it yet. Note the result of an exercise first.")
    # A message may have a current and a waiting observation in its slot, and counts once.
    managed_slots = {fact.slot for fact in observations if result_of(fact) in MANAGED}
    if new.level == "secure" and len(managed_slots) < 2:
        raise Invalid(
            '"secure" needs two messages with the result good or easy. Give another exercise.'
        )
    if new.level == "forgotten" and (current is None or current.value not in _KNOWN):
        raise Invalid('Only a level of "practised" or "secure" can become "forgotten".')
    if new.level == "forgotten" and newest_result(observations) != "failed":
        raise Invalid(
            '"forgotten" is only allowed if the newest observation has the result failed.'
        )


def newest_result(observations: Sequence[UserFact]) -> Result | None:
    """Return the result of the newest observation; None without observations.

    Args:
        observations: The observations about one skill, in any order.
    """
    newest = max(observations, key=lambda fact: fact.said_at, default=None)
    return result_of(newest) if newest else None


def _every_fact(tx: Transaction, learner: Learner) -> list[UserFact]:
    states = ("current", "proposed", "ended", "replaced", "rejected")
    return queries.facts_of(
        tx, learner.user.id, learner.course.name, states, limit=queries.EVERY_FACT
    )


def _drop_unfounded(tx: Transaction, learner: Learner, found: Sequence[UserFact]) -> int:
    """Remove deleted evidence from levels. Delete levels without evidence; return their number."""
    remaining = {
        (skill_of(fact, learner.course.name), piece)
        for fact in found
        if is_observation(fact)
        for piece in fact.evidence
    }
    dropped = []
    for level in [fact for fact in found if is_level(fact)]:
        name = skill_of(level, learner.course.name)
        evidence = tuple(piece for piece in level.evidence if (name, piece) in remaining)
        if not evidence:
            dropped.append(level)
        elif evidence != level.evidence:
            facts.update(tx, replace(level, evidence=evidence))
    queries.remove(tx, dropped)
    return len(dropped)


def _sentence(tx: Transaction, learner: Learner, text: str) -> str:
    """Return a text as the sentence of a fact.

    Raises Invalid for an empty text, a secret, and a text that the student's rules forbid.
    """
    sentence = " ".join(normal_text(text).split())
    if not sentence:
        raise Invalid("The text is empty. Write one sentence.")
    if redact(sentence).text != sentence:
        raise Invalid("This holds a secret, such as a password. Leave it out.")
    scope = Scope(learner.user.organization_id)
    rules = rules_of(tx, versions.of_owner(tx, scope, "user", learner.user.id))
    if rules.refuse("", sentence):
        raise Invalid("The student has forbidden to remember this. Do not note it.")
    return sentence[: decisions.LONGEST_SENTENCE]


def _new_fact(
    tx: Transaction,
    learner: Learner,
    *,
    sentence: str,
    slot: str,
    value: str,
    evidence: tuple[Evidence, ...],
) -> UserFact:
    now = tx.clock.now()
    return UserFact(
        id=new_id("fact"),
        organization_id=learner.user.organization_id,
        user_id=learner.user.id,
        sentence=sentence,
        kind="skill",
        source="model",
        state="proposed",
        said_at=now,
        holds_from=now,
        created_at=now,
        slot=slot,
        value=value,
        evidence=evidence,
    )


def _refuse_rejected(fact: UserFact, same_slot: Sequence[UserFact]) -> None:
    """Raise Conflict if the student rejected this value with at least this evidence."""
    for other in same_slot:
        is_same = other.value == fact.value and set(fact.evidence) <= set(other.evidence)
        if is_same and other.state == "rejected":
            raise Conflict("The student rejected this. Propose it again with new evidence.")


def _replace_waiting(tx: Transaction, live: Sequence[UserFact], fact: UserFact) -> None:
    """Mark the proposed facts among `live` as replaced by a fact."""
    now = tx.clock.now()
    for waiting in live:
        if waiting.state == "proposed":
            facts.update(
                tx, replace(waiting, state="replaced", replacement_id=fact.id, resolved_at=now)
            )


def _file(tx: Transaction, fact: UserFact, *, is_direct: bool) -> UserFact:
    """Store a fact and return it.

    If a current fact of the slot has the same value, it gets the new evidence instead. So does a
    waiting fact, unless the new fact applies at once. Another waiting fact of the slot is replaced.
    Raises Conflict if the student rejected the same fact.
    """
    same_slot = queries.facts_of_slot(tx, fact.user_id, fact.slot)
    _refuse_rejected(fact, same_slot)
    live = [other for other in same_slot if other.state in ("current", "proposed")]
    known = next((older for older in live if older.value == fact.value), None)
    if known and (known.state == "current" or not is_direct):
        pieces = tuple(dict.fromkeys((*fact.evidence, *known.evidence)))
        known = replace(known, evidence=pieces[:MOST_EVIDENCE])
        facts.update(tx, known)
        return known
    current = next((older for older in live if older.state == "current"), None)
    if current:
        fact = replace(fact, replaces_id=current.id, relation="contradicts")
    facts.insert(tx, fact)
    _replace_waiting(tx, live, fact)
    if not is_direct:
        return fact
    relations: dict[str, Relation] = {current.id: "contradicts"} if current else {}
    settle(tx, fact, [current] if current else [], relations)
    return facts.get(tx, Scope(fact.organization_id), fact.id)


def require_level(text: str) -> Level:
    """Return a level by its name.

    Args:
        text: The name from a model or a request; spaces around it are ignored.

    Raises:
        Invalid: There is no such level.
    """
    for level in LEVELS:
        if level == text.strip():
            return level
    raise Invalid(f'"{text[:40]}" is not a level. Use one of: {", ".join(LEVELS)}.')


def require_result(text: str) -> Result:
    """Return a result by its name.

    Args:
        text: The name from a model or a request; spaces around it are ignored.

    Raises:
        Invalid: There is no such result.
    """
    for result in RESULTS:
        if result == text.strip():
            return result
    raise Invalid(f'"{text[:40]}" is not a result. Use one of: {", ".join(RESULTS)}.')


def require_misconception(skill: CourseSkill, text: str) -> str:
    """Return the skill's misconception with this text; empty for an empty text.

    Args:
        skill: The skill.
        text: The misconception. Capitals and spaces may differ.

    Raises:
        Invalid: if the skill has no such misconception.
    """
    wanted = " ".join(text.split()).casefold()
    if not wanted:
        return ""
    for known in skill.misconceptions:
        if " ".join(known.split()).casefold() == wanted:
            return " ".join(known.split())
    listed = "; ".join(skill.misconceptions) or "none"
    raise Invalid(f'"{skill.name}" has no such misconception. Its misconceptions: {listed}.')
