"""The two blocks of typed memory, and three personas. Each is read from a block's text and written to it.

The text has the bracket format (`brackets.py`). `fitted` returns the part that fits the block's limits, by number and in
characters; compare it with the whole to see what is left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self, TypeVar

from ricordo.errors import Invalid
from ricordo.features.typed_memory import brackets
from ricordo.features.typed_memory.rotation import LEAST_CHARS, default_max_chars

_Typed = TypeVar("_Typed", "PersonaBlock", "HumanBlock")
_DOTS = "..."
_NOTES_HELD = 10
# How many of each are written.
_PERSONA_NUMBERS = {"capabilities": 5, "expertise": 4, "constraints": 3}
_HUMAN_NUMBERS = {"preferences": 4, "facts": 3, "context_notes": 3}
_PERSONA_TAGS = ("IDENTITY", "CAPABILITIES", "EXPERTISE", "STYLE", "CONSTRAINTS")
# The lists of a human block, in the order in which they lose their oldest.
LISTS = ("context_notes", "other_lines", "facts", "preferences")
_HUMAN_TAGS = ("USER", "TASK", "STATE", "PREFS", "FACTS", "CONTEXT")


class SessionState(StrEnum):
    """What the user is doing."""

    IDLE = "idle"
    ACTIVE_TASK = "active_task"
    WAITING_INPUT = "waiting_input"
    THINKING = "thinking"
    ERROR_RECOVERY = "error_recovery"


@dataclass(frozen=True, kw_only=True)
class PersonaBlock:
    """The agent's persona, which is stable across sessions. `other_lines` are the lines of its text without a known tag.

    Raises Invalid if the role is missing or a value is not a text.
    """

    name: str = "Assistant"
    role: str
    capabilities: list[str] = field(default_factory=list)
    tone: str = "professional"
    verbosity: str = "concise"
    constraints: list[str] = field(default_factory=list)
    expertise: list[str] = field(default_factory=list)
    other_lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Values are stored as they are written and read back.
        cleaned = {name: brackets.clean(getattr(self, name)) for name in ("name", "role", "tone", "verbosity")}
        empty = {"name": "Assistant", "tone": "professional", "verbosity": "concise"}
        for name, value in cleaned.items():
            object.__setattr__(self, name, value or empty.get(name, ""))
        for name in _PERSONA_NUMBERS:
            object.__setattr__(self, name, brackets.clean_all(getattr(self, name)))
        object.__setattr__(self, "other_lines", brackets.clean_lines(self.other_lines))
        if not self.role:
            raise Invalid("A persona needs a role. Say in a few words what the agent is there for.")

    def to_memory_string(self, max_chars: int | None = None) -> str:
        """Return the text of the block, at most `max_chars` characters (default: CORE_MEMORY_MAX_CHARS, else 1500).

        The first five capabilities, four fields of expertise and three constraints are written. Raises Invalid if a name and a
        role do not fit.
        """
        return self.fitted(max_chars).to_full_string()

    def to_full_string(self) -> str:
        """Return the text with everything in it, of any length."""
        lines = [f"[IDENTITY] {brackets.join((self.name, self.role), '|')}"]
        lines += _line("CAPABILITIES", self.capabilities, ",")
        lines += _line("EXPERTISE", self.expertise, ",")
        lines += _line("STYLE", (self.tone, self.verbosity), ",")
        lines += _line("CONSTRAINTS", self.constraints, ";")
        return "\n".join([*lines, *brackets.write_lines(self.other_lines, _PERSONA_TAGS)])

    def fitted(self, max_chars: int | None = None) -> "PersonaBlock":
        """Return the part that is written. Raises Invalid."""
        limit = default_max_chars() if max_chars is None else max_chars
        first = {name: getattr(self, name)[:number] for name, number in _PERSONA_NUMBERS.items()}
        kept = replace(self, **first)
        for name in ("other_lines", "expertise", "capabilities", "constraints"):
            # Authors put first what matters most.
            kept = _without(kept, name, limit, is_first_kept=True)
        return _cut(kept, ("name", "role", "tone", "verbosity"), limit)

    @classmethod
    def from_memory_string(cls, text: str) -> Self:
        """Read the text of a block; unknown lines become `other_lines`.

        Raises Invalid unless exactly one line says `[IDENTITY] name | role`.
        """
        found, others = brackets.read_lines(text, _PERSONA_TAGS)
        identity = _single(found, "IDENTITY")
        if identity is None:
            raise Invalid("This text has no identity of the agent. Add a line [IDENTITY] name | role.")
        name, role = _pair(identity, "|")
        tone, verbosity = _pair(_single(found, "STYLE") or "", ",")
        return cls(
            name=name,
            role=role,
            capabilities=_several(found, "CAPABILITIES", ","),
            tone=tone,
            verbosity=verbosity,
            constraints=_several(found, "CONSTRAINTS", ";"),
            expertise=_several(found, "EXPERTISE", ","),
            other_lines=others,
        )


@dataclass(kw_only=True)
class HumanBlock:
    """The user and the current task, which change often. `other_lines` are the lines of its text without a known tag."""

    name: str | None = None
    role: str | None = None
    current_task: str | None = None
    session_state: SessionState = SessionState.IDLE
    preferences: list[str] = field(default_factory=list)
    context_notes: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    other_lines: list[str] = field(default_factory=list)

    def set_task(self, task: str) -> None:
        """Start a task. Raises Invalid for an empty one."""
        self.current_task = _require(task, "task")
        self.session_state = SessionState.ACTIVE_TASK

    def clear_task(self) -> None:
        """End the task; the state is idle."""
        self.current_task = None
        self.session_state = SessionState.IDLE

    def add_context_note(self, note: str) -> None:
        """Add a note; the last ten are kept. Repeating the last note adds nothing."""
        note = _require(note, "note")
        if self.context_notes[-1:] != [note]:
            self.context_notes = [*self.context_notes, note][-_NOTES_HELD:]

    def add_preference(self, preference: str) -> None:
        """Add a preference; a known one becomes the newest."""
        preference = _require(preference, "preference")
        self.preferences = [*(known for known in self.preferences if known != preference), preference]

    def add_fact(self, fact: str) -> None:
        """Add a fact about the user; a known one becomes the newest."""
        fact = _require(fact, "fact")
        self.facts = [*(known for known in self.facts if known != fact), fact]

    def to_memory_string(self, max_chars: int | None = None) -> str:
        """Return the text of the block, at most `max_chars` characters (default: CORE_MEMORY_MAX_CHARS, else 1500).

        The newest four preferences, three facts and three notes are written. Raises Invalid if a name and a task do not fit, or
        a value is not a text.
        """
        return self.fitted(max_chars).to_full_string()

    def to_full_string(self) -> str:
        """Return the text with everything in it, of any length. Raises Invalid if a value is not a text."""
        whole = self.cleaned()
        lines = []
        if whole.name or whole.role:
            who = [whole.name or "", whole.role] if whole.role else [whole.name or ""]
            lines.append(f"[USER] {brackets.join(who, '|').lstrip()}")
        lines += _line("TASK", [whole.current_task] if whole.current_task else [])
        lines.append(f"[STATE] {whole.session_state.value}")
        lines += _line("PREFS", whole.preferences, ";")
        lines += _line("FACTS", whole.facts, ";")
        lines += _line("CONTEXT", whole.context_notes, ";")
        return "\n".join([*lines, *brackets.write_lines(whole.other_lines, _HUMAN_TAGS)])

    def fitted(self, max_chars: int | None = None) -> "HumanBlock":
        """Return the part that is written. Raises Invalid."""
        limit = default_max_chars() if max_chars is None else max_chars
        return _cut(self.shed(limit), ("name", "role", "current_task"), limit)

    def shed(self, target_chars: int | None = None) -> "HumanBlock":
        """Return the newest values of each list, without the oldest until the text has `target_chars`.

        Notes are removed first, then lines without a tag, facts and preferences; the newest of each last. User, task and state
        stay, so the text may still be longer. Raises Invalid if a value is not a text.
        """
        whole = self.cleaned()
        kept = replace(whole, **{name: getattr(whole, name)[-number:] for name, number in _HUMAN_NUMBERS.items()})
        if target_chars is None:
            return kept
        for least in (1, 0):
            for name in LISTS:
                kept = _without(kept, name, target_chars, least=least)
        return kept

    def newest(self) -> "HumanBlock":
        """Return only the newest value of each list. Raises Invalid if a value is not a text."""
        whole = self.cleaned()
        last: dict[str, Any] = {name: getattr(whole, name)[-1:] for name in LISTS}
        return replace(whole, **last)

    def cleaned(self) -> "HumanBlock":
        """Return a copy with every value as it is written and read back. Raises Invalid if a value is not a text."""
        return HumanBlock(
            name=brackets.clean(self.name or "") or None,
            role=brackets.clean(self.role or "") or None,
            current_task=brackets.clean(self.current_task or "") or None,
            session_state=_state(self.session_state),
            preferences=brackets.clean_all(self.preferences),
            context_notes=brackets.clean_all(self.context_notes),
            facts=brackets.clean_all(self.facts),
            other_lines=brackets.clean_lines(self.other_lines),
        )

    @classmethod
    def from_memory_string(cls, text: str) -> Self:
        """Read the text of a block; unknown lines become `other_lines`.

        Raises Invalid if `[USER]`, `[TASK]` or `[STATE]` occurs twice, or the state is unknown.
        """
        found, others = brackets.read_lines(text, _HUMAN_TAGS)
        name, role = _pair(_single(found, "USER") or "", "|")
        (task,) = brackets.split(_single(found, "TASK") or "")
        return cls(
            name=name or None,
            role=role or None,
            current_task=task or None,
            session_state=_state(brackets.clean(_single(found, "STATE") or "") or "idle"),
            preferences=_several(found, "PREFS", ";"),
            context_notes=_several(found, "CONTEXT", ";"),
            facts=_several(found, "FACTS", ";"),
            other_lines=others,
        )


def _state(value: str) -> SessionState:
    try:
        return SessionState(value)
    except ValueError:
        known = ", ".join(SessionState)
        raise Invalid(f"There is no session state {str(value)[:40]!r}. Use one of: {known}.") from None


def _require(value: str, noun: str) -> str:
    text = brackets.clean(value)
    if not text:
        raise Invalid(f"This {noun} is empty. Say what it is.")
    return text


def _line(tag: str, values: Iterable[str], separator: str = "") -> list[str]:
    text = brackets.join(values, separator)
    return [f"[{tag}] {text}"] if text else []


def _single(found: Mapping[str, list[str]], tag: str) -> str | None:
    values = found.get(tag, [])
    if len(values) > 1:
        raise Invalid(f"[{tag}] occurs {len(values)} times in this text. Keep one of these lines.")
    return values[0] if values else None


def _several(found: Mapping[str, list[str]], tag: str, separator: str) -> list[str]:
    # Agents add a line rather than lengthen one, so that several lines are read as one.
    return [value for line in found.get(tag, []) for value in brackets.split(line, separator) if value]


def _pair(text: str, separator: str) -> tuple[str, str]:
    """Split into two values; further separators belong to the second."""
    first, *rest = brackets.split(text, separator)
    return first, (" | " if separator == "|" else f"{separator} ").join(filter(None, rest))


def _without(block: _Typed, name: str, limit: int, *, least: int = 0, is_first_kept: bool = False) -> _Typed:
    """Remove values of one list until the text has `limit` characters; `least` of them stay."""
    excess = len(block.to_full_string()) - limit
    values: list[str] = getattr(block, name)
    gone = 0
    while excess > 0 and gone < len(values) - least:
        value = values[-1 - gone] if is_first_kept else values[gone]
        excess -= len(brackets.escape(value)) + (1 if name == "other_lines" else 2)
        gone += 1
    kept: dict[str, Any] = {name: values[: len(values) - gone] if is_first_kept else values[gone:]}
    return replace(block, **kept)


def _cut(block: _Typed, names: tuple[str, ...], limit: int) -> _Typed:
    """Cut the longest of these values until the text fits. Raises Invalid if it cannot."""
    while (excess := len(block.to_full_string()) - limit) > 0:
        longest = max(names, key=lambda name: len(getattr(block, name) or ""))
        value: str = getattr(block, longest) or ""
        if len(value) <= len(_DOTS) + 1:
            raise Invalid(f"A block of {limit} characters has no room for this memory. Allow at least {LEAST_CHARS}.")
        start = value[: max(1, len(value) - excess - len(_DOTS))].rstrip(" .\n")
        kept: dict[str, Any] = {longest: start + _DOTS}
        block = replace(block, **kept)
    return block


DEFAULT_PERSONA = PersonaBlock(
    name="Assistant",
    role="General-purpose AI assistant",
    capabilities=[
        "Answer questions",
        "Help with tasks",
        "Explain step by step",
        "Plan and organise",
        "Remember what matters to the user",
    ],
    tone="friendly",
    verbosity="adaptive",
)
CODING_ASSISTANT_PERSONA = PersonaBlock(
    name="CodeHelper",
    role="Software development assistant",
    capabilities=["Write/review code", "Debug", "Explain how code works", "Design systems", "Write tests"],
    expertise=["Python", "JavaScript", "System design"],
    tone="professional",
    verbosity="detailed",
    constraints=["Include error handling", "Prefer readability"],
)
RESEARCH_ASSISTANT_PERSONA = PersonaBlock(
    name="Researcher",
    role="Research and analysis assistant",
    capabilities=[
        "Synthesize info",
        "Compare options",
        "Weigh evidence",
        "Find what is missing",
        "Name sources and doubts",
    ],
    expertise=["Research methodology", "Data analysis"],
    tone="professional",
    verbosity="detailed",
)
