"""The life of typed memory: read the human block, change it, move to the archive what leaves it, write it.

It keeps nothing but its strategy: the block is read anew for each change, since agents edit it too. What leaves the block is
archived first, so that a process that is ended in between loses nothing. In one manager changes wait for one another; of two
managers that change one block in the same moment, the later write stands.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypedDict

from ricordo.errors import Invalid, NotFound
from ricordo.memory.typed import archival
from ricordo.memory.typed.blocks import LISTS, HumanBlock, PersonaBlock
from ricordo.memory.typed.client import MemoryClient
from ricordo.memory.typed.defaults import default_max_chars, require_max_chars
from ricordo.memory.typed.rotation import AdaptiveRotation, ContextMetrics, RotationStrategy

HUMAN, PERSONA = "human", "persona"
# A rotated block gets room to grow: it comes down to this share of the threshold, and not just below it.
_ROTATED_TO = 0.75
_PASSAGES_READ = 50


class MemorySummary(TypedDict):
    """How full core memory is, in percent, and what is in it."""

    persona_usage: float
    human_usage: float
    total_usage: float
    session_state: str
    current_task: str | None
    preferences: int
    facts: int
    context_notes: int


class MemoryManager:
    """An agent's typed memory, by a client. `max_chars` is how long each block may be: CORE_MEMORY_MAX_CHARS, else 1500.

    Raises Invalid where `max_chars` is under 150. Its methods raise what the client raises, NotFound where the agent has no human
    block, and Invalid where that cannot be read; then nothing was written.
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
        """Begin a task, with a first note. The block with a task that was not finished goes to the archive before."""
        with self._changing:
            text, human = self._read_human()
            before = human.cleaned()
            human.set_task(task)
            if context:
                human.add_context_note(context)
            if before.current_task and before.current_task != human.current_task:
                self._archive(archival.ARCHIVED, before.to_full_string())
            self._store(human, before, text)

    def clear_task(self, archive: bool = True) -> None:
        """End the task; with `archive` it goes to the archive together with the notes, which leave the block."""
        with self._changing:
            text, human = self._read_human()
            before = human.cleaned()
            if archive and human.current_task:
                self._archive(archival.TASK_COMPLETED, archival.completed_task(human))
                human.context_notes = []
            human.clear_task()
            self._store(human, before, text)

    def learn_preference(self, preference: str) -> None:
        """Note how the user likes things."""
        self._change(lambda human: human.add_preference(preference))

    def learn_fact(self, fact: str) -> None:
        """Note what is true of the user."""
        self._change(lambda human: human.add_fact(fact))

    def add_context(self, note: str) -> None:
        """Note what was done or said."""
        self._change(lambda human: human.add_context_note(note))

    def read_human(self) -> HumanBlock:
        """The human block as it is now."""
        return self._read_human()[1]

    def update_human(self, human: HumanBlock) -> None:
        """Write the human block. What its text has no room for goes to the archive first; so does a text that cannot be read.

        Where the block is fuller than the strategy's threshold, all of it is archived, and `human` keeps what stays.
        """
        with self._changing:
            text = self._text(HUMAN)
            try:
                before = HumanBlock.from_memory_string(text)
            except Invalid:
                before = HumanBlock()
                self._archive(archival.ARCHIVED, text)
            self._store(human, before, text)

    def update_persona(self, persona: PersonaBlock) -> None:
        """Write the persona block."""
        with self._changing:
            self._write(PERSONA, persona.to_memory_string(self.max_chars), self._text(PERSONA))

    def get_summary(self) -> MemorySummary:
        """How full core memory is, in percent, and what is in it."""
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
        """The texts in the archive that match best, at most `limit`, the best first. Raises Invalid for fewer than one."""
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
        """Archive what leaves, then write; `before` is what the block held as `text`."""
        whole = human.cleaned()
        kept, is_rotated = self._kept(whole)
        if is_rotated or archival.is_cut(whole, kept):
            self._archive(archival.ARCHIVED, whole.to_full_string())
        elif kept != whole:
            self._archive_leaving(archival.leaving(whole, kept), before)
        if is_rotated:
            vars(human).update(vars(kept))
        self._write(HUMAN, kept.to_full_string(), text)

    def _kept(self, whole: HumanBlock) -> tuple[HumanBlock, bool]:
        """What stays in the block, and whether that is the outcome of a rotation."""
        metrics = self._metrics(len(whole.shed().to_full_string()))
        if self.strategy.should_rotate(metrics):
            rotated = self._rotated(whole).fitted(self.max_chars)
            # A task so long that nothing else could leave would be archived again with every change.
            if rotated != whole:
                return rotated, True
        return whole.fitted(self.max_chars), False

    def _rotated(self, whole: HumanBlock) -> HumanBlock:
        """The block brought down to its target: lists lose their oldest, lines without a tag what the strategy takes."""
        newest = whole.newest()
        fixed = len(replace(newest, context_notes=[], other_lines=[], facts=[], preferences=[]).to_full_string())
        threshold = int(self.max_chars * self.strategy.threshold)
        # What was just said stays in the block where it can, also beside a long task, which leaves little room.
        half = fixed + (self.max_chars - fixed) // 2
        target = max(int(threshold * _ROTATED_TO), half, min(threshold, len(newest.to_full_string())))
        tagged = replace(whole, other_lines=[]).shed(target)
        room = max(0, target - len(tagged.to_full_string()) - 1)
        lines = self.strategy.compress("\n".join(whole.other_lines), room)
        return replace(tagged, other_lines=[lines]).cleaned()

    def _archive_leaving(self, gone: HumanBlock, before: HumanBlock) -> None:
        for name in LISTS:
            known = getattr(before, name)
            # Who keeps a block of her own and stores it after each note brings notes along that left the text long ago.
            new = [value for value in getattr(gone, name) if value in known or not self._is_filed(name, value)]
            setattr(gone, name, new)
        if archival.holds_lists(gone):
            self._archive(archival.ARCHIVED, gone.to_full_string())

    def _is_filed(self, name: str, value: str) -> bool:
        return archival.is_filed(name, value, self._passages(archival.piece_of(value)))

    def _archive(self, kind: str, body: str) -> None:
        now = self._now()
        if not archival.is_repeat(body, self._passages(archival.piece_of(body)), now):
            self.client.agents.passages.create(self.agent_id, text=archival.passage(kind, body, now))

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
            return self.client.agents.blocks.retrieve(label, agent_id=self.agent_id).value
        except Exception as error:
            # The client's own errors are not known here, only that they have the status of the answer.
            if isinstance(error, NotFound) or getattr(error, "status_code", None) == 404:
                raise NotFound(
                    f'{self.agent_id} has no block "{label}", or does not exist. Attach a block with that label.'
                ) from error
            raise

    def _write(self, label: str, text: str, before: str) -> None:
        if text != before:
            self.client.agents.blocks.update(label, agent_id=self.agent_id, value=text)
