"""Core memory as text: the sections of the system prompt that change with memory.

The format is the retired Letta V1 server's (blueprint §0.3), to the byte. Only a closing tag inside
a value is disarmed, so that no text can leave its block.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ricordo.domain.agent import AgentType, OpenFile, PromptDirectory
from ricordo.domain.block import Block, Policy
from ricordo.domain.hidden_text import UNSEEN_CLASS

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
# A policy is shown only where edits are not simply applied. The first line is a wire fact.
_RULE_LINES: dict[Policy, str] = {
    "read_only": "- read_only=true\n",
    "propose": "- policy=propose (your edits wait for the owner)\n",
    "guarded": "- policy=guarded (your edits wait for the owner while you have read untrusted content)\n",
    "explicit": "- policy=explicit (your edits wait for the owner unless you quote the user's words that "
    "ask for them)\n",
}
_SHARED = "- shared=true (everybody you talk with sees it)\n"
_OPENS = "<\uff1c\ufe64"
_SLASHES = "/\uff0f\u2044\u2215"
_SECTIONS = (
    "memory_blocks",
    "memory_metadata",
    "tool_usage_rules",
    "directories",
    "base_instructions",
    "workspace_instructions",
)
_IN_BLOCK = ("value", "description", "metadata")
_IN_DIRECTORY = ("value", "description", "instructions", "file", "directory")


@dataclass(frozen=True, slots=True)
class MemorySection:
    """The content of the memory section.

    `provider` is the model's: one provider's models edit better with line numbers. They are left
    out without `has_line_numbers`, where edits may be newer than the section.
    """

    agent_type: AgentType
    provider: str
    blocks: tuple[Block, ...] = ()
    rule_lines: tuple[str, ...] = ()
    directories: tuple[PromptDirectory, ...] = ()
    max_files_open: int = 5
    has_line_numbers: bool = True


def render_memory(section: MemorySection) -> str:
    parts = [_blocks(section)]
    if section.rule_lines:
        parts.append(_rules(section.rule_lines))
    if section.directories:
        parts.append(_directories(section.directories, section.max_files_open))
    return "\n\n".join(part for part in parts if part)


def is_numbered(agent_type: AgentType, provider: str) -> bool:
    return provider == "anthropic" and agent_type in _NUMBERED_TYPES


def _blocks(section: MemorySection) -> str:
    if section.agent_type in _TOOL_FIRST_TYPES:
        return ""
    numbered = section.has_line_numbers and is_numbered(section.agent_type, section.provider)
    if not section.blocks and not numbered:
        return ""
    # Tags of all blocks are disarmed in each block: otherwise one could forge the end of another.
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
            f"<metadata>\n{_RULE_LINES.get(block.rule, '')}{_SHARED if block.shared else ''}- "
            f"chars_current={len(block.value)}\n"
            # The value is disarmed last, since a line's number can complete a tag: in a block
            # labelled "5" with `</` at the end of its fourth line.
            "- "
            f"chars_limit={block.limit}\n</metadata>\n{warning}<value>\n{disarm(text, *tags)}</value>\n</{block.shown_label}>\n"
        )
    rendered = "\n".join(parts)
    return f"<memory_blocks>\n{_INTRODUCTION}\n\n{rendered}\n</memory_blocks>"


def disarm(text: str, *tags: str) -> str:
    has_sign = "<" in text or "\uff1c" in text or "\ufe64" in text
    return _closing(tags).sub(r"\1\\\2", text) if has_sign else text


@lru_cache(maxsize=1024)
def _closing(tags: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of closing tags of these names, as models read them.

    Spacing, case and attributes do not matter, as in `< /value x>`. Nor do invisible characters,
    and wide ones that look the same.
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
