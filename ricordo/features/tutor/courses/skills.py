"""The skills of a course, and the checks of their prerequisites. No side effects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ricordo.memory.sections import Problem

MOST_SKILLS = 200
MOST_IN_LIST = 50
LONGEST_LINE = 300


@dataclass(frozen=True, slots=True)
class CourseSkill:
    """A skill that a course teaches.

    `prerequisites` are names of other skills. `examples` are exercises, and `misconceptions` are
    mistakes that students often make. `line` is the skill's line in the file, and `places` are the
    lines of its keys.
    """

    name: str
    line: int = 0
    title: str | None = None
    description: str | None = None
    prerequisites: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    misconceptions: tuple[str, ...] = ()
    places: Mapping[tuple[str, ...], int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def shown_name(self) -> str:
        return self.title or self.name

    def line_of(self, *key: str) -> int:
        """Return the line of a key, or of a name in the key's list; else the line of the skill."""
        return self.places.get(key) or self.places.get(key[:1]) or self.line


def prerequisite_problems(skills: Sequence[CourseSkill]) -> list[Problem]:
    """Return a problem for each unknown prerequisite, and for each cycle."""
    names = {skill.name for skill in skills}
    problems = [
        Problem(
            skill.line_of("prerequisites", name),
            f'the prerequisite "{name}" is not a skill of this course. Add it as a [[skill]], or '
            "remove the name.",
        )
        for skill in skills
        for name in skill.prerequisites
        if name not in names
    ]
    return problems + [_cycle_problem(cycle, skills) for cycle in _cycles(skills)]


def _cycle_problem(cycle: Sequence[str], skills: Sequence[CourseSkill]) -> Problem:
    first = next(skill for skill in skills if skill.name == cycle[0])
    after = cycle[1 % len(cycle)]
    return Problem(
        first.line_of("prerequisites", after),
        f"these skills are prerequisites of each other: {' -> '.join([*cycle, cycle[0]])}. "
        "Remove one of these prerequisites.",
    )


def _cycles(skills: Sequence[CourseSkill]) -> Iterator[list[str]]:
    """Yield cycles of prerequisites, each as names in order.

    A cycle that is not yielded shares a skill with a yielded one.
    """
    needed = {skill.name: skill.prerequisites for skill in skills}
    finished: set[str] = set()
    for start, first_needed in needed.items():
        path = [start]
        following = [iter(first_needed)]
        while path and start not in finished:
            name = next(following[-1], None)
            if name is None:
                following.pop()
                finished.add(path.pop())
            elif name in path:
                yield path[path.index(name) :]
            elif name in needed and name not in finished:
                path.append(name)
                following.append(iter(needed[name]))
