"""What a model's refusal says about the form of a request: fields, roles, streaming, budgets, and length. Pure.

Known words are looked for first, in several languages; what no words tell is guessed by ever plainer forms, and length by size.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ricordo.llm.learned_dialect import LearnedDialect
from ricordo.llm.loose_json import read_json
from ricordo.llm.openai_conform import kind_of

Json = dict[str, Any]

_TABLE = tomllib.loads(Path(__file__).with_name("provider_words.toml").read_text("utf-8"))


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("|".join(_TABLE[name]), re.IGNORECASE)


TOO_LONG = _pattern("too_long")
_THINGS, _TOO_MUCH = _pattern("length_things"), _pattern("too_much")
_ROLES, _SYSTEM, _NO_SYSTEM = _pattern("roles"), _pattern("system_role"), _pattern("no_system_role")
_STREAMS, _UNKNOWN_FIELD, _NOT_ABOUT_FORM = _pattern("streams"), _pattern("unknown_field"), _pattern("not_about_form")
_NO_TOOLS = re.compile(
    r"(not|n't|no) (support|accept|allow)\w*.{0,20}\b(tools?|functions?)\b"
    r"|\b(tools?|function[- ]calling|tool use)\b.{0,20} (is|are|was) not (supported|enabled|available)",
    re.IGNORECASE,
)
_NULL_CONTENT = re.compile(r"content\b.{0,80}\b(null|none|nil|strings?|str|empty|required)\b", re.IGNORECASE)
# These make the request what it is.
_ESSENTIAL = frozenset(
    """
    model messages messages.* messages.*.role messages.*.content tools tools.* tools.*.type tools.*.function
    tools.*.function.name tools.*.function.description tools.*.function.parameters messages.*.tool_calls
    messages.*.tool_calls.* messages.*.tool_calls.*.id messages.*.tool_calls.*.type messages.*.tool_calls.*.function
    messages.*.tool_call_id stream
    """.split()
)
_BUDGETS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens", "maxTokens")
_NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?:[,. _'\u202f]\d{3})+(?![\d])|(?<![\w.])\d+")
_LIMIT = re.compile(
    r"(?:n_ctx|num_ctx|max_model_len|context[ _-]?(?:length|window|size|limit)?|max(?:imum|imal\w{0,20}|imo|ima)?|limit\w{0,20}"
    r"|límite|at most|up to"
    r"|only|supports?|exceeds?|kontext\w{0,20}|höchstens|максим\w{0,20}|最大\w{0,8}|上限\w{0,4}|限制\w{0,4}|超过了?|超出了?|最大長|최대\w{0,4}|>=?)"
    r"[^\d\n]{0,30}?(\d{1,3}(?:[,. _'\u202f]\d{3})+(?!\d)|\d+)",
    re.IGNORECASE,
)
# Where the words of a code meet.
_JOINTS = re.compile(r"[_-]+|(?<=[a-z])(?=[A-Z])")
_RANGE = re.compile(r"\[\s*\d+\s*,\s*(\d[\d,._]{2,})\s*\]")
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
        return cls(answer, "\n".join(_texts(read_json(answer))) or answer, body)

    @property
    def is_about_form(self) -> bool:
        """Whether another form of the request might be taken."""
        return _NOT_ABOUT_FORM.search(self.words) is None


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
    if _ROLES.search(refusal.words) or any(path.startswith("messages") for path in structured):
        yield from _role_lessons(refusal, learned)
    if _NO_TOOLS.search(refusal.words):
        yield _with_refused(learned, [("tools", "")])
    yield from _field_lessons(refusal, learned, [path for path in in_words if path not in certain])
    if _STREAMS.search(refusal.words) and "stream_options" not in refusal.words:
        if not refusal.body.get("stream"):
            yield replace(learned, stream="always")
        elif _UNKNOWN_FIELD.search(refusal.words):
            yield replace(learned, stream="never")


def guesses(learned: LearnedDialect, *, is_stream: bool) -> tuple[LearnedDialect, ...]:
    """Return ever plainer forms, for a refusal whose words tell nothing."""
    turns = replace(learned, by_turns=True, one_system=True, no_null=True)
    # A server that takes streams alone is met by the way; one that has none answers as a whole all the same.
    stream = learned.stream or (None if is_stream else "always")
    plain = replace(turns, bare=True, system_as_user=True, calls_as_text=True, stream=stream)
    return turns, plain, replace(plain, one_message=True, stream="never" if is_stream else stream)


def speaks_of_length(words: str) -> bool:
    """Whether the words name a thing that can be too long, and say that it is too much."""
    words = _in_words(words)
    return _THINGS.search(words) is not None and _TOO_MUCH.search(words) is not None


def _in_words(text: str) -> str:
    """Return a text with its codes, as `PromptTooLong` and `ctx_limit`, written as words behind it."""
    return f"{text} {_JOINTS.sub(' ', text)}"


def is_too_long(words: str, *, estimate: int, window: int, accepted: int) -> bool:
    """Judge by words and sizes together whether a request was too long; `accepted` is the largest that was ever taken."""
    if TOO_LONG.search(words):
        return True
    if estimate * 10 >= window * 9:
        return True
    is_new_size = estimate * 10 > accepted * 9 and estimate >= _LEAST_WINDOW
    if speaks_of_length(words):
        names_sizes = any(estimate <= 3 * number and number <= 3 * estimate for number in numbers_in(words))
        return names_sizes or is_new_size
    if _TOO_MUCH.search(words):
        return estimate * 2 >= window or (accepted > 0 and is_new_size)
    return False


def numbers_in(words: str) -> list[int]:
    """Return the whole numbers in a text, with or without separators of thousands."""
    return [_number(each) for each in _NUMBER.findall(words)]


def limit_in(words: str, *, estimate: int, budget: int = 0) -> int | None:
    """Return the context window that the words name, in tokens; None where they name none that can be."""
    numbers = numbers_in(words)
    most = max(numbers, default=0)
    named = [_number(each) for each in (*_LIMIT.findall(words), *_RANGE.findall(words))]
    largest = 2 * estimate + budget
    possible = [number for number in named if _LEAST_WINDOW <= number <= largest]
    if not possible:
        # Two sizes without a word that tells which is which: what was sent is the larger one.
        pair = {number for number in numbers if _LEAST_WINDOW <= number <= largest}
        return min(pair) if len(pair) == 2 else None
    smaller = [number for number in possible if number < most]
    return max(smaller or possible)


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
    for rows in (whole.get("detail"), error.get("detail") if isinstance(error, dict) else None, whole.get("errors")):
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and isinstance(row.get("loc"), list):
                yield _path(".".join(map(str, row["loc"])))


def _path(text: str) -> str:
    """Return a field's path as we write it: `messages[2].name` and `body.messages.2.name` are "messages.*.name"."""
    pieces = [piece for piece in re.split(r"[.\[\]\s]+|->", text) if piece and piece != "body"]
    return ".".join("*" if piece.isdigit() else piece for piece in pieces)


def _named_in_words(refusal: Refusal) -> list[str]:
    """Return the paths of the body's fields whose names stand in the words, the longest names first."""
    named = []
    for path in dict.fromkeys(_paths(refusal.body)):
        name = re.escape(path.rpartition(".")[2])
        # A name that is also an ordinary word counts between quotes, or as the field that an error is about.
        form = rf"\b{name}\b" if "_" in name else rf"[\"'`“‘「]{name}[\"'`”’」]|(?:^|\n){name}(?::|\n)"
        if len(name) > 2 and re.search(form, refusal.words):
            named.append(path)
    if not named:
        named = [path for path in dict.fromkeys(_paths(refusal.body)) if _is_word(path, refusal.words)]
    return sorted(named, key=len, reverse=True)


def _is_word(path: str, words: str) -> bool:
    """Whether a field of the first level stands in words that say a field is unknown."""
    is_top = "." not in path and len(path) > 3
    return is_top and bool(_UNKNOWN_FIELD.search(words)) and bool(re.search(rf"\b{re.escape(path)}\b", words))


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


def _field_lessons(refusal: Refusal, learned: LearnedDialect, paths: Iterable[str]) -> Iterator[LearnedDialect]:
    is_unknown = _UNKNOWN_FIELD.search(refusal.words) is not None
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
    words = _NO_SYSTEM.sub("", refusal.words)
    if _SYSTEM.search(words):
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
