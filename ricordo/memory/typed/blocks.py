"""The two blocks of typed memory: who the agent is, and whom it talks with. Each is read from a block's text and written to it.

The text is the bracket format (`brackets.py`). What is written is the part that fits the block's limits, by number and in
characters; who writes it asks `fitted` for that part, and sees by comparing what would be left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self, TypeVar

from ricordo.errors import Invalid
from ricordo.memory.typed import brackets
from ricordo.memory.typed.defaults import LEAST_CHARS, default_max_chars

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
    """What is going on with the user."""

    IDLE = "idle"
    ACTIVE_TASK = "active_task"
    WAITING_INPUT = "waiting_input"
    THINKING = "thinking"
    ERROR_RECOVERY = "error_recovery"


@dataclass(frozen=True, kw_only=True)
class PersonaBlock:
    """Who the agent is; stays as it is from session to session. `other_lines` are lines of its text that have no tag of ours.

    Raises Invalid where the role is missing, or a value is no text.
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
        # What is kept is what is written and read back; the caller's lists stay the caller's.
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
        """The text of the block, at most `max_chars` characters long (by default CORE_MEMORY_MAX_CHARS, else 1500).

        Five capabilities, four fields of expertise and three constraints are written, the first of each. Raises Invalid where
        `max_chars` has no room for a name and a role.
        """
        return self.fitted(max_chars).to_full_string()

    def to_full_string(self) -> str:
        """The text with everything in it, whatever its length."""
        lines = [f"[IDENTITY] {brackets.join((self.name, self.role), '|')}"]
        lines += _line("CAPABILITIES", self.capabilities, ",")
        lines += _line("EXPERTISE", self.expertise, ",")
        lines += _line("STYLE", (self.tone, self.verbosity), ",")
        lines += _line("CONSTRAINTS", self.constraints, ";")
        return "\n".join([*lines, *brackets.write_lines(self.other_lines, _PERSONA_TAGS)])

    def fitted(self, max_chars: int | None = None) -> "PersonaBlock":
        """The part of it that is written. Raises Invalid."""
        limit = default_max_chars() if max_chars is None else max_chars
        first = {name: getattr(self, name)[:number] for name, number in _PERSONA_NUMBERS.items()}
        kept = replace(self, **first)
        for name in ("other_lines", "expertise", "capabilities", "constraints"):
            # The last of a list goes first: authors put first what matters most.
            kept = _without(kept, name, limit, is_first_kept=True)
        return _cut(kept, ("name", "role", "tone", "verbosity"), limit)

    @classmethod
    def from_memory_string(cls, text: str) -> Self:
        """Read from a block's text what `to_memory_string` wrote there; all other lines are kept as `other_lines`.

        Raises Invalid where no line says `[IDENTITY] name | role`, or two do.
        """
        found, others = brackets.read_lines(text, _PERSONA_TAGS)
        identity = _single(found, "IDENTITY")
        if identity is None:
            raise Invalid("This text says nowhere who the agent is. Write a line [IDENTITY] name | role.")
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
    """Whom the agent talks with and what about; changes often. `other_lines` are lines of its text that have no tag of ours."""

    name: str | None = None
    role: str | None = None
    current_task: str | None = None
    session_state: SessionState = SessionState.IDLE
    preferences: list[str] = field(default_factory=list)
    context_notes: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    other_lines: list[str] = field(default_factory=list)

    def set_task(self, task: str) -> None:
        """Begin a task. Raises Invalid for an empty one."""
        self.current_task = _require(task, "task")
        self.session_state = SessionState.ACTIVE_TASK

    def clear_task(self) -> None:
        """End the task: there is none, and nothing is going on."""
        self.current_task = None
        self.session_state = SessionState.IDLE

    def add_context_note(self, note: str) -> None:
        """Note what was done or said; the last ten notes are held. The same note again, at once, is the same note."""
        note = _require(note, "note")
        if self.context_notes[-1:] != [note]:
            self.context_notes = [*self.context_notes, note][-_NOTES_HELD:]

    def add_preference(self, preference: str) -> None:
        """Note how she likes things; one that is known becomes the newest."""
        preference = _require(preference, "preference")
        self.preferences = [*(known for known in self.preferences if known != preference), preference]

    def add_fact(self, fact: str) -> None:
        """Note what is true of her; one that is known becomes the newest."""
        fact = _require(fact, "fact")
        self.facts = [*(known for known in self.facts if known != fact), fact]

    def to_memory_string(self, max_chars: int | None = None) -> str:
        """The text of the block, at most `max_chars` characters long (by default CORE_MEMORY_MAX_CHARS, else 1500).

        Four preferences, three facts and three notes are written, the newest of each. Raises Invalid where `max_chars` has no
        room for a name and a task, or a value is no text.
        """
        return self.fitted(max_chars).to_full_string()

    def to_full_string(self) -> str:
        """The text with everything in it, whatever its length. Raises Invalid where a value is no text."""
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
        """The part of it that is written. Raises Invalid."""
        limit = default_max_chars() if max_chars is None else max_chars
        return _cut(self.shed(limit), ("name", "role", "current_task"), limit)

    def shed(self, target_chars: int | None = None) -> "HumanBlock":
        """The newest of each list, by number, and of these what is left when the oldest go until the text has `target_chars`.

        Notes go first, then lines without a tag, facts and preferences, and the newest of each after all others. Who she is,
        her task and the state stay, so that the text may still be longer. Raises Invalid where a value is no text.
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
        """The newest of each list alone, under the same user, task and state. Raises Invalid where a value is no text."""
        whole = self.cleaned()
        last: dict[str, Any] = {name: getattr(whole, name)[-1:] for name in LISTS}
        return replace(whole, **last)

    def cleaned(self) -> "HumanBlock":
        """A copy with every value as it is written and read back. Raises Invalid where a value is no text."""
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
        """Read from a block's text what `to_memory_string` wrote there; all other lines are kept as `other_lines`.

        Raises Invalid where `[USER]`, `[TASK]` or `[STATE]` stands twice, or the state is none.
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
        raise Invalid(f"[{tag}] stands {len(values)} times in this text. Leave one of these lines.")
    return values[0] if values else None


def _several(found: Mapping[str, list[str]], tag: str, separator: str) -> list[str]:
    # Agents add a line rather than lengthen one, so that several lines are read as one.
    return [value for line in found.get(tag, []) for value in brackets.split(line, separator) if value]


def _pair(text: str, separator: str) -> tuple[str, str]:
    """Two values; what people wrote behind a second separator belongs to the second."""
    first, *rest = brackets.split(text, separator)
    return first, (" | " if separator == "|" else f"{separator} ").join(filter(None, rest))


def _without(block: _Typed, name: str, limit: int, *, least: int = 0, is_first_kept: bool = False) -> _Typed:
    """The block without as many values of one list as it takes to come down to `limit` characters; `least` of them stay."""
    excess = len(block.to_full_string()) - limit
    values: list[str] = getattr(block, name)
    gone = 0
    while excess > 0 and gone < len(values) - least:
        value = values[-1 - gone] if is_first_kept else values[gone]
        # What the value takes at least, with its separator; where nothing is left, its tag goes too.
        excess -= len(brackets.escape(value)) + (1 if name == "other_lines" else 2)
        gone += 1
    kept: dict[str, Any] = {name: values[: len(values) - gone] if is_first_kept else values[gone:]}
    return replace(block, **kept)


def _cut(block: _Typed, names: tuple[str, ...], limit: int) -> _Typed:
    """The block with the longest of these values cut until its text fits. Raises Invalid where they cannot be cut any more."""
    while (excess := len(block.to_full_string()) - limit) > 0:
        longest = max(names, key=lambda name: len(getattr(block, name) or ""))
        value: str = getattr(block, longest) or ""
        if len(value) <= len(_DOTS) + 1:
            raise Invalid(f"A block of {limit} characters has no room for this memory. Allow at least {LEAST_CHARS}.")
        start = value[: max(1, len(value) - excess - len(_DOTS))].rstrip(" .\n")
        kept: dict[str, Any] = {longest: start + _DOTS}
        block = replace(block, **kept)
    return block
