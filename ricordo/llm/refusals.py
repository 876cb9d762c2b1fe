"""Read a model's refusal: is it about fields, roles, streaming, budgets or length? Pure.

Known phrases are searched first, in several languages. If none is found, simpler and simpler forms
of the request are tried. If all are refused, the size of the request decides whether it was too
long.
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

# Characters of an error that are read; the rest of a longer error says nothing new.
WORDS_LENGTH = 4_000
_TABLE = tomllib.loads(Path(__file__).with_name("provider_words.toml").read_text("utf-8"))
TOO_LONG = re.compile("|".join(_TABLE["too_long"]), re.IGNORECASE)
_WORD = re.compile(r"\w+")


def _words_of(name: str) -> tuple[str, ...]:
    return tuple(
        word.strip("\n").casefold()
        for word in _TABLE[name].replace("\n|", "|").strip("\n").split("|")
    )


_LENGTH_NOUNS = _words_of("length_things")
_TOO_MUCH = _words_of("too_much")
_ROLES = _words_of("roles")
_SYSTEM = _words_of("system_role")
_NO_SYSTEM = _words_of("no_system_role")
_STREAMS = _words_of("streams")
_UNKNOWN_FIELD = _words_of("unknown_field")
_NOT_ABOUT_FORM = _words_of("not_about_form")
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
# Fields without which a request makes no sense, so they are never left out.
_ESSENTIAL = frozenset(
    """
    model messages messages.* messages.*.role messages.*.content tools tools.* tools.*.type
    tools.*.function tools.*.function.name tools.*.function.description tools.*.function.parameters
    messages.*.tool_calls messages.*.tool_calls.* messages.*.tool_calls.*.id
    messages.*.tool_calls.*.type messages.*.tool_calls.*.function messages.*.tool_call_id stream
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
# Phrases before a number that mark it as a limit, and the most characters between both.
_LIMIT_WORDS = _words_of("limit_words")
_LIMIT_WORD_DISTANCE = 40
_AFTER_NUMBER = re.compile(r"[\d\n]")
# The boundaries between the parts of a code, as in `ctx_limit` and `PromptTooLong`.
_JOINTS = re.compile(r"[_-]+|(?<=[a-z])(?=[A-Z])")
# A comparison of two numbers, or a number with a limit.
_COMPARED = re.compile(r"\d ?>=? ?\d|<=? ?\d")
_RANGE = re.compile(r"\[\s*\d+\s*,\s*(\d[\d,._]{2,})\s*\]")
_QUOTES = (("'", "'"), ('"', '"'), ("`", "`"), ("“", "”"), ("‘", "’"), ("「", "」"), ("«", "»"))
_LEAST_WINDOW = 512
_LEAST_BUDGET = 16


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request: the provider's answer, its plain text, and the body that was sent."""

    answer: str
    text: str
    body: Json

    @classmethod
    def of(cls, answer: str, body: Json) -> "Refusal":
        """Return the refusal with this answer.

        Args:
            answer: The provider's whole answer, which may be JSON.
            body: The body that was refused.
        """
        text = "\n".join(_texts(read_json(answer))) or answer
        return cls(answer, text[:WORDS_LENGTH], body)

    @property
    def is_about_form(self) -> bool:
        """Return whether another form of the request might be accepted."""
        return not (_speaks_of(_NOT_ABOUT_FORM, self.text) or _NO_MODEL.search(self.text))


def logprobs_lessons(refusal: Refusal, learned: LearnedDialect) -> Iterator[LearnedDialect]:
    """Yield the lessons of a refusal about log probabilities, whatever its HTTP status is.

    If the refusal names the alternatives, the first asks for none. The last asks for no log
    probabilities.

    Args:
        refusal: The refusal.
        learned: The form that was refused, to which each lesson adds.
    """
    if "logprobs" not in refusal.body or not _LOGPROBS.search(refusal.text):
        return
    count = refusal.body.get("top_logprobs")
    if count and "top_logprobs" in refusal.text:
        yield _with_refused(learned, [("top_logprobs", kind_of(count))])
    yield _with_refused(learned, [("logprobs", "")])


def _texts(json: Any) -> Iterator[str]:
    """Yield the texts in a decoded answer, and its numbers with their names."""
    if isinstance(json, dict):
        for name, inner in json.items():
            if isinstance(inner, int | float):
                yield f"{name}: {inner}"
            else:
                yield from _texts(inner)
    elif isinstance(json, list):
        for inner in json:
            yield from _texts(inner)
    elif isinstance(json, str):
        yield json


def lessons(refusal: Refusal, learned: LearnedDialect) -> Iterator[LearnedDialect]:
    """Yield possible lessons of a refusal's text, likeliest first.

    Some may change nothing.

    Args:
        refusal: The refusal.
        learned: The form that was refused, to which each lesson adds.
    """
    structured = list(_named_by_structure(refusal.answer))
    in_text = _named_in_text(refusal)
    certain = [path for path in in_text if "_" in path]
    if _NULL_CONTENT.search(refusal.text):
        yield replace(learned, no_null=True)
    yield from _field_lessons(refusal, learned, [*structured, *certain])
    if _speaks_of(_ROLES, refusal.text) or any(path.startswith("messages") for path in structured):
        yield from _role_lessons(refusal, learned)
    if _NO_TOOLS.search(refusal.text):
        yield _with_refused(learned, [("tools", "")])
    yield from _field_lessons(refusal, learned, [path for path in in_text if path not in certain])
    if _speaks_of(_STREAMS, refusal.text) and "stream_options" not in refusal.text:
        if not refusal.body.get("stream"):
            yield replace(learned, stream="always")
        elif _speaks_of(_UNKNOWN_FIELD, refusal.text):
            yield replace(learned, stream="never")


def guesses(learned: LearnedDialect, *, is_stream: bool) -> tuple[LearnedDialect, ...]:
    """Return simpler and simpler forms to try, for a refusal whose text does not help.

    Args:
        learned: The form that was refused.
        is_stream: Whether the request asked for a stream.
    """
    turns = replace(learned, by_turns=True, one_system=True, no_null=True)
    # Streaming is tried too, since some servers only stream. Others answer as a whole anyway.
    stream = learned.stream or (None if is_stream else "always")
    plain = replace(turns, bare=True, system_as_user=True, calls_as_text=True, stream=stream)
    return turns, plain, replace(plain, one_message=True, stream="never" if is_stream else stream)


def speaks_of_length(text: str) -> bool:
    """Return whether the text speaks of a length that is too large."""
    is_too_much = _speaks_of(_TOO_MUCH, text) or _COMPARED.search(text) is not None
    return is_too_much and _speaks_of(_LENGTH_NOUNS, text)


def _speaks_of(phrases: Iterable[str], text: str) -> bool:
    """Return whether a text contains one of the phrases.

    The phrases may be in sentences, or in codes such as `PromptTooLong` and `ctx_limit`.
    """
    plain = " ".join(_WORD.findall(text))
    searched = f" {plain} {_JOINTS.sub(' ', plain)} ".casefold()
    return any(phrase in searched for phrase in phrases)


def is_too_long(text: str, *, estimate: int, window: int, accepted: int) -> bool:
    """Return whether a request was too long, judged by the refusal's text and the sizes.

    Args:
        text: The plain text of the refusal.
        estimate: Our estimate of the request, in tokens.
        window: The model's context window in tokens, as far as is known.
        accepted: Our estimate of the largest request that the model accepted since the start; 0 if
            none.
    """
    if TOO_LONG.search(text):
        return True
    if estimate * 10 >= window * 9:
        return True
    is_new_size = estimate * 10 > accepted * 9 and estimate >= _LEAST_WINDOW
    if speaks_of_length(text):
        names_sizes = any(number / 3 <= estimate <= 3 * number for number in numbers_in(text))
        return names_sizes or is_new_size
    if _speaks_of(_TOO_MUCH, text):
        return estimate * 2 >= window or (accepted > 0 and is_new_size)
    return False


def numbers_in(text: str) -> list[int]:
    """Return the whole numbers in a text, with or without thousands separators."""
    return [_number(number) for number in _NUMBER.findall(text)]


def limit_in(text: str, *, estimate: int, budget: int = 0) -> int | None:
    """Return the context window in tokens that the text names.

    Args:
        text: The plain text of the refusal.
        estimate: Our estimate of the request, in tokens. Much larger numbers are no window.
        budget: The output budget of the request, in tokens.

    Returns:
        The window; None if there is no plausible one.
    """
    numbers = numbers_in(text)
    maximum = max(numbers, default=0)
    limits = [*_limits_in(text), *map(_number, _RANGE.findall(text))]
    largest = 2 * estimate + budget
    possible = [number for number in limits if _LEAST_WINDOW <= number <= largest]
    if not possible:
        # If there are two sizes and neither is called a limit, the larger one is the size of the
        # request.
        pair = {number for number in numbers if _LEAST_WINDOW <= number <= largest}
        return min(pair) if len(pair) == 2 else None
    smaller = [number for number in possible if number < maximum]
    return max(smaller or possible)


def _limits_in(text: str) -> Iterator[int]:
    """Yield the numbers that follow a phrase for a limit."""
    for match in _NUMBER.finditer(text):
        before = text[max(0, match.start() - _LIMIT_WORD_DISTANCE) : match.start()].casefold()
        before = _AFTER_NUMBER.split(before)[-1]
        if any(word in before for word in _LIMIT_WORDS):
            yield _number(match.group())


def _number(text: str) -> int:
    return int(re.sub(r"\D", "", text)[:15])


# --- fields ---


def _named_by_structure(answer: str) -> Iterator[str]:
    """Yield the paths that fields of the error name: `param`, or pydantic's `loc`."""
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
    """Return a field's path in our notation.

    Both `messages[2].name` and `body.messages.2.name` become "messages.*.name".
    """
    pieces = [piece for piece in re.split(r"[.\[\]\s]+|->", text) if piece and piece != "body"]
    return ".".join("*" if piece.isdigit() else piece for piece in pieces)


def _named_in_text(refusal: Refusal) -> list[str]:
    """Return the paths of the body's fields named in the text, the longest first."""
    paths = list(dict.fromkeys(_paths(refusal.body)))
    tokens = set(_WORD.findall(refusal.text))
    # A server may call a budget by any of its names.
    names_budget = any(name in tokens for name in _BUDGETS)
    named = [
        path
        for path in paths
        if _is_named(path.rpartition(".")[2], refusal.text, tokens)
        or (names_budget and path in _BUDGETS)
    ]
    if not named and _speaks_of(_UNKNOWN_FIELD, refusal.text):
        named = [path for path in paths if "." not in path and len(path) > 3 and path in tokens]
    return sorted(named, key=len, reverse=True)


def _is_named(name: str, text: str, tokens: Container[str]) -> bool:
    """Return whether the text names a field.

    A name that is also an ordinary word counts only in quotes or at the beginning of a line.
    """
    if len(name) < 3:
        return False
    if "_" in name:
        return name in tokens
    lines = [line.strip() for line in text.split("\n")]
    is_quoted = any(f"{begin}{name}{end}" in text for begin, end in _QUOTES)
    return is_quoted or any(line == name or line.startswith(f"{name}:") for line in lines)


def _paths(body: Json) -> Iterator[str]:
    """Yield the paths of a body's fields, except those in schemas, arguments and contents."""
    for name, field in body.items():
        yield name
        if name == "messages":
            for row in field:
                yield from (f"messages.*.{key}" for key in row)
        elif name == "tools":
            for tool in field:
                yield from (f"tools.*.function.{key}" for key in tool.get("function", ()))
        elif isinstance(field, dict) and name not in ("tool_choice", "response_format"):
            yield from (f"{name}.{key}" for key in field)


def _special_lesson(
    refusal: Refusal, learned: LearnedDialect, path: str, *, is_unknown: bool
) -> LearnedDialect | None:
    """Return the form for a refused field that cannot simply be left out; None for other fields."""
    if path.startswith("messages.") and path.endswith(".content"):
        return replace(learned, no_null=True)
    if path in ("messages.*.tool_calls", "messages.*.tool_call_id") and is_unknown:
        return replace(learned, calls_as_text=True)
    if path == "tools" and is_unknown:
        return _with_refused(learned, [("tools", "")])
    if path == "stream":
        return replace(learned, stream="never" if refusal.body.get("stream") else "always")
    if path in _BUDGETS and not is_unknown and path in refusal.body:
        budget = _smaller_budget(refusal, int(refusal.body[path]))
        return replace(learned, most_output=budget)
    return None


def _field_lessons(
    refusal: Refusal, learned: LearnedDialect, paths: Iterable[str]
) -> Iterator[LearnedDialect]:
    is_unknown = _speaks_of(_UNKNOWN_FIELD, refusal.text)
    refused: list[tuple[str, str]] = []
    for path in paths:
        if lesson := _special_lesson(refusal, learned, path, is_unknown=is_unknown):
            yield lesson
        elif path not in _ESSENTIAL:
            field = refusal.body.get(path)
            refused.append((path, "" if is_unknown or field is None else kind_of(field)))
    if refused:
        yield _with_refused(learned, refused)
        # Leave the field out then, since the server may refuse the field itself, or its other value
        # too.
        yield _with_refused(learned, [(path, "") for path, _ in refused])


def _with_refused(learned: LearnedDialect, refused: Iterable[tuple[str, str]]) -> LearnedDialect:
    return replace(learned, refused=learned.refused | frozenset(refused))


def _smaller_budget(refusal: Refusal, budget: int) -> int:
    """Return the largest budget that the text allows.

    If the text names none, it is half of the refused budget.
    """
    budgets = [number for number in numbers_in(refusal.text) if _LEAST_BUDGET <= number < budget]
    return max(budgets, default=max(_LEAST_BUDGET, budget // 2))


# --- roles ---


def _role_lessons(refusal: Refusal, learned: LearnedDialect) -> Iterator[LearnedDialect]:
    text = refusal.text.casefold()
    for phrase in _NO_SYSTEM:
        text = text.replace(phrase, "")
    if _speaks_of(_SYSTEM, text):
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
