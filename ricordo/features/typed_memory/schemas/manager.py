"""Read, change and write the human block of an agent over a client.

The manager has no state except its strategy. It reads the block again for each change, because
agents edit the block too. Values that leave the block are archived first, so an interrupted process
loses nothing. A manager makes only one change at a time. If the server reports versions and
another writer changed the block meanwhile, the change is repeated on the new text.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ricordo.errors import Conflict, Invalid, NotFound, PreconditionFailed
from ricordo.features.typed_memory.schemas import rotation
from ricordo.features.typed_memory.schemas.blocks import DEFAULT_PERSONA, HumanBlock, PersonaBlock
from ricordo.memory.rotation import ARCHIVED, archived_text

HUMAN = "human"
PERSONA = "persona"
TASK_COMPLETED = "TASK COMPLETED"
# A rotated block is cut to this share of the threshold, to leave room for growth.
_ROTATED_TO = 0.75
_PASSAGES_READ = 50
# An equal text within ten minutes counts as a repeat, as for requests.
_REPEATED_WITHIN = timedelta(minutes=10)
_PIECE = 60  # characters by which a text is searched for
_MOST_TRIES = 20  # the most tries of one change, if others keep changing the block


class MemoryManager:
    """An agent's typed memory.

    `max_chars` is the most characters of each block. By default it is CORE_MEMORY_MAX_CHARS, else
    1500. Raises Invalid if it is under 150. The methods raise the client's errors. They raise
    NotFound if the agent has no human block, Invalid if the block cannot be read, and Conflict if
    others keep changing it. After these three errors the block is unchanged.
    """

    def __init__(
        self,
        client: Any,
        agent_id: str,
        max_chars: int | None = None,
        strategy: rotation.RotationStrategy | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.client = client
        self.agent_id = agent_id
        if max_chars is None:
            self.max_chars = rotation.default_max_chars()
        else:
            self.max_chars = rotation.require_max_chars(max_chars)
        self.strategy = strategy or rotation.AdaptiveRotation()
        self._now = now
        self._changing = threading.Lock()
        # The human block's text when it was last read by the caller or written here.
        self._last_text: str | None = None

    def set_task(self, task: str, context: str | None = None) -> None:
        """Start a task, with a first note.

        A block with an unfinished task is archived first.

        Args:
            task: The task.
            context: The first note; None or "": no note.

        Raises:
            NotFound: The agent has no human block.
            Invalid: The task is empty, or the block's text cannot be read.
            Conflict: Others changed the block again and again.
        """

        def change(human: HumanBlock) -> None:
            before = human.cleaned()
            human.set_task(task)
            if context:
                human.add_context_note(context)
            if before.current_task and before.current_task != human.current_task:
                self._archive(ARCHIVED, before.to_full_string())

        self._change(change)

    def clear_task(self, archive: bool = True) -> None:
        """End the task; with `archive` the task and its notes move to the archive.

        Args:
            archive: Whether the task and its notes move to the archive. Otherwise the notes stay.

        Raises:
            NotFound: The agent has no human block.
            Invalid: The block's text cannot be read.
            Conflict: Others changed the block again and again.
        """

        def change(human: HumanBlock) -> None:
            if archive and human.current_task:
                self._archive(TASK_COMPLETED, _completed_task(human))
                human.context_notes = []
            human.clear_task()

        self._change(change)

    def learn_preference(self, preference: str) -> None:
        """Add a preference of the user.

        Args:
            preference: One short text; a known one becomes the newest.

        Raises:
            NotFound: The agent has no human block.
            Invalid: It is empty, or the block's text cannot be read.
            Conflict: Others changed the block again and again.
        """
        self._change(lambda human: human.add_preference(preference))

    def learn_fact(self, fact: str) -> None:
        """Add a fact about the user.

        Args:
            fact: One short text; a known one becomes the newest.

        Raises:
            NotFound: The agent has no human block.
            Invalid: It is empty, or the block's text cannot be read.
            Conflict: Others changed the block again and again.
        """
        self._change(lambda human: human.add_fact(fact))

    def add_context(self, note: str) -> None:
        """Add a note.

        Args:
            note: One short text.

        Raises:
            NotFound: The agent has no human block.
            Invalid: It is empty, or the block's text cannot be read.
            Conflict: Others changed the block again and again.
        """
        self._change(lambda human: human.add_context_note(note))

    def read_human(self) -> HumanBlock:
        """Return the current human block."""
        text, _ = self._read(HUMAN)
        human = HumanBlock.from_memory_string(text)
        self._last_text = text
        return human

    def update_human(self, human: HumanBlock) -> None:
        """Write the block, archive values that leave it, and keep the remaining ones in `human`.

        Args:
            human: The whole new content; it is changed to what the block then holds.

        Raises:
            NotFound: The agent has no human block.
            Conflict: Someone else changed the block since it was read.
            Invalid: Its text does not fit the limits.
        """
        with self._changing:
            text, version = self._read(HUMAN)
            if self._last_text not in (None, text):
                raise Conflict(
                    "The human block changed since you read it. Read it again, and repeat your "
                    "change."
                )
            try:
                HumanBlock.from_memory_string(text)
            except Invalid:
                self._archive(ARCHIVED, text)
            if not self._store(human, text, version):
                raise Conflict(
                    "The human block changed while it was written. Read it again, and repeat your "
                    "change."
                )

    def update_persona(self, persona: PersonaBlock) -> None:
        """Write the persona block, cut to the limit of the manager.

        A concurrent change of the block is overwritten.

        Args:
            persona: The persona.

        Raises:
            NotFound: The agent has no persona block.
            Invalid: Not even its name and role fit.
        """
        with self._changing:
            self._write(PERSONA, persona.to_memory_string(self.max_chars), self._read(PERSONA)[0])

    def get_summary(self) -> dict[str, Any]:
        """Return the usage of core memory, the state, the task, and counts of values.

        Usages are in percent. The counts are of preferences, facts and notes.
        """
        text, _ = self._read(HUMAN)
        human = HumanBlock.from_memory_string(text)
        metrics = self._metrics(len(text))
        usage = {
            "persona": metrics.persona_usage,
            "human": metrics.human_usage,
            "total": metrics.total_usage,
        }
        return {
            **{f"{name}_usage": round(100 * share, 1) for name, share in usage.items()},
            "session_state": human.session_state.value,
            "current_task": human.current_task,
            **{
                name: len(getattr(human, name))
                for name in ("preferences", "facts", "context_notes")
            },
        }

    def search_archival(self, query: str, limit: int = 5) -> list[str]:
        """Return the best matching texts of the archive.

        Args:
            query: The words or the question to search for.
            limit: The most texts.

        Raises:
            Invalid: The limit is below one.
        """
        if limit < 1:
            raise Invalid(f"A search for {limit} passages finds nothing. Ask for at least one.")
        matches = self.client.agents.passages.search(self.agent_id, query=query, top_k=limit)
        return [hit.content for hit in matches.results]

    def _change(self, change: Callable[[HumanBlock], None]) -> None:
        with self._changing:
            for _ in range(_MOST_TRIES):
                text, version = self._read(HUMAN)
                human = HumanBlock.from_memory_string(text)
                change(human)
                if self._store(human, text, version):
                    return
        raise Conflict(
            f"Others changed the human block {_MOST_TRIES} times while it was written. "
            "Try again later."
        )

    def _store(self, human: HumanBlock, text: str, version: object) -> bool:
        """Archive values that leave the block, then replace `text` by the block.

        Returns False if the stored block no longer has this text.
        """
        if HumanBlock.has_superseded(text):
            self._archive(ARCHIVED, text)
        whole = human.cleaned()
        fitted, is_rotated = self._fit(whole)
        if is_rotated or any(
            getattr(whole, name) != getattr(fitted, name) for name in HumanBlock.CUT
        ):
            self._archive(ARCHIVED, whole.to_full_string())
        elif fitted != whole:
            missing: dict[str, Any] = {
                name: [
                    value for value in getattr(whole, name) if value not in getattr(fitted, name)
                ]
                for name in HumanBlock.NUMBERS
            }
            if any(missing.values()):
                self._archive(ARCHIVED, replace(whole, **missing).to_full_string())
        vars(human).update(vars(fitted))
        new_text = fitted.to_full_string()
        if is_written := self._write(HUMAN, new_text, text, version):
            self._last_text = new_text
        return is_written

    def _fit(self, whole: HumanBlock) -> tuple[HumanBlock, bool]:
        """Return the block with the values that stay, and True if it was rotated."""
        metrics = self._metrics(len(whole.shed().to_full_string()))
        if self.strategy.should_rotate(metrics):
            rotated = self._rotate(whole).fitted(self.max_chars)
            # Check that the cut helps. Otherwise every change would archive a very long task again.
            if rotated != whole:
                return rotated, True
        return whole.fitted(self.max_chars), False

    def _rotate(self, whole: HumanBlock) -> HumanBlock:
        """Cut the block to its target.

        Lists lose their oldest values, and other lines are dropped as the strategy says.
        """
        newest = whole.newest()
        texts_only = replace(newest, context_notes=[], other_lines=[], facts=[], preferences=[])
        fixed_chars = len(texts_only.to_full_string())
        threshold = int(self.max_chars * self.strategy.threshold)
        # The newest values stay in the block if they fit, even next to a long task.
        with_half_of_rest = fixed_chars + (self.max_chars - fixed_chars) // 2
        target = max(
            int(threshold * _ROTATED_TO),
            with_half_of_rest,
            min(threshold, len(newest.to_full_string())),
        )
        without_other_lines = replace(whole, other_lines=[]).shed(target)
        room = max(0, target - len(without_other_lines.to_full_string()) - 1)
        lines = self.strategy.compress("\n".join(whole.other_lines), room)
        return replace(without_other_lines, other_lines=[lines]).cleaned()

    def _archive(self, kind: str, body: str) -> None:
        """Archive a text, unless it was archived just before.

        A process that was interrupted after archiving tries again.
        """
        now = self._now()
        excerpt = max(re.split(r"[\\\n]", body), key=len)[:_PIECE]
        passages = self.client.agents.passages.list(
            self.agent_id, search=excerpt, limit=_PASSAGES_READ, ascending=False
        )
        parts = [passage.text.partition("\n") for passage in passages]
        if not any(rest == body and _is_recent(header, now) for header, _, rest in parts):
            self.client.agents.passages.create(self.agent_id, text=archived_text(kind, body, now))

    def _metrics(self, human_chars: int) -> rotation.ContextMetrics:
        try:
            persona_chars = len(self._read(PERSONA)[0])
        except NotFound:
            persona_chars = 0
        return rotation.ContextMetrics(persona_chars, human_chars, self.max_chars, self.max_chars)

    def _read(self, label: str) -> tuple[str, object]:
        """Return the block's text and its version.

        The version is None if the server does not report it.
        """
        try:
            block = self.client.agents.blocks.retrieve(label, agent_id=self.agent_id)
            return str(block.value), getattr(block, "version", None)
        except Exception as error:
            # The client's error classes are not imported here, so the status code decides.
            if isinstance(error, NotFound) or getattr(error, "status_code", None) == 404:
                raise NotFound(
                    f'{self.agent_id} has no block "{label}", or does not exist. Attach a block '
                    "with that label."
                ) from error
            raise

    def _write(self, label: str, text: str, before: str, version: object = None) -> bool:
        """Write the block; False if it no longer has this version."""
        if text == before:
            return True
        expected: dict[str, Any] = {}
        if version is not None:
            expected["extra_headers"] = {"If-Match": f'"{version}"'}
        try:
            self.client.agents.blocks.update(label, agent_id=self.agent_id, value=text, **expected)
        except Exception as error:
            if isinstance(error, PreconditionFailed) or getattr(error, "status_code", None) == 412:
                return False
            raise
        return True


class BaseAgent:
    """An agent that is created with these two blocks.

    `options` (model, tags …) are options of the client's `agents.create`. `memory` manages the
    blocks, `agent_id` names the agent. For an existing agent, use `MemoryManager`. Raises Invalid
    if a block does not fit or a setting is wrong; no agent is created then.
    """

    def __init__(
        self,
        client: Any,
        *,
        name: str | None = None,
        persona: PersonaBlock = DEFAULT_PERSONA,
        human: HumanBlock | None = None,
        max_chars: int | None = None,
        strategy: rotation.RotationStrategy | None = None,
        **options: Any,
    ) -> None:
        # Everything that may be wrong is checked before the agent is created.
        self.memory = MemoryManager(client, "", max_chars, strategy)
        texts = {PERSONA: persona, HUMAN: human or HumanBlock()}
        blocks = [
            {"label": label, "value": block.to_memory_string(self.memory.max_chars)}
            for label, block in texts.items()
        ]
        agent = client.agents.create(name=name or persona.name, memory_blocks=blocks, **options)
        self.client = client
        self.agent_id: str = agent.id
        self.memory.agent_id = agent.id

    def update_context(self, task: str | None = None, note: str | None = None) -> None:
        """Start a task, add a note, or both.

        Args:
            task: The task; None or "": no task is started.
            note: The note; None or "": no note is added.

        Raises:
            NotFound: The agent has no human block.
            Invalid: A text has only spaces, or the block's text cannot be read.
            Conflict: Others changed the block again and again.
        """
        if task:
            self.memory.set_task(task)
        if note:
            self.memory.add_context(note)

    def learn(self, preference: str | None = None, fact: str | None = None) -> None:
        """Add a preference, a fact, or both.

        Args:
            preference: A preference of the user; None or "": none is added.
            fact: A fact about the user; None or "": none is added.

        Raises:
            NotFound: The agent has no human block.
            Invalid: A text has only spaces, or the block's text cannot be read.
            Conflict: Others changed the block again and again.
        """
        if preference:
            self.memory.learn_preference(preference)
        if fact:
            self.memory.learn_fact(fact)


def _completed_task(human: HumanBlock) -> str:
    lines = [f"Task: {human.current_task}"]
    if human.context_notes:
        lines += ["Context:", *(f"- {note}" for note in human.context_notes)]
    # A line without indentation could look like the header of another task.
    return "\n".join(line.replace("\n", "\n  ") for line in lines)


def _is_recent(header: str, now: datetime) -> bool:
    try:
        written = datetime.fromisoformat(header[-20:-1]).replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs(now.astimezone(UTC) - written) <= _REPEATED_WITHIN
