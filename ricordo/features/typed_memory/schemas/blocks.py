"""The two blocks of typed memory, and three personas.

Each is read from a block's text and written to it, in the bracket format (`brackets.py`). `fitted`
returns the part of a block that fits its limits, which are numbers of values and of characters.
Compare it with the complete block to see which values are missing.
"""

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from ricordo.errors import Invalid
from ricordo.features.typed_memory.schemas import brackets
from ricordo.features.typed_memory.schemas.rotation import LEAST_CHARS, default_max_chars

_DOTS = "..."
_NOTES_HELD = 10
_ALL = sys.maxsize


class SessionState(StrEnum):
    """The state of the session with the user."""

    IDLE = "idle"
    ACTIVE_TASK = "active_task"
    WAITING_INPUT = "waiting_input"
    THINKING = "thinking"
    ERROR_RECOVERY = "error_recovery"


class TypedBlock:
    """A block that is read from text and written to it.

    `TAGS` maps each tag to its fields (some texts, or one list) and to the separator of the values.
    `NUMBERS` limits the values in each list; lists lose values in this order. With `KEEPS_NEWEST`
    they lose their first values, otherwise their last ones. `CUT` names the texts that are
    shortened if the block is still too long.
    """

    TAGS: ClassVar[Mapping[str, tuple[tuple[str, ...], str]]]
    NUMBERS: ClassVar[Mapping[str, int]]
    CUT: ClassVar[tuple[str, ...]]
    KEEPS_NEWEST: ClassVar[bool]
    other_lines: list[str]

    def to_memory_string(self, max_chars: int | None = None) -> str:
        """Return the text of the block, cut to `max_chars` characters.

        A persona keeps the first five capabilities, four fields of expertise and three constraints.
        A human block keeps the newest four preferences, three facts and three notes.

        Args:
            max_chars: The most characters; None: CORE_MEMORY_MAX_CHARS, else 1500.

        Raises:
            Invalid: Not even names and a task fit.
        """
        return self.fitted(max_chars).to_full_string()

    def to_full_string(self) -> str:
        """Return the whole text, of any length.

        Raises Invalid if a value is not a text.
        """
        whole = self.cleaned()
        lines = []
        for tag, (names, separator) in self.TAGS.items():
            if names[0] in self.NUMBERS:
                values = list(getattr(whole, names[0]))
            else:
                values = [getattr(whole, name) or "" for name in names]
            while values and not values[-1]:
                values.pop()
            if values:
                lines.append(f"[{tag}] {brackets.join(values, separator).lstrip()}")
        return "\n".join([*lines, *brackets.write_lines(whole.other_lines, self.TAGS)])

    def fitted(self, max_chars: int | None = None) -> Self:
        """Return the part of the block that fits its limits.

        Args:
            max_chars: The most characters of the text; None: the default limit.

        Raises:
            Invalid: The texts that may be cut are too short to make room.
        """
        limit = default_max_chars() if max_chars is None else max_chars
        block = self.shed(limit)
        while (excess := len(block.to_full_string()) - limit) > 0:
            texts: dict[str, str] = {name: getattr(block, name) or "" for name in self.CUT}
            name, value = max(texts.items(), key=lambda text: len(text[1]))
            if len(value) <= len(_DOTS) + 1:
                raise Invalid(
                    f"A block of {limit} characters has no room for this memory. Allow at least "
                    f"{LEAST_CHARS}."
                )
            start = value[: max(1, len(value) - excess - len(_DOTS))].rstrip(" .\n")
            block = block._with(**{name: start + _DOTS})
        return block

    def shed(self, target_chars: int | None = None) -> Self:
        """Return the block with at most `NUMBERS` values in each list.

        Texts are not changed.

        Args:
            target_chars: Lists lose more values until the text has at most this many characters, or
                until they are empty; None: no limit.

        Raises:
            Invalid: A value is not text.
        """
        block = self.cleaned()
        for name, number in self.NUMBERS.items():
            values = getattr(block, name)
            block = block._with(
                **{name: values[-number:] if self.KEEPS_NEWEST else values[:number]}
            )
        for minimum in (1, 0) if target_chars is not None else ():
            for name in self.NUMBERS:
                block = block._without(
                    name, len(block.to_full_string()) - (target_chars or 0), minimum
                )
        return block

    def cleaned(self) -> Self:
        """Return a copy with normalized values.

        Such values do not change when they are written and read back. Raises Invalid if a value is
        not a text.
        """
        return type(self)(**self._cleaned_values())

    @classmethod
    def from_memory_string(cls, text: str) -> Self:
        """Read the text of a block; unknown lines become `other_lines`.

        If a tag for texts occurs on several lines, the last line counts, since agents add a line
        instead of changing one.

        Args:
            text: The text of the block, as `to_full_string` wrote it and agents changed it.

        Raises:
            Invalid: The state is unknown, or a persona has no line `[IDENTITY] name | role`.
        """
        by_tag, other_lines = brackets.read_lines(text, cls.TAGS)
        values: dict[str, Any] = {"other_lines": other_lines}
        for tag, (names, separator) in cls.TAGS.items():
            lines = by_tag.get(tag, [])
            if names[0] in cls.NUMBERS:
                # Agents add lines instead of changing one, so all lines with this tag are read as
                # one.
                values[names[0]] = [
                    value for line in lines for value in brackets.split(line, separator) if value
                ]
                continue
            # Further separators belong to the second value.
            first, *rest = brackets.split("".join(lines[-1:]), separator)
            between = " | " if separator == "|" else f"{separator} "
            values.update(zip(names, (first, between.join(filter(None, rest))), strict=False))
        return cls(**values).cleaned()

    @classmethod
    def has_superseded(cls, text: str) -> bool:
        """Return True if a later line of the text replaces an earlier one.

        Args:
            text: The text of a block of this type.
        """
        by_tag, _ = brackets.read_lines(text, cls.TAGS)
        return any(
            len(by_tag.get(tag, ())) > 1
            for tag, (names, _) in cls.TAGS.items()
            if names[0] not in cls.NUMBERS
        )

    def _cleaned_values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for block_field in fields(cast(Any, self)):
            value = getattr(self, block_field.name)
            if block_field.name == "session_state":
                values[block_field.name] = _state(value or SessionState.IDLE)
            elif block_field.name == "other_lines":
                values[block_field.name] = brackets.clean_lines(value)
            elif block_field.name in self.NUMBERS:
                values[block_field.name] = brackets.clean_all(value)
            else:
                empty = "" if block_field.default is MISSING else block_field.default
                values[block_field.name] = brackets.clean(value or "") or empty
        return values

    def _with(self, **changes: Any) -> Self:
        changed: Self = replace(cast(Any, self), **changes)
        return changed

    def _without(self, name: str, excess: int, minimum: int) -> Self:
        """Remove values of a list until the text is `excess` characters shorter.

        At least `minimum` values stay.
        """
        values = list(getattr(self, name))
        while excess > 0 and len(values) > minimum:
            value = values.pop(0 if self.KEEPS_NEWEST else -1)
            excess -= len(brackets.escape(value)) + (1 if name == "other_lines" else 2)
        return self._with(**{name: values})


@dataclass(frozen=True, kw_only=True)
class PersonaBlock(TypedBlock):
    """The agent's persona, which is stable across sessions.

    `other_lines` are the lines of its text without a known tag. Authors put the most important
    values first, so lists lose their last values first. Raises Invalid if the role is missing or a
    value is not a text.
    """

    TAGS = {  # noqa: RUF012 - a ClassVar of the base
        "IDENTITY": (("name", "role"), "|"),
        "CAPABILITIES": (("capabilities",), ","),
        "EXPERTISE": (("expertise",), ","),
        "STYLE": (("tone", "verbosity"), ","),
        "CONSTRAINTS": (("constraints",), ";"),
    }
    NUMBERS = {  # noqa: RUF012
        "other_lines": _ALL,
        "expertise": 4,
        "capabilities": 5,
        "constraints": 3,
    }
    CUT = ("name", "role", "tone", "verbosity")
    KEEPS_NEWEST = False

    name: str = "Assistant"
    role: str
    capabilities: list[str] = field(default_factory=list)
    tone: str = "professional"
    verbosity: str = "concise"
    constraints: list[str] = field(default_factory=list)
    expertise: list[str] = field(default_factory=list)
    other_lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Store cleaned values, which do not change when they are written and read back.
        for name, value in self._cleaned_values().items():
            object.__setattr__(self, name, value)
        if not self.role:
            raise Invalid("A persona needs a role. Write the agent's purpose in a few words.")

    def cleaned(self) -> Self:
        return self

    @classmethod
    def from_memory_string(cls, text: str) -> Self:
        """Read the text of a persona; unknown lines become `other_lines`.

        Args:
            text: The text of the block.

        Raises:
            Invalid: It has no line `[IDENTITY] name | role`.
        """
        if not brackets.read_lines(text, ("IDENTITY",))[0]:
            raise Invalid(
                "This text has no identity of the agent. Add a line [IDENTITY] name | role."
            )
        return super().from_memory_string(text)


@dataclass(kw_only=True)
class HumanBlock(TypedBlock):
    """The user and the current task, which change often.

    `other_lines` are the lines of its text without a known tag.
    """

    TAGS = {  # noqa: RUF012
        "USER": (("name", "role"), "|"),
        "TASK": (("current_task",), ""),
        "STATE": (("session_state",), ""),
        "PREFS": (("preferences",), ";"),
        "FACTS": (("facts",), ";"),
        "CONTEXT": (("context_notes",), ";"),
    }
    NUMBERS = {  # noqa: RUF012
        "context_notes": 3,
        "other_lines": _ALL,
        "facts": 3,
        "preferences": 4,
    }
    CUT = ("name", "role", "current_task")
    KEEPS_NEWEST = True

    name: str | None = None
    role: str | None = None
    current_task: str | None = None
    session_state: SessionState = SessionState.IDLE
    preferences: list[str] = field(default_factory=list)
    context_notes: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    other_lines: list[str] = field(default_factory=list)

    def set_task(self, task: str) -> None:
        """Start a task.

        Args:
            task: One short text.

        Raises:
            Invalid: It is empty, or not a text.
        """
        self.current_task = _require(task, "task")
        self.session_state = SessionState.ACTIVE_TASK

    def clear_task(self) -> None:
        """End the task; the state is idle."""
        self.current_task = None
        self.session_state = SessionState.IDLE

    def add_context_note(self, note: str) -> None:
        """Add a note; the last ten are kept. Repeating the last note adds nothing.

        Args:
            note: The note, which is stripped.

        Raises:
            Invalid: It is empty, or not a text.
        """
        note = _require(note, "note")
        if self.context_notes[-1:] != [note]:
            self.context_notes = [*self.context_notes, note][-_NOTES_HELD:]

    def add_preference(self, preference: str) -> None:
        """Add a preference; a known one becomes the newest.

        Args:
            preference: The preference, which is stripped.

        Raises:
            Invalid: It is empty, or not a text.
        """
        self.preferences = _with_newest(self.preferences, _require(preference, "preference"))

    def add_fact(self, fact: str) -> None:
        """Add a fact about the user; a known one becomes the newest.

        Args:
            fact: One short text.

        Raises:
            Invalid: It is empty, or not a text.
        """
        self.facts = _with_newest(self.facts, _require(fact, "fact"))

    def newest(self) -> Self:
        """Return the block with only the newest value of each list.

        Raises Invalid if a value is not a text.
        """
        whole = self.cleaned()
        return whole._with(**{name: getattr(whole, name)[-1:] for name in self.NUMBERS})


def _with_newest(values: list[str], newest: str) -> list[str]:
    return [*(value for value in values if value != newest), newest]


def _state(value: str) -> SessionState:
    try:
        return SessionState(value)
    except ValueError:
        states = ", ".join(SessionState)
        raise Invalid(
            f"There is no session state {str(value)[:40]!r}. Use one of: {states}."
        ) from None


def _require(value: str, noun: str) -> str:
    text = brackets.clean(value)
    if not text:
        raise Invalid(f"This {noun} is empty. Write its text.")
    return text


_PERSONAS = tomllib.loads(Path(__file__).with_name("personas.toml").read_text("utf-8"))
DEFAULT_PERSONA = PersonaBlock(**_PERSONAS["default"])
CODING_ASSISTANT_PERSONA = PersonaBlock(**_PERSONAS["coding_assistant"])
RESEARCH_ASSISTANT_PERSONA = PersonaBlock(**_PERSONAS["research_assistant"])
