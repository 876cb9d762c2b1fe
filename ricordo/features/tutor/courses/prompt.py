"""The prompt and the tools of courses' agents. A prompt names only tools that its agent has."""

import re
from collections.abc import Collection, Iterable, Iterator

from ricordo.features.tutor.courses.course_file import Course
from ricordo.memory.sections import Problem

# The tools of an agent whose course names none.
TUTOR_TOOLS = ("query_student", "conversation_search", "memory_insert", "memory_replace", "forget")
# Additional tools for agents of a course with skills.
SKILL_TOOLS = ("note_evidence", "propose_mastery")
_ARCHIVE = ("archival_memory_insert", "archival_memory_search")
_EDITS = re.compile(r"(?:memory_|core_memory_|archival_memory_insert)\w*")
_COUNTED = "You have three kinds of memory:"
_STORES = "When you learn something"
_FILES = ("<files>\n", "\n</files>\n")
_TOOL_NAME = re.compile(r"(?<![a-z0-9_])[a-z]+(?:_[a-z0-9]+)+")


def prompt_for(system: str, tool_names: Collection[str], *, has_files: bool) -> str:
    """Return the system prompt of all agents, without parts that need other tools.

    Args:
        system: The system prompt of an agent with all tools.
        tool_names: The tools of the agent.
        has_files: Whether the agent can open files.
    """
    lines = [line for line in system.split("\n") if _applies(line, tool_names)]
    text = "\n".join(lines)
    if text.count("\n- ") < system.count("\n- "):
        text = text.replace(_COUNTED, "Your memory:")
    return text if has_files else _without_files(text)


def _without_files(text: str) -> str:
    """Return the prompt without its section about files."""
    opening, closing = _FILES
    before, found, behind = text.partition(opening)
    _, found_end, after = behind.partition(closing)
    if not (found and found_end):
        return text
    return before + after.removeprefix("\n")


def _applies(line: str, tool_names: Collection[str]) -> bool:
    if line.startswith("- Recall memory "):
        return any("conversation_search" in name for name in tool_names)
    if line.startswith("- Archival memory "):
        return any(name in tool_names for name in _ARCHIVE)
    if line.startswith(_STORES):
        return any(_EDITS.fullmatch(name) for name in tool_names)
    return True


def missing_tools(
    course: Course, known_names: Collection[str], tools: Iterable[tuple[str, Collection[str]]]
) -> Iterator[Problem]:
    """Yield each tool that the text of an agent or a task names but may not call.

    Args:
        course: The course.
        known_names: The names of all tools on the server. Other names are not tools.
        tools: Pairs of an agent's name in the course and the names of its tools.

    Yields:
        A problem at the line of the instructions.
    """
    tools_by_agent = dict(tools)
    texts = [
        (agent.instructions, tools_by_agent[agent.name], "agent", agent.line_of("instructions"))
        for agent in course.agents
    ]
    for task in course.tasks:
        owner = "agent" if task.tools is None else "task"
        tools_here = tools_by_agent[task.agent] if task.tools is None else task.tools
        text = f"{task.instructions}\n{task.system or ''}"
        texts.append((text, tools_here, owner, task.line_of("instructions")))
    for text, tools_here, owner, line in texts:
        for name in dict.fromkeys(_TOOL_NAME.findall(text)):
            if name in known_names and name not in tools_here:
                yield Problem(
                    line,
                    f'the text names the tool "{name}", which is not in the "tools" of this {owner}.',
                )
