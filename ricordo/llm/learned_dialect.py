"""The learned needs of models, by their address.

A lesson is learned once, from a refusal. It adds to the known needs of the server's kind. Lessons
are stored by address and model for some days, in a file of the data folder.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import orjson

log = logging.getLogger(__name__)

FILE_NAME = "learned_models.json"
MOST_ENTRIES = 1_000
# A server may get another template or version, so lessons expire; guesses expire sooner.
LESSON_SECONDS = 7 * 86_400.0
GUESS_SECONDS = 3_600.0
_MOST_FORMS = 3  # guessed forms of one model under observation
# A guess must help this many calls in a row before it is remembered. The number is higher if the
# server may only have failed for a moment.
GUESS_CALLS = 2
DOUBTFUL_CALLS = 3
# A server clips prompts if its count stood still this often in a row while prompts grew.
_CLIPS_TO_TELL = 2

Refused = tuple[str, str]
"""The path of a field in the request's body, such as "messages.*.name", and the kind of its value.

An empty kind means any value.
"""

Key = tuple[str, str, str]
"""The provider's owner ("" for the server's own providers), its address, and the model's name."""


@dataclass(frozen=True, slots=True)
class LearnedDialect:
    """The forms that a model needs; by default none.

    `conform` in `openai_conform.py` applies them.

    Attributes:
        by_turns: User and model alternate; the user speaks first and last.
        one_system: Only the first message may be a system message.
        system_as_user: The server has no system role.
        calls_as_text: The server has no roles for tool calls and their results.
        one_message: Everything is sent as one user message, without tools.
        no_null: The content of a message is never null.
        bare: All optional fields are left out.
        refused: Fields that are left out or sent with another value.
        stream: The server answers only with a stream, or never with one.
        most_output: The largest output budget, in tokens.
        window: The context window in tokens, if it is smaller than the server reports.
        told_window: The window that the server reported when `window` was learned.
        clipped_at: The server silently cuts longer prompts to this many tokens, by its count.
    """

    by_turns: bool = False
    one_system: bool = False
    system_as_user: bool = False
    calls_as_text: bool = False
    one_message: bool = False
    no_null: bool = False
    bare: bool = False
    refused: frozenset[Refused] = frozenset()
    stream: Literal["always", "never"] | None = None
    most_output: int | None = None
    window: int | None = None
    told_window: int | None = None
    clipped_at: int | None = None

    @property
    def takes_no_tools(self) -> bool:
        return self.one_message or ("tools", "") in self.refused

    def lines(self) -> list[str]:
        """Return the lessons as sentences for people."""
        names = [path for path, _ in sorted(self.refused) if path != "tools"]
        lines = [sentence for name, sentence in _SENTENCES.items() if getattr(self, name)]
        if self.takes_no_tools:
            lines.append(
                "It takes no tools, so an agent cannot change its memory with it. Use a model "
                "that calls tools."
            )
        if names:
            lines.append(
                f"These fields are left out or sent otherwise: {', '.join(dict.fromkeys(names))}."
            )
        if self.stream:
            lines.append(
                "It answers as a stream only." if self.stream == "always" else "It does not stream."
            )
        if self.most_output is not None:
            lines.append(f"An answer may have {self.most_output:,} tokens at most.")
        if self.window is not None:
            lines.append(f"Its context window is {self.window:,} tokens, by what it refused.")
        if self.clipped_at is not None:
            lines.append(
                f"Its server cuts longer prompts off at about {self.clipped_at:,} tokens without "
                "saying so: the agent's memory may be missing from them. Start the server with a "
                "larger context window (Ollama: OLLAMA_CONTEXT_LENGTH), or set a smaller "
                "context_window for the agent."
            )
        return lines


NOTHING_LEARNED = LearnedDialect()
_SENTENCES = {
    "by_turns": "User and assistant speak by turns: messages in a row are joined.",
    "one_system": "Only the first message may be a system message.",
    "system_as_user": "It has no system role: the prompt stands in the user's first message.",
    "calls_as_text": "It has no roles for tool calls: they are shown to it as text.",
    "one_message": "It gets the conversation as one text.",
    "no_null": "A message without text is sent with empty text.",
    "bare": "Optional fields are left out.",
}


@dataclass(slots=True)
class _Entry:
    """The lessons of one model, until a time in seconds since 1970.

    With `is_guess`, some of the lessons were guessed.
    """

    learned: LearnedDialect
    until: float
    is_guess: bool = False


@dataclass(frozen=True, slots=True)
class HelpedCalls:
    """The calls that a guess helped.

    `calls` is their number in a row; `message_id` is the last message of the refused request.
    """

    calls: int
    message_id: str


@dataclass(slots=True)
class CountWatch:
    """Detect that a server's counts stand still while a conversation's prompts grow.

    `estimate` and `counted` belong to the last prompt with a credible count.
    """

    estimate: int = 0
    counted: int = 0
    stills: int = 0

    def note(self, estimate: int, counted: int) -> bool:
        """Note a prompt's estimate and count.

        Args:
            estimate: Our estimate of the prompt, in tokens.
            counted: The server's count of the prompt, in tokens.

        Returns:
            Whether the server is now known to clip.
        """
        growth = estimate - self.estimate
        if not self.estimate or growth < 0 or counted < self.counted // 2:
            # This is the first prompt or follows a compaction, or the server left out cached
            # tokens.
            self._restart(estimate, counted)
        elif growth >= max(_LEAST_GROWTH, self.estimate * 15 // 100):
            if counted - self.counted < growth // 10:
                self.stills += 1
            else:
                self._restart(estimate, counted)
        is_large = counted >= _LEAST_CLIP and counted * 4 < estimate * 3
        return is_large and self.stills >= _CLIPS_TO_TELL

    def _restart(self, estimate: int, counted: int) -> None:
        self.estimate = estimate
        self.counted = counted
        self.stills = 0


_LEAST_GROWTH = 300  # tokens
_LEAST_CLIP = 1_000  # tokens: no server has a smaller window


@dataclass(slots=True)
class LearnedDialects:
    """The lessons that this server has learned, by `Key`.

    `now` gives seconds since 1970.
    """

    now: Callable[[], float] = time.time
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _helped: dict[Key, dict[LearnedDialect, HelpedCalls]] = field(default_factory=dict)
    _accepted: dict[Key, int] = field(default_factory=dict)
    _watches: dict[tuple[Key, str], CountWatch] = field(default_factory=dict)
    _path: Path | None = None

    def keep_in(self, folder: Path) -> None:
        """Read the lessons of earlier starts from this folder, and store new lessons there.

        Args:
            folder: The data folder.
        """
        self._path = folder / FILE_NAME
        self.read(folder)

    def read(self, folder: Path) -> None:
        """Add the lessons that this server or another one has stored in this folder.

        Args:
            folder: The data folder. If its file is unreadable, nothing is added and a warning is
                logged.
        """
        try:
            rows = orjson.loads((folder / FILE_NAME).read_bytes())
            self._entries |= {tuple(row["key"]): _entry(row) for row in rows}
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning(
                "the learned dialects of models cannot be read and will be learned again",
                extra={"error": error},
            )

    def get(self, key: Key) -> LearnedDialect:
        """Return the lessons of a model.

        Args:
            key: The model.

        Returns:
            The lessons; `NOTHING_LEARNED` if there are none, or they have expired.
        """
        entry = self._entries.get(key)
        if entry is None:
            return NOTHING_LEARNED
        if entry.until < self.now():
            del self._entries[key]
            return NOTHING_LEARNED
        return entry.learned

    def learn(self, key: Key, learned: LearnedDialect, *, is_guess: bool = False) -> None:
        """Store the lessons of a model.

        Args:
            key: The model.
            learned: All lessons of the model, which replace the earlier ones.
            is_guess: Whether one of them was guessed. Then they all expire earlier.
        """
        before = self.get(key)
        if learned == before:
            return
        entry = self._entries.pop(key, None)
        until = self.now() + (GUESS_SECONDS if is_guess else LESSON_SECONDS)
        if entry and entry.is_guess:
            until = entry.until
            is_guess = True
        if learned != NOTHING_LEARNED:
            self._entries[key] = _Entry(learned, until, is_guess)
        while len(self._entries) > MOST_ENTRIES:
            del self._entries[next(iter(self._entries))]
        old_lines = before.lines()
        for line in (line for line in learned.lines() if line not in old_lines):
            log.warning(
                "learned a model's dialect",
                extra={"model": key[2], "address": key[1], "lesson": line},
            )
        self._save()

    def helped(self, key: Key) -> dict[LearnedDialect, HelpedCalls]:
        """Return the guesses that helped but are not remembered yet.

        Args:
            key: The model.

        Returns:
            A new mapping from the forms to the calls that they helped.
        """
        return dict(self._helped.get(key, {}))

    def note_help(self, key: Key, guess: LearnedDialect, before: int, message_id: str) -> int:
        """Note that a guess helped a call, and return its new count of helped calls.

        Args:
            key: The model.
            guess: The form that was accepted.
            before: The guess's count at the call's start. Parallel calls count as one, since all
                may have met the same short outage.
            message_id: The last message of the request that was refused before.
        """
        helped = self._helped.pop(key, {})
        earlier = helped.pop(guess, None)
        calls = min(before, earlier.calls if earlier else 0) + 1
        newest = list(helped.items())[-(_MOST_FORMS - 1) :]
        self._helped[key] = {**dict(newest), guess: HelpedCalls(calls, message_id)}
        if len(self._helped) > MOST_ENTRIES:
            del self._helped[next(iter(self._helped))]
        return calls

    def disprove(self, key: Key, guesses: Iterable[LearnedDialect]) -> None:
        """Forget these guesses, since the model now accepts the form that it had refused.

        Args:
            key: The model.
            guesses: Forms that `note_help` noted.
        """
        helped = self._helped.get(key, {})
        for guess in guesses:
            helped.pop(guess, None)
        if not helped:
            self._helped.pop(key, None)

    def accepted(self, key: Key) -> int:
        """Return the largest prompt accepted since the start, in tokens by our estimate.

        It is 0 if none is known.

        Args:
            key: The model.
        """
        return self._accepted.get(key, 0)

    def note_accepted(self, key: Key, estimate: int) -> None:
        """Note the estimate of an accepted prompt.

        Args:
            key: The model.
            estimate: Our estimate of the prompt, in tokens.
        """
        if estimate > self._accepted.get(key, 0):
            self._accepted.pop(key, None)
            self._accepted[key] = estimate
            if len(self._accepted) > MOST_ENTRIES:
                del self._accepted[next(iter(self._accepted))]

    def note_count(self, key: Key, conversation_id: str, estimate: int, counted: int) -> None:
        """Compare a server's count of a prompt with our estimate, and notice silent clipping.

        Args:
            key: The model.
            conversation_id: The conversation whose prompts are compared with each other.
            estimate: Our estimate of the prompt, in tokens.
            counted: The server's count of the prompt, in tokens.
        """
        learned = self.get(key)
        if learned.clipped_at is not None and counted > learned.clipped_at * 5 // 4:
            # The server accepts more now.
            self.learn(key, replace(learned, clipped_at=None))
            return
        # Models count tokens differently, so a conversation has a watch for each of its models.
        watch = self._watches.pop((key, conversation_id), None) or CountWatch()
        self._watches[key, conversation_id] = watch
        if len(self._watches) > MOST_ENTRIES:
            del self._watches[next(iter(self._watches))]
        if watch.note(estimate, counted) and learned.clipped_at is None:
            self.learn(key, replace(learned, clipped_at=counted))

    def _save(self) -> None:
        """Write the file, with lessons that another server stored in it.

        The file is small and changes only with a new lesson.
        """
        if self._path is None:
            return
        newest = self._entries
        self._entries = {}
        self.read(self._path.parent)
        self._entries |= newest
        rows = [
            {
                "key": key,
                "learned": _written(entry.learned),
                "until": entry.until,
                "is_guess": entry.is_guess,
            }
            for key, entry in self._entries.items()
            if entry.until >= self.now()
        ]
        # Two servers may write at once.
        draft = self._path.with_suffix(f".{uuid4().hex}.tmp")
        try:
            draft.write_bytes(orjson.dumps(rows))
            os.replace(draft, self._path)  # noqa: PTH105 - one call, the same on every system
        except OSError as error:
            with suppress(OSError):
                draft.unlink()
            log.warning("the learned dialects of models cannot be stored", extra={"error": error})


def _entry(row: dict[str, Any]) -> _Entry:
    return _Entry(_read(row["learned"]), float(row["until"]), bool(row.get("is_guess")))


def _written(learned: LearnedDialect) -> dict[str, Any]:
    row = {name: need for name, need in asdict(learned).items() if need}
    if learned.refused:
        row["refused"] = sorted(learned.refused)
    return row


def _read(row: dict[str, Any]) -> LearnedDialect:
    names = {attribute.name for attribute in fields(LearnedDialect)}
    needs = {name: need for name, need in row.items() if name in names}
    needs["refused"] = frozenset((str(path), str(kind)) for path, kind in needs.get("refused", ()))
    return LearnedDialect(**needs)
