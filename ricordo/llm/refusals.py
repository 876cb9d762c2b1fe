"""What a model's refusal says about the form of a request: fields, roles, streaming, budgets, and length. Pure.

Known words are looked for first, in several languages; what no words tell is guessed by ever plainer forms, and length by size.
"""

import re
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ricordo.llm.learned_dialect import LearnedDialect
from ricordo.llm.loose_json import read_json
from ricordo.llm.openai_conform import kind_of

Json = dict[str, Any]

# Characters of an answer that are read: no error has more to say.
WORDS_LENGTH = 4_000
_TABLE = tomllib.loads(Path(__file__).with_name("provider_words.toml").read_text("utf-8"))
TOO_LONG = re.compile("|".join(_TABLE["too_long"]), re.IGNORECASE)
_WORD = re.compile(r"\w+")


def _words_of(name: str) -> tuple[str, ...]:
    return tuple(
        word.strip("\n").casefold()
        for word in _TABLE[name].replace("\n|", "|").strip("\n").split("|")
    )


_THINGS, _TOO_MUCH = _words_of("length_things"), _words_of("too_much")
_ROLES, _SYSTEM, _NO_SYSTEM = (
    _words_of("roles"),
    _words_of("system_role"),
    _words_of("no_system_role"),
)
_STREAMS, _UNKNOWN_FIELD, _NOT_ABOUT_FORM = (
    _words_of("streams"),
    _words_of("unknown_field"),
    _words_of("not_about_form"),
)
_NO_MODEL = re.compile(
    r"\bmodel\b.{0,80}(not found|not exist|no longer|decommissioned)", re.IGNORECASE
)
_NO_TOOLS = re.compile(
    r"(not|n't|no) (support|accept|allow)\w*.{0,20}\b(tools?|functions?)\b"
    r"|\b(tools?|function[- ]calling|tool use)\b.{0,20} (is|are|was) not (supported|enabled|available)",
    re.IGNORECASE,
)
_NULL_CONTENT = re.compile(
    r"content\b.{0,80}\b(null|none|nil|strings?|str|empty|required)\b", re.IGNORECASE
)
# These make the request what it is.
_ESSENTIAL = frozenset(
    """
    model messages messages.* messages.*.role messages.*.content tools tools.* tools.*.type tools.*.function
    tools.*.function.name tools.*.function.description tools.*.function.parameters messages.*.tool_calls
    messages.*.tool_calls.* messages.*.tool_calls.*.id messages.*.tool_calls.*.type messages.*.tool_calls.*.function
    messages.*.tool_call_id stream
    """.split()
)
_LOGPROBS = re.compile(r"log[ _-]?prob", re.IGNORECASE)
_BUDGETS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "maxOutputTokens",
    "maxTokens",
)
_NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?:[,. _'\u202f]\d{3})+(?![\d])|(?<![\w.])\d+")
# What stands before a number that is a limit, within so many characters.
_LIMIT_WORDS = _words_of("limit_words")
_BEFORE = 40
_AFTER_NUMBER = re.compile(r"[\d\n]")
# Where the words of a code meet.
_JOINTS = re.compile(r"[_-]+|(?<=[a-z])(?=[A-Z])")
# Two numbers that are compared, and a limit.
_COMPARED = re.compile(r"\d ?>=? ?\d|<=? ?\d")
_RANGE = re.compile(r"\[\s*\d+\s*,\s*(\d[\d,._]{2,})\s*\]")
_QUOTES = (("'", "'"), ('"', '"'), ("`", "`"), ("“", "”"), ("‘", "’"), ("「", "」"), ("«", "»"))
_LEAST_WINDOW = 512
_LEAST_BUDGET = 16


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request: the provider's answer as it came, its words in plain text, and the body as it was sent."""

    answer: str
    words: str
    body: Json

    @classmethod
    def of(cls, answer: str, body: Json) -> "Refusal":
        """Return what was refused with this answer, which may be JSON."""
        words = "\n".join(_texts(read_json(answer))) or answer
        return cls(answer, words[:WORDS_LENGTH], body)

    @property
    def is_about_form(self) -> bool:
        """Return whether another form of the request might be taken."""
        return not (_speaks_of(_NOT_ABOUT_FORM, self.words) or _NO_MODEL.search(self.words))


def logprobs_lessons(refusal: Refusal, learned: LearnedDialect) -> Iterator[LearnedDialect]:
    """Yield what a refusal teaches that speaks of probabilities, with any status: fewer alternatives, then none at all."""
    if "logprobs" not in refusal.body or not _LOGPROBS.search(refusal.words):
        return
    count = refusal.body.get("top_logprobs")
    if count and "top_logprobs" in refusal.words:
        yield _with_refused(learned, [("top_logprobs", kind_of(count))])
    yield _with_refused(learned, [("logprobs", "")])


def _texts(value: Any) -> Iterator[str]:
    """Yield what stands in a decoded answer, its names beside their numbers."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from [f"{name}: {inner}"] if isinstance(inner, int | float) else _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


def lessons(refusal: Refusal, learned: LearnedDialect) -> Iterator[LearnedDialect]:
    """Yield what the words of a refusal may teach, the likeliest first. One that changes nothing is no lesson."""
    structured = list(_named_by_structure(refusal.answer))
    in_words = _named_in_words(refusal)
    certain = [path for path in in_words if "_" in path]
    if _NULL_CONTENT.search(refusal.words):
        yield replace(learned, no_null=True)
    yield from _field_lessons(refusal, learned, [*structured, *certain])
    if _speaks_of(_ROLES, refusal.words) or any(path.startswith("messages") for path in structured):
        yield from _role_lessons(refusal, learned)
    if _NO_TOOLS.search(refusal.words):
        yield _with_refused(learned, [("tools", "")])
    yield from _field_lessons(refusal, learned, [path for path in in_words if path not in certain])
    if _speaks_of(_STREAMS, refusal.words) and "stream_options" not in refusal.words:
        if not refusal.body.get("stream"):
            yield replace(learned, stream="always")
        elif _speaks_of(_UNKNOWN_FIELD, refusal.words):
            yield replace(learned, stream="never")


def guesses(learned: LearnedDialect, *, is_stream: bool) -> tuple[LearnedDialect, ...]:
    """Return ever plainer forms, for a refusal whose words tell nothing."""
    turns = replace(learned, by_turns=True, one_system=True, no_null=True)
    # A server that takes streams alone is met by the way; one that has none answers as a whole all the same.
    stream = learned.stream or (None if is_stream else "always")
    plain = replace(turns, bare=True, system_as_user=True, calls_as_text=True, stream=stream)
    return turns, plain, replace(plain, one_message=True, stream="never" if is_stream else stream)


def speaks_of_length(words: str) -> bool:
    """Return whether the words name a thing that can be too long, and say that it is too much."""
    return _speaks_of(_THINGS, words) and (
        _speaks_of(_TOO_MUCH, words) or _COMPARED.search(words) is not None
    )


def _speaks_of(known: Iterable[str], words: str) -> bool:
    """Return whether one of the known words stands in a text, in its sentences or in codes as `PromptTooLong` and `ctx_limit`."""
    plain = " ".join(_WORD.findall(words))
    text = f" {plain} {_JOINTS.sub(' ', plain)} ".casefold()
    return any(word in text for word in known)


def is_too_long(words: str, *, estimate: int, window: int, accepted: int) -> bool:
    """Judge by words and sizes together whether a request was too long; `accepted` is the largest that was ever taken."""
    if TOO_LONG.search(words):
        return True
    if estimate * 10 >= window * 9:
        return True
    is_new_size = estimate * 10 > accepted * 9 and estimate >= _LEAST_WINDOW
    if speaks_of_length(words):
        names_sizes = any(
            estimate <= 3 * number and number <= 3 * estimate for number in numbers_in(words)
        )
        return names_sizes or is_new_size
    if _speaks_of(_TOO_MUCH, words):
        return estimate * 2 >= window or (accepted > 0 and is_new_size)
    return False


def numbers_in(words: str) -> list[int]:
    """Return the whole numbers in a text, with or without separators of thousands."""
    return [_number(each) for each in _NUMBER.findall(words)]


def limit_in(words: str, *, estimate: int, budget: int = 0) -> int | None:
    """Return the context window that the words name, in tokens; None where they name none that can be."""
    numbers = numbers_in(words)
    most = max(numbers, default=0)
    named = [*_limits_in(words), *map(_number, _RANGE.findall(words))]
    largest = 2 * estimate + budget
    possible = [number for number in named if _LEAST_WINDOW <= number <= largest]
    if not possible:
        # Two sizes without a word that tells which is which: what was sent is the larger one.
        pair = {number for number in numbers if _LEAST_WINDOW <= number <= largest}
        return min(pair) if len(pair) == 2 else None
    smaller = [number for number in possible if number < most]
    return max(smaller or possible)


def _limits_in(words: str) -> Iterator[int]:
    """Yield the numbers that a word for a limit stands before."""
    for match in _NUMBER.finditer(words):
        before = words[max(0, match.start() - _BEFORE) : match.start()].casefold()
        before = _AFTER_NUMBER.split(before)[-1]
        if any(word in before for word in _LIMIT_WORDS):
            yield _number(match.group())


def _number(text: str) -> int:
    return int(re.sub(r"\D", "", text)[:15])


# --- fields ---


def _named_by_structure(answer: str) -> Iterator[str]:
    """Yield the paths of fields that an error names in fields of its own: `param`, or `loc` as pydantic has it."""
    whole = read_json(answer)
    if not isinstance(whole, dict):
        return
    error = whole.get("error", whole)
    if isinstance(error, dict) and isinstance(error.get("param"), str):
        yield _path(error["param"])
    for rows in (
        whole.get("detail"),
        error.get("detail") if isinstance(error, dict) else None,
        whole.get("errors"),
    ):
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and isinstance(row.get("loc"), list):
                yield _path(".".join(map(str, row["loc"])))


def _path(text: str) -> str:
    """Return a field's path as we write it: `messages[2].name` and `body.messages.2.name` are "messages.*.name"."""
    pieces = [piece for piece in re.split(r"[.\[\]\s]+|->", text) if piece and piece != "body"]
    return ".".join("*" if piece.isdigit() else piece for piece in pieces)


def _named_in_words(refusal: Refusal) -> list[str]:
    """Return the paths of the body's fields whose names stand in the words, the longest names first."""
    paths, tokens = list(dict.fromkeys(_paths(refusal.body))), set(_WORD.findall(refusal.words))
    # Servers call a budget by any of its names.
    names_budget = any(name in tokens for name in _BUDGETS)
    named = [
        path
        for path in paths
        if _is_named(path.rpartition(".")[2], refusal.words, tokens)
        or (names_budget and path in _BUDGETS)
    ]
    if not named and _speaks_of(_UNKNOWN_FIELD, refusal.words):
        named = [path for path in paths if "." not in path and len(path) > 3 and path in tokens]
    return sorted(named, key=len, reverse=True)


def _is_named(name: str, words: str, tokens: Container[str]) -> bool:
    """Return whether a field is named. A name that is also an ordinary word counts in quotes only, or as what a line is about."""
    if len(name) < 3:
        return False
    if "_" in name:
        return name in tokens
    lines = [line.strip() for line in words.split("\n")]
    return any(f"{begin}{name}{end}" in words for begin, end in _QUOTES) or any(
        line == name or line.startswith(f"{name}:") for line in lines
    )


def _paths(body: Json) -> Iterator[str]:
    """Yield the paths of all fields of a body but those inside of schemas, arguments and contents."""
    for name, value in body.items():
        yield name
        if name == "messages":
            for row in value:
                yield from (f"messages.*.{key}" for key in row)
        elif name == "tools":
            for tool in value:
                yield from (f"tools.*.function.{key}" for key in tool.get("function", ()))
        elif isinstance(value, dict) and name not in ("tool_choice", "response_format"):
            yield from (f"{name}.{key}" for key in value)


def _field_lessons(
    refusal: Refusal, learned: LearnedDialect, paths: Iterable[str]
) -> Iterator[LearnedDialect]:
    is_unknown = _speaks_of(_UNKNOWN_FIELD, refusal.words)
    refused: list[tuple[str, str]] = []
    for path in paths:
        if path.startswith("messages.") and path.endswith(".content"):
            yield replace(learned, no_null=True)
        elif path in ("messages.*.tool_calls", "messages.*.tool_call_id") and is_unknown:
            yield replace(learned, calls_as_text=True)
        elif path == "tools" and is_unknown:
            yield _with_refused(learned, [("tools", "")])
        elif path == "stream":
            yield replace(learned, stream="never" if refusal.body.get("stream") else "always")
        elif path in _BUDGETS and not is_unknown and path in refusal.body:
            yield replace(learned, most_output=_smaller_budget(refusal, int(refusal.body[path])))
        elif path not in _ESSENTIAL:
            value = refusal.body.get(path)
            refused.append((path, "" if is_unknown or value is None else kind_of(value)))
    if refused:
        yield _with_refused(learned, refused)
        # Its value was not what was wrong with it, or the other value is refused too.
        yield _with_refused(learned, [(path, "") for path, _ in refused])


def _with_refused(learned: LearnedDialect, refused: Iterable[tuple[str, str]]) -> LearnedDialect:
    return replace(learned, refused=learned.refused | frozenset(refused))


def _smaller_budget(refusal: Refusal, budget: int) -> int:
    """Return the largest budget that the words allow; half of what was asked for where they name none."""
    named = [number for number in numbers_in(refusal.words) if _LEAST_BUDGET <= number < budget]
    return max(named, default=max(_LEAST_BUDGET, budget // 2))


# --- roles ---


def _role_lessons(refusal: Refusal, learned: LearnedDialect) -> Iterator[LearnedDialect]:
    words = refusal.words.casefold()
    for phrase in _NO_SYSTEM:
        words = words.replace(phrase, "")
    if _speaks_of(_SYSTEM, words):
        if any(row["role"] == "system" for row in refusal.body["messages"][1:]):
            yield replace(learned, one_system=True)
        else:
            yield replace(learned, system_as_user=True)
    form = learned
    for change in _ROLE_FORMS:
        form = change(form)
        yield form


_ROLE_FORMS: tuple[Callable[[LearnedDialect], LearnedDialect], ...] = (
    lambda learned: replace(learned, by_turns=True),
    lambda learned: replace(learned, calls_as_text=True),
    lambda learned: replace(learned, system_as_user=True),
)
