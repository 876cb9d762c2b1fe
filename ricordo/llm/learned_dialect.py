"""What models at an address were learned to need, beyond what is known of their kind of server.

A lesson comes from a refusal and is learned once: it is kept by address and model, for some days, and in a file in the data folder.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import orjson

log = logging.getLogger(__name__)

FILE_NAME = "learned_models.json"
MOST_ENTRIES = 1_000
# A server may get another template or version: what its words told is tried again after some days, a guess after an hour.
LESSON_SECONDS = 7 * 86_400.0
GUESS_SECONDS = 3_600.0
_FORMS_KEPT = 3
# Calls, one after another, that a guess has to help before it is remembered; more where the server may only have failed.
GUESS_CALLS = 2
DOUBTFUL_CALLS = 3
# Counts that stood still so often, one after another, while prompts grew.
_CLIPS_TO_TELL = 2

Refused = tuple[str, str]
"""A field of the request's body by its path, as "messages.*.name", and the kind of its value; "" for any value."""

Key = tuple[str, str, str]
"""Whose provider it is ("" for the server's own), its address, and the model's name."""


@dataclass(frozen=True, slots=True)
class LearnedDialect:
    """The forms that a model needs; by default none. `conform` in `openai_conform.py` applies them.

    Attributes:
        by_turns: The user and the model speak by turns, and the user first and last.
        one_system: Only the first message may be a system message.
        system_as_user: There is no role for the system.
        calls_as_text: There are no roles for tool calls and their results.
        one_message: Everything goes as one message of the user, without tools.
        no_null: The content of a message is never null.
        bare: No field is sent that could be left out.
        refused: Fields to leave out, or to send another value of.
        stream: Answers come only as a stream, or never.
        most_output: The largest output budget, in tokens.
        window: The context window in tokens, where it is smaller than the server tells.
        told_window: The window that was known when `window` was learned.
        clipped_at: Tokens that the server counts of any longer prompt: it cuts off the rest without a word.
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
        """Return what was learned, in words for people."""
        names = [path for path, _ in sorted(self.refused) if path != "tools"]
        lines = [words for name, words in _IN_WORDS.items() if getattr(self, name)]
        if self.takes_no_tools:
            lines.append(
                "It takes no tools, so an agent cannot change its memory with it. Use a model that calls tools."
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
                f"Its server cuts longer prompts off at about {self.clipped_at:,} tokens without saying so: the agent's memory "
                "may be missing from them. Start the server with a larger context window (Ollama: OLLAMA_CONTEXT_LENGTH), or "
                "set a smaller context_window for the agent."
            )
        return lines


NOTHING_LEARNED = LearnedDialect()
_IN_WORDS = {
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
    """What is known of one model, until a time in seconds since 1970; with `is_guess` some of it no words told."""

    learned: LearnedDialect
    until: float
    is_guess: bool = False


@dataclass(frozen=True, slots=True)
class Help:
    """How many calls, one after another, a guess helped, and the last message of the request that was refused before."""

    calls: int
    message_id: str


@dataclass(slots=True)
class CountWatch:
    """Tells whether a server's counts stand still while one conversation's prompts grow.

    `estimate` and `counted` are of the last prompt whose count was believed.
    """

    estimate: int = 0
    counted: int = 0
    stills: int = 0

    def note(self, estimate: int, counted: int) -> bool:
        """Take in a prompt's estimate and count; returns whether the server is known to clip by now."""
        grown = estimate - self.estimate
        if not self.estimate or grown < 0 or counted < self.counted // 2:
            # The first, one after a compaction, or one whose cached beginning was not counted.
            self.estimate, self.counted, self.stills = estimate, counted, 0
        elif grown >= max(_LEAST_GROWTH, self.estimate * 15 // 100):
            if counted - self.counted < grown // 10:
                self.stills += 1
            else:
                self.estimate, self.counted, self.stills = estimate, counted, 0
        is_large = counted >= _LEAST_CLIP and counted * 4 < estimate * 3
        return is_large and self.stills >= _CLIPS_TO_TELL


_LEAST_GROWTH = 300  # tokens
_LEAST_CLIP = 1_000  # tokens: no server has a smaller window


@dataclass(slots=True)
class LearnedDialects:
    """The lessons of a server, by provider, address and model; `now` gives seconds since 1970."""

    now: Callable[[], float] = time.time
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _helped: dict[Key, dict[LearnedDialect, Help]] = field(default_factory=dict)
    _accepted: dict[Key, int] = field(default_factory=dict)
    _watches: dict[str, CountWatch] = field(default_factory=dict)
    _path: Path | None = None

    def keep_in(self, folder: Path) -> None:
        """Read the lessons of earlier starts, and keep those to come in this folder."""
        self._path = folder / FILE_NAME
        self.read(folder)

    def read(self, folder: Path) -> None:
        """Add the lessons that a server keeps in this folder."""
        try:
            rows = orjson.loads((folder / FILE_NAME).read_bytes())
            self._entries |= {tuple(row["key"]): _entry(row) for row in rows}
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning(
                "what was learned of models cannot be read, and is learned again",
                extra={"error": error},
            )

    def get(self, key: Key) -> LearnedDialect:
        """Return what is known of a model."""
        entry = self._entries.get(key)
        if entry is None:
            return NOTHING_LEARNED
        if entry.until < self.now():
            del self._entries[key]
            return NOTHING_LEARNED
        return entry.learned

    def learn(self, key: Key, learned: LearnedDialect, *, is_guess: bool = False) -> None:
        """Keep what is known of a model now; with a guess in it for a shorter time, whatever is learned beside it."""
        before = self.get(key)
        if learned == before:
            return
        entry = self._entries.pop(key, None)
        until = self.now() + (GUESS_SECONDS if is_guess else LESSON_SECONDS)
        if entry and entry.is_guess:
            until, is_guess = entry.until, True
        if learned != NOTHING_LEARNED:
            self._entries[key] = _Entry(learned, until, is_guess)
        while len(self._entries) > MOST_ENTRIES:
            del self._entries[next(iter(self._entries))]
        known = before.lines()
        for line in (line for line in learned.lines() if line not in known):
            log.warning(
                "learned of a model", extra={"model": key[2], "address": key[1], "lesson": line}
            )
        self._save()

    def helped(self, key: Key) -> dict[LearnedDialect, Help]:
        """Return the guesses that helped and are not remembered yet."""
        return dict(self._helped.get(key, {}))

    def note_help(self, key: Key, guess: LearnedDialect, before: int, message_id: str) -> int:
        """Note that a guess helped a call, at whose begin it had helped `before` calls; returns how many it helped by now.

        Calls beside each other count as one: all of them may have met the same moment.
        """
        helped = self._helped.pop(key, {})
        known = helped.pop(guess, None)
        calls = min(before, known.calls if known else 0) + 1
        kept = list(helped.items())[-(_FORMS_KEPT - 1) :]
        self._helped[key] = {**dict(kept), guess: Help(calls, message_id)}
        if len(self._helped) > MOST_ENTRIES:
            del self._helped[next(iter(self._helped))]
        return calls

    def disprove(self, key: Key, guesses: Iterable[LearnedDialect]) -> None:
        """Forget that these guesses helped: the model took by now what it had refused without them."""
        helped = self._helped.get(key, {})
        for guess in guesses:
            helped.pop(guess, None)
        if not helped:
            self._helped.pop(key, None)

    def accepted(self, key: Key) -> int:
        """Return the largest prompt that a model has taken since the start, by our estimate; 0 where none is known."""
        return self._accepted.get(key, 0)

    def note_accepted(self, key: Key, estimate: int) -> None:
        """Note the estimate of a prompt that was answered."""
        if estimate > self._accepted.get(key, 0):
            self._accepted.pop(key, None)
            self._accepted[key] = estimate
            if len(self._accepted) > MOST_ENTRIES:
                del self._accepted[next(iter(self._accepted))]

    def note_count(self, key: Key, conversation_id: str, estimate: int, counted: int) -> None:
        """Compare a server's count of a prompt with our estimate, and notice where it clips without a word."""
        learned = self.get(key)
        if learned.clipped_at is not None and counted > learned.clipped_at * 5 // 4:
            # It takes more now.
            self.learn(key, replace(learned, clipped_at=None))
            return
        watch = self._watches.pop(conversation_id, None) or CountWatch()
        self._watches[conversation_id] = watch
        if len(self._watches) > MOST_ENTRIES:
            del self._watches[next(iter(self._watches))]
        if watch.note(estimate, counted) and learned.clipped_at is None:
            self.learn(key, replace(learned, clipped_at=counted))

    def _save(self) -> None:
        """Write the file. It is small, and written only when something new was learned."""
        if self._path is None:
            return
        rows = [
            {
                "key": key,
                "learned": _written(entry.learned),
                "until": entry.until,
                "is_guess": entry.is_guess,
            }
            for key, entry in self._entries.items()
        ]
        draft = self._path.with_suffix(".tmp")
        try:
            draft.write_bytes(orjson.dumps(rows))
            os.replace(draft, self._path)  # noqa: PTH105 - one call, the same on every system
        except OSError as error:
            log.warning("what was learned of a model cannot be kept", extra={"error": error})


def _entry(row: dict[str, Any]) -> _Entry:
    return _Entry(_read(row["learned"]), float(row["until"]), bool(row.get("is_guess")))


def _written(learned: LearnedDialect) -> dict[str, Any]:
    values = {name: value for name, value in asdict(learned).items() if value}
    if learned.refused:
        values["refused"] = sorted(learned.refused)
    return values


def _read(row: dict[str, Any]) -> LearnedDialect:
    known = {each.name for each in fields(LearnedDialect)}
    values = {name: value for name, value in row.items() if name in known}
    values["refused"] = frozenset(
        (str(path), str(kind)) for path, kind in values.get("refused", ())
    )
    return LearnedDialect(**values)
