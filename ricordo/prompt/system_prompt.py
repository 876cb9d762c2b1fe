"""The system message: template, memory section and metadata, put together and rebuilt only when it must be.

`{CORE_MEMORY}` in the template is replaced, or the memory appended where the template lacks it. What changes often stands last,
so that providers' prompt caches hit.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from itertools import accumulate

from ricordo.domain.agent import AgentState
from ricordo.domain.clock import to_datetime, zone
from ricordo.domain.tool import ClientSkill
from ricordo.prompt.memory import MemorySection, disarm, render_memory

PLACEHOLDER = "{CORE_MEMORY}"
_TAGS_ROOM = 2_000  # characters of tags that are listed
# The tags stand at the ends of lines. A closing tag inside a value was disarmed, so the first one ends its section.
_SECTION = re.compile(r"<(memory_blocks|memory_metadata|tool_usage_rules|directories)>\n")


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """A system prompt as it should be now. Two keys tell from what it was made: see `key` and `is_current`."""

    text: str
    stable: str
    daily: str

    @property
    def key(self) -> str:
        return f"{self.stable}:{self.daily}"

    def is_current(self, stored_key: str, *, first_step: bool) -> bool:
        """Whether the stored prompt can stay: the memory section decides, at a turn's first step the day and the archive too."""
        if first_step:
            return stored_key == self.key
        return stored_key.partition(":")[0] == self.stable


def system_prompt(
    state: AgentState,
    provider: str,
    now: int,
    *,
    recall_count: int,
    rule_lines: Sequence[str] = (),
    is_brief: bool = False,
) -> SystemPrompt:
    """The system prompt for this state. `recall_count` counts the messages outside the window; `rule_lines` tell the rules.

    With `is_brief`, for a small model, only the date and the count stand behind the memory.
    """
    agent = state.agent
    shown = (state.blocks, tuple(rule_lines), state.directories, agent.max_files_open)
    memory = render_memory(MemorySection(agent.agent_type, provider, *shown))
    local = to_datetime(now).astimezone(zone(agent.timezone))
    tags = sorted({tag for archive in state.archives for tag in archive.tags})
    if is_brief:
        metadata = _brief(local, recall_count)
    else:
        metadata = _metadata(state, local, recall_count, tags)
    template = agent.system
    told = _instructions(state.instructions)
    body = "\n\n".join(filter(None, (told, memory, metadata)))
    if PLACEHOLDER in template:
        text = template.replace(PLACEHOLDER, body)
    else:
        text = f"{template}\n\n{body}"
    has_archive = any(archive.passage_count for archive in state.archives)
    stable = _digest(template, *([told] if told else []), memory)
    return SystemPrompt(
        text=text, stable=stable, daily=_digest(local.date().isoformat(), str(has_archive), *tags)
    )


def _instructions(text: str) -> str:
    """The section with what a file of the workspace tells the agent."""
    if text:
        return f"<workspace_instructions>\n{disarm(text)}\n</workspace_instructions>"
    return ""


def _metadata(state: AgentState, local: datetime, recall_count: int, tags: Sequence[str]) -> str:
    conversation = state.conversation
    archived = sum(archive.passage_count for archive in state.archives)
    lines = [
        f"- AGENT_ID: {state.agent.id}",
        f"- CONVERSATION_ID: {'default' if conversation.is_default else conversation.id}",
        _date_line(local),
        f"- System prompt last recompiled: {local.strftime('%Y-%m-%d %I:%M:%S %p %Z%z')}",
        f"- {recall_count} previous messages between you and the user are stored in recall memory",
    ]
    if archived:
        lines.append(
            f"- {archived} total memories you created are stored in archival memory (use tools to "
            "access them)"
        )
    if tags:
        # Agents choose tags, perhaps from what they read somewhere: one line, and no way out of the section.
        lines.append(
            disarm(
                "- Available archival memory tags: "
                f"{_listed([' '.join(tag.split()) for tag in tags])}"
            )
        )
    return "<memory_metadata>\n" + "\n".join(lines) + "\n</memory_metadata>"


def _brief(local: datetime, recall_count: int) -> str:
    """The metadata for a small model: the date, and whether there is something to search."""
    if recall_count:
        earlier = f"\n- {recall_count} earlier messages are no longer in view; search finds them."
    else:
        earlier = ""
    return _date_line(local) + earlier


def _date_line(local: datetime) -> str:
    return f"- The current system date is: {local.strftime('%A, %B %d, %Y')}"


def with_skills(system: str, skills: Sequence[ClientSkill]) -> str:
    """The system message with the skills that the client has; as it is where there are none."""
    if not skills:
        return system
    listed = "\n".join(
        "<skill>\n"
        + "".join(
            f"<{name}>{disarm(text, 'available_skills', 'skill', name)}</{name}>\n"
            for name, text in (
                ("name", one.name),
                ("description", one.description),
                ("location", one.location),
            )
            if text
        )
        + "</skill>"
        for one in skills
    )
    return f"{system}\n\n<available_skills>\n{listed}\n</available_skills>"


def _listed(tags: Sequence[str]) -> str:
    """The first tags, as many as have room, and how many there are more."""
    lengths = accumulate(len(tag) + 2 for tag in tags)
    shown = sum(length <= _TAGS_ROOM for length in lengths)
    rest = [f"and {len(tags) - shown} more"] if shown < len(tags) else []
    return ", ".join([*tags[:shown], *rest])


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def sections(system: str) -> dict[str, str]:
    """The sections of a system message by their tags, as it is stored; `base` is all that belongs to no other section.

    Where one seems to be there twice, the later one is ours.
    """
    found: dict[str, tuple[int, int]] = {}
    without_end: set[str] = set()
    place = 0
    for opening in _SECTION.finditer(system):
        name = opening[1]
        if opening.start() < place or name in without_end:
            continue
        if (end := system.find(f"\n</{name}>", opening.end())) < 0:
            without_end.add(name)
            continue
        place = end + len(f"\n</{name}>")
        found[name] = opening.start(), place
    base = []
    place = 0
    for begin, end in sorted(found.values()):
        base.append(system[place:begin].strip())
        place = end
    base.append(system[place:].strip())
    return {"base": "\n\n".join(filter(None, base))} | {
        name: system[slice(*span)] for name, span in found.items()
    }
