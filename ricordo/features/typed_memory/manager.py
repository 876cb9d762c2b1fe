"""Typed memory over a client: read the human block, change it, archive what leaves it, write it.

The manager keeps only its strategy: the block is read again for each change, because agents edit it too. What leaves the block is
archived first, so an interrupted process loses nothing. Changes of one manager wait for one another; of two managers that change
one block at the same time, the later write wins.
"""

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from ricordo.errors import Invalid, NotFound
from ricordo.features.typed_memory.blocks import DEFAULT_PERSONA, LISTS, HumanBlock, PersonaBlock
from ricordo.features.typed_memory.client import MemoryClient
from ricordo.features.typed_memory.rotation import (
    AdaptiveRotation,
    ContextMetrics,
    RotationStrategy,
    default_max_chars,
    require_max_chars,
)
from ricordo.memory.rotation import ARCHIVED, archived_text

HUMAN, PERSONA = "human", "persona"
TASK_COMPLETED = "TASK COMPLETED"
# A rotated block gets room to grow: it comes down to this share of the threshold.
_ROTATED_TO = 0.75
_PASSAGES_READ = 50
_HEADER = re.compile(r"\[(?:ARCHIVED|TASK COMPLETED) (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\]")
# As for requests: an equal body within ten minutes is a repeat.
_REPEATED_WITHIN = timedelta(minutes=10)
_PIECE = 60  # characters by which a text is searched for
_UNESCAPED = re.compile(r"[^\\;\n]+")


class MemorySummary(TypedDict):
    """Usage of core memory in percent, and its content."""

    persona_usage: float
    human_usage: float
    total_usage: float
    session_state: str
    current_task: str | None
    preferences: int
    facts: int
    context_notes: int


class MemoryManager:
    """An agent's typed memory. `max_chars` is the most characters of each block: CORE_MEMORY_MAX_CHARS, else 1500.

    Raises Invalid if `max_chars` is under 150. Its methods raise what the client raises, NotFound if the agent has no human block,
    and Invalid if that cannot be read; then nothing was written.
    """

    def __init__(
        self,
        client: MemoryClient,
        agent_id: str,
        max_chars: int | None = None,
        strategy: RotationStrategy | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.client = client
        self.agent_id = agent_id
        self.max_chars = default_max_chars() if max_chars is None else require_max_chars(max_chars)
        self.strategy = strategy or AdaptiveRotation()
        self._now = now
        self._changing = threading.RLock()

    def set_task(self, task: str, context: str | None = None) -> None:
        """Start a task, with a first note. A block with an unfinished task is archived first."""
        with self._changing:
            text, human = self._read_human()
            before = human.cleaned()
            human.set_task(task)
            if context:
                human.add_context_note(context)
            if before.current_task and before.current_task != human.current_task:
                self._archive(ARCHIVED, before.to_full_string())
            self._store(human, before, text)

    def clear_task(self, archive: bool = True) -> None:
        """End the task; with `archive` the task and its notes move to the archive."""
        with self._changing:
            text, human = self._read_human()
            before = human.cleaned()
            if archive and human.current_task:
                self._archive(TASK_COMPLETED, _completed_task(human))
                human.context_notes = []
            human.clear_task()
            self._store(human, before, text)

    def learn_preference(self, preference: str) -> None:
        """Add a preference of the user."""
        self._change(lambda human: human.add_preference(preference))

    def learn_fact(self, fact: str) -> None:
        """Add a fact about the user."""
        self._change(lambda human: human.add_fact(fact))

    def add_context(self, note: str) -> None:
        """Add a note."""
        self._change(lambda human: human.add_context_note(note))

    def read_human(self) -> HumanBlock:
        """Return the current human block."""
        return self._read_human()[1]

    def update_human(self, human: HumanBlock) -> None:
        """Write the human block. Values without room, and an unreadable text, are archived first.

        If the block is fuller than the strategy's threshold, all of it is archived, and `human` keeps what stays.
        """
        with self._changing:
            text = self._text(HUMAN)
            try:
                before = HumanBlock.from_memory_string(text)
            except Invalid:
                before = HumanBlock()
                self._archive(ARCHIVED, text)
            self._store(human, before, text)

    def update_persona(self, persona: PersonaBlock) -> None:
        """Write the persona block."""
        with self._changing:
            self._write(PERSONA, persona.to_memory_string(self.max_chars), self._text(PERSONA))

    def get_summary(self) -> MemorySummary:
        """Return the usage of core memory in percent, and its content."""
        text, human = self._read_human()
        metrics = self._metrics(len(text))
        return MemorySummary(
            persona_usage=round(100 * metrics.persona_usage, 1),
            human_usage=round(100 * metrics.human_usage, 1),
            total_usage=round(100 * metrics.total_usage, 1),
            session_state=human.session_state.value,
            current_task=human.current_task,
            preferences=len(human.preferences),
            facts=len(human.facts),
            context_notes=len(human.context_notes),
        )

    def search_archival(self, query: str, limit: int = 5) -> list[str]:
        """Return the best matching texts of the archive, at most `limit`. Raises Invalid for fewer than one."""
        if limit < 1:
            raise Invalid(f"A search for {limit} passages finds nothing. Ask for at least one.")
        found = self.client.agents.passages.search(self.agent_id, query=query, top_k=limit)
        return [hit.content for hit in found.results]

    def _change(self, edit: Callable[[HumanBlock], None]) -> None:
        with self._changing:
            text, human = self._read_human()
            before = human.cleaned()
            edit(human)
            self._store(human, before, text)

    def _store(self, human: HumanBlock, before: HumanBlock, text: str) -> None:
        """Archive what leaves, then write; `before` is the block read from `text`."""
        whole = human.cleaned()
        kept, is_rotated = self._kept(whole)
        if is_rotated or _is_cut(whole, kept):
            self._archive(ARCHIVED, whole.to_full_string())
        elif kept != whole:
            self._archive_leaving(_leaving(whole, kept), before)
        if is_rotated:
            vars(human).update(vars(kept))
        self._write(HUMAN, kept.to_full_string(), text)

    def _kept(self, whole: HumanBlock) -> tuple[HumanBlock, bool]:
        """Return what stays in the block, and whether it was rotated."""
        metrics = self._metrics(len(whole.shed().to_full_string()))
        if self.strategy.should_rotate(metrics):
            rotated = self._rotated(whole).fitted(self.max_chars)
            # A very long task would otherwise be archived again with every change.
            if rotated != whole:
                return rotated, True
        return whole.fitted(self.max_chars), False

    def _rotated(self, whole: HumanBlock) -> HumanBlock:
        """Bring the block down to its target: lists lose their oldest, other lines what the strategy does not keep."""
        newest = whole.newest()
        fixed = len(replace(newest, context_notes=[], other_lines=[], facts=[], preferences=[]).to_full_string())
        threshold = int(self.max_chars * self.strategy.threshold)
        # The newest values stay in the block if they fit, also beside a long task.
        half = fixed + (self.max_chars - fixed) // 2
        target = max(int(threshold * _ROTATED_TO), half, min(threshold, len(newest.to_full_string())))
        tagged = replace(whole, other_lines=[]).shed(target)
        room = max(0, target - len(tagged.to_full_string()) - 1)
        lines = self.strategy.compress("\n".join(whole.other_lines), room)
        return replace(tagged, other_lines=[lines]).cleaned()

    def _archive_leaving(self, leaving: HumanBlock, before: HumanBlock) -> None:
        for name in LISTS:
            known = getattr(before, name)
            # A caller that keeps a block object brings along notes that were archived before.
            new = [value for value in getattr(leaving, name) if value in known or not self._is_filed(name, value)]
            setattr(leaving, name, new)
        if any(getattr(leaving, name) for name in LISTS):
            self._archive(ARCHIVED, leaving.to_full_string())

    def _is_filed(self, name: str, value: str) -> bool:
        return _is_filed(name, value, self._passages(_piece_of(value)))

    def _archive(self, kind: str, body: str) -> None:
        now = self._now()
        if not _is_repeat(body, self._passages(_piece_of(body)), now):
            self.client.agents.passages.create(self.agent_id, text=archived_text(kind, body, now))

    def _passages(self, piece: str) -> list[str]:
        found = self.client.agents.passages.list(self.agent_id, search=piece, limit=_PASSAGES_READ, ascending=False)
        return [passage.text for passage in found]

    def _read_human(self) -> tuple[str, HumanBlock]:
        text = self._text(HUMAN)
        return text, HumanBlock.from_memory_string(text)

    def _metrics(self, human_chars: int) -> ContextMetrics:
        try:
            persona_chars = len(self._text(PERSONA))
        except NotFound:
            persona_chars = 0
        return ContextMetrics(persona_chars, human_chars, self.max_chars, self.max_chars)

    def _text(self, label: str) -> str:
        try:
            return str(self.client.agents.blocks.retrieve(label, agent_id=self.agent_id).value)
        except Exception as error:
            # Of the client's own errors only the status is known here.
            if isinstance(error, NotFound) or getattr(error, "status_code", None) == 404:
                raise NotFound(
                    f'{self.agent_id} has no block "{label}", or does not exist. Attach a block with that label.'
                ) from error
            raise

    def _write(self, label: str, text: str, before: str) -> None:
        if text != before:
            self.client.agents.blocks.update(label, agent_id=self.agent_id, value=text)


class BaseAgent:
    """Creates an agent with these two blocks; `options` (model, tags …) are those of the client's `agents.create`.

    Raises Invalid if a block does not fit or a setting is wrong; then no agent was created. `memory` manages the blocks, `agent_id`
    names the agent. For an existing agent, use `MemoryManager`.
    """

    def __init__(
        self,
        client: MemoryClient,
        *,
        name: str | None = None,
        persona: PersonaBlock = DEFAULT_PERSONA,
        human: HumanBlock | None = None,
        max_chars: int | None = None,
        strategy: RotationStrategy | None = None,
        **options: Any,
    ) -> None:
        # Everything that can be wrong is checked before the agent is created.
        limit = default_max_chars() if max_chars is None else require_max_chars(max_chars)
        chosen = strategy or AdaptiveRotation()
        texts = {PERSONA: persona.to_memory_string(limit), HUMAN: (human or HumanBlock()).to_memory_string(limit)}
        blocks = [{"label": label, "value": text} for label, text in texts.items()]
        agent = client.agents.create(name=name or persona.name, memory_blocks=blocks, **options)
        self.client = client
        self.agent_id: str = agent.id
        self.memory = MemoryManager(client, agent.id, limit, chosen)

    def update_context(self, task: str | None = None, note: str | None = None) -> None:
        """Start a task, add a note, or both."""
        if task:
            self.memory.set_task(task)
        if note:
            self.memory.add_context(note)

    def learn(self, preference: str | None = None, fact: str | None = None) -> None:
        """Add a preference, a fact, or both."""
        if preference:
            self.memory.learn_preference(preference)
        if fact:
            self.memory.learn_fact(fact)


def _completed_task(human: HumanBlock) -> str:
    lines = [f"Task: {_indented(human.current_task or '')}"]
    if human.context_notes:
        lines += ["Context:", *(f"- {_indented(note)}" for note in human.context_notes)]
    return "\n".join(lines)


def _leaving(whole: HumanBlock, kept: HumanBlock) -> HumanBlock:
    """Return what is in `whole` and not in `kept`, with the same user, task and state."""
    missing: dict[str, Any] = {
        name: [value for value in getattr(whole, name) if value not in getattr(kept, name)] for name in LISTS
    }
    return replace(whole, **missing)


def _is_cut(whole: HumanBlock, kept: HumanBlock) -> bool:
    return any(getattr(whole, name) != getattr(kept, name) for name in ("name", "role", "current_task"))


def _piece_of(text: str) -> str:
    """Return a piece of the text to search its passages by: its longest stretch without escapes, or its start."""
    return max(_UNESCAPED.findall(text), key=len, default="")[:_PIECE]


def _is_filed(name: str, value: str, passages: Iterable[str]) -> bool:
    """Whether one of these passages is an archived block that has the value in this list."""
    return any(value in getattr(block, name) for text in passages if (block := _archived_block(text)))


def _is_repeat(body: str, passages: Iterable[str], now: datetime) -> bool:
    """Whether one of these passages is this one, archived by a process that was interrupted a short while ago."""
    parted = (text.partition("\n") for text in passages)
    headers = [_HEADER.fullmatch(header) for header, _, rest in parted if rest == body]
    return any(header and _is_near(header[1], now) for header in headers)


def _archived_block(text: str) -> HumanBlock | None:
    header, _, body = text.partition("\n")
    if not header.startswith(f"[{ARCHIVED} "):
        return None
    try:
        return HumanBlock.from_memory_string(body)
    except Invalid:
        return None  # another passage, or one that was edited


def _is_near(written: str, now: datetime) -> bool:
    try:
        time = datetime.fromisoformat(written).replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs(now.astimezone(UTC) - time) <= _REPEATED_WITHIN


def _indented(text: str) -> str:
    # An unindented line could pass for another task's header.
    return text.replace("\n", "\n  ")
