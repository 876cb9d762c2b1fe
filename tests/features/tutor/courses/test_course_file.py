"""Reading a course reports every error with its line.

An error in one course does not affect others.
"""

import errno
import json
import os
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.errors import Invalid, Unavailable
from ricordo.features.tutor.courses.applying import tools_of
from ricordo.features.tutor.courses.course_file import conflicts, parse_course, read_courses

EXAMPLES = Path(__file__).parents[4] / "ricordo/features/tutor/courses/examples"
AGENT = '[[agent]]\nname = "coach"\ninstructions = "Coach."\n'
SUMS = '[[skill]]\nname = "sums"\n'
STUDENT = '[[block]]\nlabel = "student"\n[block.fields.name]\n'


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: str(path.stem))
def test_the_example_courses_are_valid(path: Path) -> None:
    course = parse_course(path.read_text("utf-8"), path.stem)
    assert len(course.agents) == 1
    assert course.tasks[0].agent == course.agents[0].name
    assert any(block.schema for block in course.blocks)


FAULTS = [
    ("", 1, "a course needs an agent"),
    ("x = 1\n" + AGENT, 1, '"x" is not known here'),
    ("title = 3\n" + AGENT, 1, '"title" must be text'),
    ("agent = 3\n", 1, '"agent" must be a list'),
    ("agent = [3]\n", 1, "write each as [[agent]]"),
    ("[[agent]\n", 1, "be read"),
    ('[[agent]]\nname = "Coach"\ninstructions = "x"\n', 2, '"name" is missing or cannot be used'),
    ('[[agent]]\ninstructions = "x"\n', 1, '"name" is missing'),
    ('[[agent]]\nname = "coach"\ninstructions = " "\n', 3, '"instructions" say what'),
    (AGENT + "tools = [1]\n", 4, '"tools" must be a list of names'),
    (AGENT + "max_steps = 0\n", 4, '"max_steps" must lie between 1 and 200'),
    (AGENT + 'workspace = "mine"\n', 4, '"workspace" must be one of'),
    (AGENT + "colour = 1\n", 4, '"colour" is not known here'),
    (AGENT + AGENT, 4, 'the agent "coach" is in line 1 already'),
    (AGENT + '[[block]]\nlabel = "a//b"\n', 5, "cannot be used"),
    (AGENT + "[[block]]\n", 4, "cannot be used"),
    (AGENT + '[[block]]\nlabel = "a"\npolicy = "ask"\n', 6, '"policy" must be one of'),
    (AGENT + '[[block]]\nlabel = "a"\nlimit = 0\n', 6, '"limit" must lie between'),
    (
        AGENT + '[[block]]\nlabel = "a"\nlimit = 3\nvalue = "abcd"\n',
        7,
        '"value" is longer than the limit of 3',
    ),
    (
        AGENT + '[[block]]\nlabel = "a"\nvalue = "b"\n[block.fields.name]\n',
        6,
        'a block has "fields" or a "value"',
    ),
    (
        AGENT + '[[block]]\nlabel = "a"\n[block.fields.name]\nkind = "colour"\n',
        7,
        '"kind" must be one of',
    ),
    (
        AGENT + '[[block]]\nlabel = "a"\n[block.fields.n]\nmax_length = 2\ndefault = "abc"\n',
        8,
        '"default" has 3 characters',
    ),
    (AGENT + STUDENT + STUDENT, 7, 'the block "student" is in line 4 already'),
    (
        AGENT + '[[task]]\nname = "t"\ninstructions = "x"\n',
        4,
        'a task has a "cron" expression or "idle_minutes"',
    ),
    (
        AGENT + '[[task]]\nname = "t"\ninstructions = "x"\ncron = "*/90 * * * *"\n',
        7,
        "a step of 90",
    ),
    (
        AGENT
        + '[[task]]\nname = "t"\ninstructions = "x"\ncron = "0 7 * * *"\ntimezone = "CEST+2"\n',
        8,
        "is unknown",
    ),
    (
        AGENT
        + '[[task]]\nname = "t"\ninstructions = "x"\nidle_minutes = 5\ntimezone = "Asia/Tokyo"\n',
        8,
        "belongs to",
    ),
    (AGENT + '[[task]]\nname = "t"\ninstructions = "x"\ncron = "61 * * * *"\n', 7, "minute"),
    (
        AGENT + '[[task]]\nname = "t"\ninstructions = "x"\nidle_minutes = 0\n',
        7,
        "must lie between 1 and",
    ),
    (
        AGENT + '[[task]]\nname = "t"\nagent = "b"\ninstructions = "x"\ncron = "0 3 * * *"\n',
        4,
        '"agent" must name an agent',
    ),
    (AGENT + '[[skill]]\nname = "Sums"\n', 5, '"name" is missing or cannot be used'),
    (AGENT + SUMS + SUMS, 6, 'the skill "sums" is in line 4 already'),
    (AGENT + SUMS + 'prerequisites = ["dash"]\n', 6, 'the prerequisite "dash" is not a skill'),
    (AGENT + SUMS + 'prerequisites = ["sums"]\n', 6, "of each other: sums -> sums"),
    (AGENT + SUMS + "examples = [1]\n", 6, '"examples" must be a list of names'),
    (AGENT + SUMS + 'misconceptions = ["a\\nb"]\n', 6, '"misconceptions" needs lines of 1 to 300'),
    (AGENT + SUMS + "level = 1\n", 6, '"level" is not known here'),
    ('skill_policy = "ask"\n' + AGENT + SUMS, 1, '"skill_policy" must be one of'),
    ("retention_days = 0\n" + AGENT + SUMS, 1, '"retention_days" must lie between'),
    (AGENT + '[[block]]\nlabel = "learner_state"\n', 5, "Rename it"),
    (
        AGENT + '[[task]]\nname = "t"\ninstructions = "x"\nidle_minutes = 5\nonly_if_due = true\n',
        8,
        '"only_if_due" needs a [[skill]]',
    ),
]


@pytest.mark.parametrize(("text", "line", "words"), FAULTS)
def test_a_fault_in_a_course_file_is_reported_with_its_line(
    text: str, line: int, words: str
) -> None:
    with pytest.raises(Invalid) as told:
        parse_course(text, "essay")
    assert f"essay/agents.toml: Line {line}: " in str(told.value)
    assert words in str(told.value)


def test_several_faults_of_a_course_file_are_reported_together() -> None:
    with pytest.raises(Invalid) as told:
        parse_course('[[agent]]\nname = "A"\ntools = [1]\n[[block]]\nlabel = ""\n', "essay")
    assert [line.split(": ")[1] for line in str(told.value).split("\n")] == [
        "Line 1",
        "Line 2",
        "Line 3",
        "Line 5",
    ]


def test_courses_with_conflicting_block_fields_are_refused(tmp_path: Path) -> None:
    texts = {
        "art": AGENT + STUDENT,
        "biology": AGENT + STUDENT.replace("name]", "species]"),
        "chemistry": AGENT + STUDENT.replace("student", "lab"),
        "drama": AGENT + '[[block]]\nlabel = "student"\nshared = true\nvalue = "The play"\n',
        "english": "[[agent]]",
    }
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "agents.toml").write_text(text, "utf-8")
    found, faults = read_courses(tmp_path)
    assert sorted(found) == ["chemistry", "drama"]
    assert sorted(faults) == ["art", "biology", "english"]
    words = (
        'art/agents.toml: Line 4: the block "student" has other fields in biology/agents.toml: '
        "Line 4."
    )
    assert faults["art"].startswith(words)
    assert faults["biology"].startswith(
        'biology/agents.toml: Line 4: the block "student" has other fields in art/'
    )
    same = [parse_course(AGENT + STUDENT + f"# {name}\n", name) for name in ("one", "two")]
    assert conflicts(same) == {}


def test_a_folder_that_cannot_be_listed_is_no_folder_without_courses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "courses"
    assert read_courses(file) == ({}, {})
    file.write_text("")
    with pytest.raises(Unavailable, match="Not a directory"):
        read_courses(file)

    def refuse(_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(Unavailable, match="Permission denied"):
        read_courses(tmp_path)


def skills_text(needed: Mapping[str, Iterable[str]]) -> str:
    """Return a course whose skills have these prerequisites."""
    tables = [
        f'[[skill]]\nname = "{name}"\nprerequisites = {json.dumps(sorted(names))}\n'
        for name, names in needed.items()
    ]
    return AGENT + "".join(tables)


@given(
    st.dictionaries(
        st.sampled_from([f"s{number}" for number in range(7)]),
        st.sets(st.sampled_from([f"s{number}" for number in range(7)])),
        min_size=1,
    )
)
def test_only_unknown_or_cyclic_prerequisites_are_refused(
    needed: dict[str, set[str]],
) -> None:
    is_known = all(name in needed for names in needed.values() for name in names)
    try:
        TopologicalSorter(needed).prepare()
        is_ordered = True
    except CycleError:
        is_ordered = False
    if is_known and is_ordered:
        course = parse_course(skills_text(needed), "essay")
        assert {skill.name: set(skill.prerequisites) for skill in course.skills} == needed
        return
    with pytest.raises(Invalid) as told:
        parse_course(skills_text(needed), "essay")
    assert ("is not a skill" in str(told.value)) == (not is_known)
    if is_known:
        assert "prerequisites of each other" in str(told.value)


def test_a_course_with_skills_adds_the_learning_tools_and_block() -> None:
    course = parse_course(AGENT + SUMS, "essay")
    assert [block.label for block in course.blocks] == ["learner_state"]
    assert {"note_evidence", "propose_mastery"} <= set(tools_of(course.agents[0]))
    without = parse_course(AGENT, "essay")
    assert without.blocks == ()
    assert "note_evidence" not in tools_of(without.agents[0])
