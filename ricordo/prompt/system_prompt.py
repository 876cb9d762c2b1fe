"""The system message: template, memory section and metadata.

It is rendered again only when it must change. The memory replaces `{CORE_MEMORY}` in the template,
or is appended where the template lacks it. The parts that change often stand last, so that
providers' prompt caches hit.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from itertools import accumulate

from ricordo.domain.agent import AgentState
from ricordo.domain.clock import to_datetime, zone
from ricordo.domain.model import MemoryInPrompt
from ricordo.domain.tool import ClientSkill
from ricordo.prompt.memory import MemorySection, disarm, render_memory

PLACEHOLDER = "{CORE_MEMORY}"
_TAG_CHARACTERS = 2_000  # characters of tags that are listed
# Tags stand at line ends. A closing tag inside a value was disarmed, so the first closing tag ends
# its section.
_SECTION = re.compile(r"<(memory_blocks|memory_metadata|tool_usage_rules|directories)>\n")


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """A rendered system prompt, with digests of its sources.

    Attributes:
        memory: Digest of the template and the memory section.
        date: Digest of the local date.
        archive: Digest of whether the archive has passages, and of its tags.
    """

    text: str
    memory: str
    date: str
    archive: str

    @property
    def key(self) -> str:
        return f"{self.memory}:{self.date}:{self.archive}"

    def is_current(
        self, stored_key: str, *, first_step: bool, mode: MemoryInPrompt = "step"
    ) -> bool:
        """Return whether the stored prompt can stay.

        The memory section decides; at a turn's first step the date and the archive count too. The
        modes "turn" and "lazy" also keep a prompt whose memory has changed only by edits in the
        transcript behind it: "turn" until the next turn, "lazy" until the next day. In "lazy" mode
        the archive does not count.
        """
        memory, date, archive, in_transcript = (*stored_key.split(":"), "", "", "", "")[:4]
        knows_memory = self.memory == memory
        if mode == "lazy" or (mode == "turn" and not first_step):
            knows_memory = self.memory in (memory, in_transcript)
        if not first_step:
            return knows_memory
        return knows_memory and self.date == date and (mode == "lazy" or self.archive == archive)


def key_after_edits(stored_key: str, prompt: SystemPrompt) -> str:
    """Return the key of a stored prompt whose transcript tells the edits up to this prompt."""
    return ":".join((*(*stored_key.split(":"), "", "")[:3], prompt.memory))


def key_without_edits(stored_key: str) -> str:
    """Return the key of a stored prompt whose transcript may have lost edits."""
    return ":".join(stored_key.split(":")[:3])


def system_prompt(
    state: AgentState,
    provider: str,
    now: int,
    *,
    recall_count: int,
    rule_lines: Sequence[str] = (),
    is_brief: bool = False,
    has_line_numbers: bool = True,
) -> SystemPrompt:
    """Return the system prompt for this state.

    `recall_count` is the number of messages outside the window; `rule_lines` describe the rules.
    With `is_brief`, for a small model, only the date and the count follow the memory. With
    `has_line_numbers` the lines of memory are numbered for models that edit better with that.
    """
    agent = state.agent
    section = MemorySection(
        agent.agent_type,
        provider,
        state.blocks,
        tuple(rule_lines),
        has_line_numbers=has_line_numbers,
    )
    if state.directories:
        max_files = agent.max_files_open
        section = replace(section, directories=state.directories, max_files_open=max_files)
    memory = render_memory(section)
    local = to_datetime(now).astimezone(zone(agent.timezone))
    tags = sorted({tag for archive in state.archives for tag in archive.tags})
    if is_brief:
        metadata = _brief(local, recall_count)
    else:
        metadata = _metadata(state, local, recall_count, tags)
    template = agent.system
    instructions = _instructions(state.instructions) if state.instructions else ""
    body = "\n\n".join(filter(None, (instructions, memory, metadata)))
    if PLACEHOLDER in template:
        text = template.replace(PLACEHOLDER, body)
    else:
        text = f"{template}\n\n{body}"
    has_archive = any(archive.passage_count for archive in state.archives)
    return SystemPrompt(
        text=text,
        memory=_digest(template, *([instructions] if instructions else []), memory),
        date=_digest(local.date().isoformat()),
        archive=_digest(str(has_archive), *tags),
    )


def _instructions(text: str) -> str:
    """Return the section with the instructions of a file of the workspace."""
    return f"<workspace_instructions>\n{disarm(text)}\n</workspace_instructions>"


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
        # Agents may copy tags from untrusted content: they get one line, and cannot end the
        # section.
        lines.append(
            disarm(
                "- Available archival memory tags: "
                f"{_listed([' '.join(tag.split()) for tag in tags])}"
            )
        )
    return "<memory_metadata>\n" + "\n".join(lines) + "\n</memory_metadata>"


def _brief(local: datetime, recall_count: int) -> str:
    """Return the metadata for a small model: date and number of searchable messages."""
    if recall_count:
        earlier = f"\n- {recall_count} earlier messages are no longer in view; search finds them."
    else:
        earlier = ""
    return _date_line(local) + earlier


def _date_line(local: datetime) -> str:
    return f"- The current system date is: {local.strftime('%A, %B %d, %Y')}"


def with_skills(system: str, skills: Sequence[ClientSkill]) -> str:
    """Return the system message with the client's skills."""
    if not skills:
        return system
    listed = "\n".join(
        "<skill>\n"
        + "".join(
            f"<{name}>{disarm(text, 'available_skills', 'skill', name)}</{name}>\n"
            for name, text in (
                ("name", skill.name),
                ("description", skill.description),
                ("location", skill.location),
            )
            if text
        )
        + "</skill>"
        for skill in skills
    )
    return f"{system}\n\n<available_skills>\n{listed}\n</available_skills>"


def _listed(tags: Sequence[str]) -> str:
    """Return the first tags that have room, and the number of the others."""
    lengths = accumulate(len(tag) + 2 for tag in tags)
    count = sum(length <= _TAG_CHARACTERS for length in lengths)
    rest = [f"and {len(tags) - count} more"] if count < len(tags) else []
    return ", ".join([*tags[:count], *rest])


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def sections(system: str) -> dict[str, str]:
    """Split a stored system message into its sections by their tags.

    `base` is the text outside all other sections. Of two sections with one name the later one
    counts: the template may contain the tag, and our sections follow it.
    """
    spans: dict[str, tuple[int, int]] = {}
    without_end: set[str] = set()
    position = 0
    for opening in _SECTION.finditer(system):
        name = opening[1]
        if opening.start() < position or name in without_end:
            continue
        if (end := system.find(f"\n</{name}>", opening.end())) < 0:
            without_end.add(name)
            continue
        position = end + len(f"\n</{name}>")
        spans[name] = opening.start(), position
    base = []
    position = 0
    for begin, end in sorted(spans.values()):
        base.append(system[position:begin].strip())
        position = end
    base.append(system[position:].strip())
    return {"base": "\n\n".join(filter(None, base))} | {
        name: system[slice(*span)] for name, span in spans.items()
    }
