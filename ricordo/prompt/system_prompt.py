"""The system message: template, memory section and metadata.

It is rendered again only if something in it must change. The memory replaces `{CORE_MEMORY}` in the
template, or is appended if the template lacks it. Parts that change often come last, so that the
providers' prompt caches are used.

The memory section has the format of the retired Letta V1 server (§0.3 of
`docs/internals/blueprint.md`), with a few additions: a block's policy, its mark as shared, and
skills. A closing tag inside a value is changed, so that no text can end its block.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate

from ricordo.domain.agent import (
    AgentState,
    AgentType,
    OpenFile,
    PromptDirectory,
    PromptSkill,
)
from ricordo.domain.block import Block, Policy
from ricordo.domain.clock import to_datetime, zone
from ricordo.domain.hidden_text import UNSEEN_CLASS
from ricordo.domain.model import MemoryInPrompt
from ricordo.domain.tool import ClientSkill

PLACEHOLDER = "{CORE_MEMORY}"
_TODAY = "- The current system date is: "
_NUMBERED_TYPES: set[AgentType] = {
    "sleeptime_agent",
    "memgpt_v2_agent",
    "letta_v1_agent",
    "split_thread_agent",
}
_TOOL_FIRST_TYPES: set[AgentType] = {"react_agent", "workflow_agent"}
_INTRODUCTION = "The following memory blocks are currently engaged in your core memory unit:"
LINE_NUMBER_WARNING = (
    "# NOTE: Line numbers shown below (with arrows like '1→') are to help during editing. "
    "Do NOT include line number prefixes in your memory edit tool calls."
)
_RULES_INTRODUCTION = (
    "The following constraints define rules for tool usage and guide desired behavior. "
    "These rules must be followed to ensure "
    "proper tool execution and workflow. A single response may contain multiple tool calls."
)
# A policy is shown only if an edit needs more than a tool call. The first line is a wire fact.
_RULE_LINES: dict[Policy, str] = {
    "read_only": "- read_only=true\n",
    "propose": "- policy=propose (your edits wait for the owner)\n",
    "guarded": "- policy=guarded (your edits wait for the owner while you have read untrusted content)\n",
    "explicit": "- policy=explicit (your edits wait for the owner unless you quote the user's words that "
    "ask for them)\n",
}
_SKILLS_INTRODUCTION = (
    "Each skill is a folder of instructions and files for one kind of task. Before you do such a "
    "task, call open_skill with the name of the skill, and follow its instructions."
)
_SHARED = "- shared=true (everybody you talk with sees it)\n"
_OPENS = "<\uff1c\ufe64"
_SLASHES = "/\uff0f\u2044\u2215"
_SECTIONS = (
    "memory_blocks",
    "memory_metadata",
    "tool_usage_rules",
    "directories",
    "skills",
    "base_instructions",
    "workspace_instructions",
)
_IN_BLOCK = ("value", "description", "metadata")
_IN_DIRECTORY = ("value", "description", "instructions", "file", "directory")
_TAG_CHARACTERS = 2_000  # characters of tags that are listed
# Opening tags end their lines. Closing tags inside values were changed, so the first closing tag
# ends its section.
_SECTION = re.compile(r"<(memory_blocks|memory_metadata|tool_usage_rules|directories|skills)>\n")


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """A rendered system prompt, with digests of its sources.

    Attributes:
        memory: Digest of the template, the workspace's instructions and the memory section.
        date: Digest of the local date.
        archive: Digest of the archive's tags, and of the presence of passages.
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
        """Return whether the stored prompt is still valid.

        The memory section is compared. At the first step of a turn, the date and the archive are
        compared too.

        Args:
            stored_key: The key of the stored prompt. It is `key`, to which `key_after_edits` may
                have added the memory after edits.
            first_step: This is the first step of a turn.
            mode: With "turn" and "lazy", a prompt also stays valid if its memory changed only by
                edits that the transcript shows. With "turn" it stays valid until the next turn, and
                with "lazy" until the next day. With "lazy" the archive does not count.
        """
        memory, date, archive = (*stored_key.split(":"), "", "", "")[:3]
        may_be_older = mode == "lazy" or (mode == "turn" and not first_step)
        if may_be_older:
            memory = told_memory(stored_key)
        knows_memory = self.memory == memory
        if not first_step:
            return knows_memory
        return knows_memory and self.date == date and (mode == "lazy" or self.archive == archive)


def told_memory(stored_key: str) -> str:
    """Return the digest of the memory that a stored prompt and its transcript show together.

    If the transcript shows edits, this is not the digest of the memory in the prompt itself. So the
    prompt is rendered again if another writer has undone these edits.

    Args:
        stored_key: The key of the stored prompt, to which `key_after_edits` may have added the
            memory after edits.
    """
    memory, _, _, in_transcript = (*stored_key.split(":"), "", "", "", "")[:4]
    return in_transcript or memory


def key_after_edits(stored_key: str, memory: str) -> str:
    """Return the key of a stored prompt whose transcript shows the edits up to this memory.

    Args:
        stored_key: The key of the stored prompt, with or without earlier edits.
        memory: The digest of the memory after the edits, as in `SystemPrompt.memory`.
    """
    return ":".join((*(*stored_key.split(":"), "", "")[:3], memory))


def key_without_edits(stored_key: str) -> str:
    """Return the key of a stored prompt whose transcript may no longer show its edits.

    Args:
        stored_key: The key with which the prompt was stored; its first three parts stay.
    """
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

    Args:
        state: The agent with the blocks, directories, skills and archives to show.
        provider: The name of the model's provider, which decides about line numbers.
        now: The time in microseconds UTC, shown in the agent's time zone.
        recall_count: The number of messages outside the window.
        rule_lines: Sentences that describe the tool rules, one for each line.
        is_brief: The model is small: only the date and the count follow the memory.
        has_line_numbers: Number the lines of memory if the provider's models edit better with
            numbers.
    """
    agent = state.agent
    section = MemorySection(
        agent.agent_type,
        provider,
        _with_shown_texts(state) if state.shown_texts else state.blocks,
        tuple(rule_lines),
        has_line_numbers=has_line_numbers,
    )
    if state.directories:
        max_files = agent.max_files_open
        section = replace(section, directories=state.directories, max_files_open=max_files)
    if state.skills:
        section = replace(section, skills=state.skills)
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


def _with_shown_texts(state: AgentState) -> tuple[Block, ...]:
    """Return the blocks, with the texts that the prompt shows instead of stored ones."""
    return tuple(
        replace(block, value=state.shown_texts[block.shown_label])
        if block.rule == "read_only" and block.shown_label in state.shown_texts
        else block
        for block in state.blocks
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
        f"{_TODAY}{local:%A, %B %d, %Y}",
        f"- System prompt last recompiled: {local.strftime('%Y-%m-%d %I:%M:%S %p %Z%z')}",
        f"- {recall_count} previous messages between you and the user are stored in recall memory",
    ]
    if archived:
        lines.append(
            f"- {archived} total memories you created are stored in archival memory (use tools to "
            "access them)"
        )
    if tags:
        # Agents may copy tags from untrusted content. So tags stay on one line and cannot end the
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
    return f"{_TODAY}{local:%A, %B %d, %Y}{earlier}"


def with_skills(system: str, skills: Sequence[ClientSkill]) -> str:
    """Return the system message with the client's skills at its end.

    Args:
        system: The text of the system message.
        skills: The skills of this turn. Closing tags in their texts are changed.
    """
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
    """Return as many of the first tags as there is room for, and the number of the others."""
    lengths = accumulate(len(tag) + 2 for tag in tags)
    count = sum(length <= _TAG_CHARACTERS for length in lengths)
    rest = [f"and {len(tags) - count} more"] if count < len(tags) else []
    return ", ".join([*tags[:count], *rest])


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def sections(system: str) -> dict[str, str]:
    """Split a stored system message into its sections by their tags.

    `base` is the text outside all other sections. If two sections have the same name, the later one
    counts, since a tag in the template comes before our sections.

    Args:
        system: The text of the message.

    Returns:
        The text of each section by its tag; each includes its tags, `base` has none.
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


@dataclass(frozen=True, slots=True)
class MemorySection:
    """The content of the memory section.

    Attributes:
        provider: The name of the model's provider. Models of one provider edit better with line
            numbers.
        blocks: The blocks as the prompt shows them.
        rule_lines: Sentences that describe the tool rules.
        has_line_numbers: False leaves line numbers out for every provider, since the transcript may
            have newer edits than the section.
    """

    agent_type: AgentType
    provider: str
    blocks: tuple[Block, ...] = ()
    rule_lines: tuple[str, ...] = ()
    directories: tuple[PromptDirectory, ...] = ()
    skills: tuple[PromptSkill, ...] = ()
    max_files_open: int = 5
    has_line_numbers: bool = True


def render_memory(section: MemorySection) -> str:
    """Return the text of the memory section: blocks, rules, folders and skills.

    Args:
        section: The parts to show.
    """
    parts = [_blocks(section)]
    if section.rule_lines:
        parts.append(_rules(section.rule_lines))
    if section.directories:
        parts.append(_directories(section.directories, section.max_files_open))
    if section.skills:
        parts.append(_skills(section.skills))
    return "\n\n".join(part for part in parts if part)


def _blocks(section: MemorySection) -> str:
    if section.agent_type in _TOOL_FIRST_TYPES:
        return ""
    is_edited_by_lines = section.provider == "anthropic" and section.agent_type in _NUMBERED_TYPES
    numbered = section.has_line_numbers and is_edited_by_lines
    if not section.blocks and not numbered:
        return ""
    # In each block, the closing tags of all blocks are changed. Otherwise one block could forge the
    # end of another.
    tags = (*_IN_BLOCK, *(block.shown_label for block in section.blocks))
    warning = f"<warning>\n{LINE_NUMBER_WARNING}\n</warning>\n" if numbered else ""
    parts: list[str] = []
    for block in section.blocks:
        text = f"{block.value}\n"
        if numbered:
            lines = enumerate(block.value.split("\n"), 1)
            text = "".join(f"{number}→ {line}\n" for number, line in lines) if block.value else ""
        parts.append(
            f"<{block.shown_label}>\n<description>\n{disarm(block.description or '', *tags)}\n</description>\n"
            f"<metadata>\n{_RULE_LINES.get(block.rule, '')}{_SHARED if block.shared else ''}"
            f"- chars_current={len(block.value)}\n"
            # Tags in the value are changed after the lines are numbered, since a line number can
            # complete a tag. An example is a block labelled "5" whose fourth line ends with `</`.
            "- "
            f"chars_limit={block.limit}\n</metadata>\n{warning}<value>\n{disarm(text, *tags)}</value>\n</{block.shown_label}>\n"
        )
    rendered = "\n".join(parts)
    return f"<memory_blocks>\n{_INTRODUCTION}\n\n{rendered}\n</memory_blocks>"


def disarm(text: str, *tags: str) -> str:
    """Return the text with a backslash in each closing tag of a section, so that it ends none.

    Args:
        text: A text by others, such as a block's.
        *tags: Further names of tags whose end must not occur in the text.
    """
    has_sign = "<" in text or "\uff1c" in text or "\ufe64" in text
    return _closing(tags).sub(r"\1\\\2", text) if has_sign else text


@lru_cache(maxsize=1024)
def _closing(tags: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of closing tags with these names, as models may read them.

    Spacing, case and attributes do not matter, as in `< /value x>`. The same holds for invisible
    characters, and for wide ones that look the same.
    """
    unseen = f"[\\s{UNSEEN_CLASS}]*"
    names = "|".join(f"[{UNSEEN_CLASS}]*".join(map(_like, name)) for name in (*_SECTIONS, *tags))
    pattern = rf"([{_OPENS}]{unseen})([{_SLASHES}])(?={unseen}(?:{names})(?![\w-]))"
    return re.compile(pattern, re.IGNORECASE)


def _like(sign: str) -> str:
    wide = chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else ""
    if wide:
        return f"[{re.escape(sign)}{re.escape(wide)}]"
    return re.escape(sign)


def _rules(lines: Sequence[str]) -> str:
    return "\n".join(["<tool_usage_rules>", _RULES_INTRODUCTION, "", *lines, "</tool_usage_rules>"])


def _skills(skills: Sequence[PromptSkill]) -> str:
    """Return the section of skills, one line for each. A description cannot begin another line."""
    lines = [f"- {skill.name}: {disarm(' '.join(skill.description.split()))}" for skill in skills]
    return "\n".join(["<skills>", _SKILLS_INTRODUCTION, "", *lines, "</skills>"])


def _directories(directories: Sequence[PromptDirectory], max_files_open: int) -> str:
    open_files = sum(file.is_open for directory in directories for file in directory.files)
    limits = (
        f"<file_limits>\n- current_files_open={open_files}\n- "
        f"max_files_open={max_files_open}\n</file_limits>"
    )
    rendered: list[str] = []
    for directory in directories:
        lines = [f'<directory name="{disarm(directory.name, *_IN_DIRECTORY)}">']
        for tag, text in (
            ("description", directory.description),
            ("instructions", directory.instructions),
        ):
            lines += [f"<{tag}>{disarm(text, *_IN_DIRECTORY)}</{tag}>"] if text else []
        files = [_file(file) for file in directory.files]
        if directory.more:
            files.append(
                f"({directory.more} more files are closed and not named here. "
                "Find them with grep_files.)"
            )
        rendered.append("\n\n".join(["\n".join(lines), *files, "</directory>"]))
    return f"<directories>\n{limits}\n\n" + "\n\n".join(rendered) + "\n</directories>"


def _file(file: OpenFile) -> str:
    description, content = (
        f"<{tag}>\n{disarm(text, *_IN_DIRECTORY)}\n</{tag}>\n" if is_shown else ""
        for tag, text, is_shown in (
            ("description", file.description or "", bool(file.description)),
            ("value", file.content, file.is_open),
        )
    )
    return (
        f'<file status="{"open" if file.is_open else "closed"}" '
        f'name="{disarm(file.name, *_IN_DIRECTORY)}">\n{description}'
        f"<metadata>\n- chars_current={len(file.content)}\n- "
        f"chars_limit={file.limit}\n</metadata>\n{content}</file>"
    )
