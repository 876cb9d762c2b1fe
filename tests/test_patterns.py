"""No regular expression of the product takes more than linear time on any input.

Because of two of them a server once stopped for fifteen seconds on 100 kB of a model's output. So
the test finds every pattern in the source, and runs it on inputs that are made from the pattern's
parts. A pattern that is built at run time needs a row in `MADE`.
"""

import ast
import importlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ricordo
from ricordo.features.librarian import grammar
from ricordo.memory import facts
from ricordo.search import dates
from tests.seams.growth import FACTOR, MOST, cpu_seconds, is_linear
from tests.support.worst_inputs import repeats, worst_inputs

PACKAGE = Path(ricordo.__file__).parent
LENGTH = 2_000
NOTHING = 0.001  # seconds: quadratic work on LENGTH characters takes longer
EXPONENTIAL = 20  # characters: exponential time doubles with each one
SQUARE = MOST * FACTOR  # allowed factor for quadratic work; cubic work exceeds it
USES = {"match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
Run = Callable[[Any], object]


def _grammar(module: ModuleType) -> Iterator[tuple[re.Pattern[str], Run]]:
    return _compiled(module.PATTERNS.values(), "finditer", re.IGNORECASE | re.DOTALL)


def _compiled(
    patterns: Iterable[str], use: str, flags: int = 0
) -> Iterator[tuple[re.Pattern[str], Run]]:
    for pattern in patterns:
        yield (made := re.compile(pattern, flags)), _run(made, use)


# Patterns that are built at run time, with examples. The key is the file and the argument of `re`.
MADE: dict[tuple[str, str], Callable[[ModuleType], Iterable[tuple[re.Pattern[str], Run]]]] = {
    ("domain/ids.py", "pattern(prefix)"): lambda module: _compiled(
        [module.pattern("agent")], "fullmatch"
    ),
    ("domain/ids.py", "pattern(prefix).replace('-4[', '-[45][', 1)"): lambda module: _compiled(
        [module.pattern("agent").replace("-4[", "-[45][", 1)], "fullmatch"
    ),
    # Secrets are alternatives of literal texts, also with blanks between words.
    (
        "features/custom_tools/source/vault.py",
        "'|'.join((f'({form.pattern})' for form in self._forms))",
    ): lambda module: _compiled(
        [
            module.SecretMask({"a": "a" * 40, "b": "ab" * 20})._pattern.pattern,
            module.SecretMask({"c": "correct horse battery", "d": "a aa a\naaa"})._pattern.pattern,
        ],
        "search",
    ),
    ("features/librarian/grammar.py", "PATTERNS[name]"): _grammar,
    ("features/knowledge/facts/extraction.py", "pattern"): lambda module: _compiled(
        [form for forms in module.PATTERNS.values() for form in forms.values()],
        "search",
        re.IGNORECASE,
    ),
    ("llm/embedding/remote.py", "family"): lambda module: _compiled(
        (row[0] for row in module._FAMILIES), "match"
    ),
    (
        "memory/line_likeness.py",
        "_SENTENCE_BEGINS + re.escape(words) + _SENTENCE_ENDS",
    ): lambda module: _compiled(
        [
            f"{module._SENTENCE_BEGINS}{re.escape(said)}{module._SENTENCE_ENDS}"
            for said in ("a", "a a", "has a cat")
        ],
        "search",
        re.IGNORECASE,
    ),
    ("memory/facts.py", "form"): lambda module: _compiled(
        (form for forms in module.FORMS.values() for form in forms),
        "finditer",
        re.IGNORECASE | re.MULTILINE,
    ),
    ("memory/facts.py", "f'(?<!\\\\w){re.escape(contrast.old)}(?!\\\\w)'"): lambda _: _compiled(
        [r"(?<!\w)5(?!\w)", r"(?<!\w)a\-a(?!\w)"], "search", re.IGNORECASE
    ),
    ("memory/fact_lines.py", "f\"(?<!\\\\w){re.escape(phrase.rstrip('.'))}(?!\\\\w)\""): lambda _: (
        _compiled([r"(?<!\w)5(?!\w)", r"(?<!\w)a\ a(?!\w)"], "search", re.IGNORECASE)
    ),
    ("prompt/system_prompt.py", "pattern"): lambda module: [
        (made, _run(made, "sub"))
        for made in (module._closing(()), module._closing(("value", "notes")))
    ],
    ("features/openwebui/mirror/deleted_chats.py", "'chat_' + chat"): lambda module: _compiled(
        [f"chat_{module._CHAT_ID}"], "fullmatch"
    ),
    ("search/dates.py", "pattern"): lambda module: _compiled(
        [row[-1] for row in (*module.RELATIVE, *module.COUNTED)], "fullmatch"
    ),
}


# Files whose patterns never get texts longer than this number of characters.
BOUNDED = {
    "features/librarian/grammar.py": grammar.READ_LENGTH,
    "memory/facts.py": facts.READ_LENGTH,
    "search/dates.py": dates.QUERY_LENGTH,
}
# Patterns that get only texts that another pattern has matched.
BEHIND_ANOTHER = {("memory/schemas.py", "_PART"): "finds the parts of a key that _HEAD took"}


@dataclass(frozen=True)
class Source:
    """The calls of `re` in a file, and the methods of patterns that the file uses, by name."""

    calls: list[ast.Call]
    uses: dict[str, set[str]]


@cache
def _sources() -> dict[str, Source]:
    """Parse the files that use regular expressions.

    Parsing all files would take seconds.
    """
    texts = {
        str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))
    }
    sources = {
        path: _read(text)
        for path, text in texts.items()
        if re.search(r"^import re$", text, re.MULTILINE)
    }
    return {path: source for path, source in sources.items() if source.calls}


def _read(text: str) -> Source:
    calls: list[ast.Call] = []
    uses: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name)) if (
                name in USES | {"compile"}
            ):
                calls.append(node)
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if name in USES | {"pattern"}:
                uses.setdefault(owner, set()).add(name)
    return Source(calls, uses)


def _patterns(path: str) -> Iterator[tuple[re.Pattern[Any], Run]]:
    """Yield the patterns of a file, once for each method that the file calls on them."""
    module = importlib.import_module(
        "ricordo." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    )
    uses = _sources()[path].uses | {name: set() for file, name in BEHIND_ANOTHER if file == path}
    kept = {
        pattern: uses.get(name, {"finditer"})
        for name, value in vars(module).items()
        for pattern in _within(value)
    }
    for pattern, ways in kept.items():
        yield from ((pattern, _run(pattern, way)) for way in ways - {"pattern"})
    for call in _sources()[path].calls:
        source = ast.unparse(call.args[0])
        if (path, source) in MADE:
            yield from MADE[path, source](module)
            continue
        flags = "0" if not call.keywords else ast.unparse(call.keywords[0].value)
        if call.func.attr == "compile" and len(call.args) > 1:  # type: ignore[attr-defined]
            flags = ast.unparse(call.args[1])
        try:
            pattern = re.compile(*(eval(given, dict(vars(module))) for given in (source, flags)))  # noqa: S307 - our own
        except NameError:
            assert kept, f"{path}: add a row to MADE for re.{call.func.attr}({source})"  # type: ignore[attr-defined]
            continue
        if pattern not in kept:
            way = call.func.attr  # type: ignore[attr-defined]
            yield pattern, _run(pattern, "search" if way == "compile" else way)


def _within(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _within(one)
    elif isinstance(value, dict):
        yield from _within(list(value.values()))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _within([getattr(value, each.name) for each in fields(value)])


def _run(pattern: re.Pattern[Any], use: str) -> Run:
    method = getattr(pattern, use)
    if use in ("sub", "subn"):
        return lambda text: method(text[:0], text)
    return (lambda text: deque(method(text), maxlen=0)) if use == "finditer" else method


@lru_cache(maxsize=4)  # the texts of one pattern
def _texts(pattern: re.Pattern[Any], length: int) -> list[str | bytes]:
    return list(worst_inputs(pattern, length))


def slow_on(pattern: re.Pattern[Any], run: Run, length: int = LENGTH, most: int = MOST) -> str:
    """Return a text on which the pattern takes more than linear time; "" if there is none.

    A text with FACTOR times the length may take `most` times as long.
    """
    if not repeats(pattern):
        return ""
    short = _texts(pattern, EXPONENTIAL)
    is_fast = cpu_seconds(lambda _: deque(map(run, short), maxlen=0), EXPONENTIAL) <= NOTHING
    for place, text in enumerate(() if is_fast else short):
        if not is_linear(
            lambda size, place=place: run(_texts(pattern, size)[place]), EXPONENTIAL // 2, factor=2
        ):
            return repr(text)
    for place, text in enumerate(_texts(pattern, length // FACTOR)):

        def work(size: int, place: int = place) -> object:
            return run(_texts(pattern, size)[place])

        if is_linear(work, length // FACTOR, most=most, nothing=NOTHING):
            continue
        # A repetition may have a limit of about a hundred. Up to that length its time may grow
        # faster than a square, and after it more slowly. Then the time of the double length
        # decides.
        if not is_linear(work, length // FACTOR, most=2 * most, nothing=NOTHING) or not is_linear(
            work, 2 * length // FACTOR, most=most, nothing=NOTHING
        ):
            return repr(text[:60])
    return ""


def test_every_pattern_takes_linear_time_on_its_worst_inputs() -> None:
    slow = {
        (path, pattern.pattern): text
        for path in _sources()
        for pattern, run in _patterns(path)
        # If the length has a limit, quadratic time is allowed.
        if (
            text := slow_on(
                pattern, run, BOUNDED.get(path, LENGTH), SQUARE if path in BOUNDED else MOST
            )
        )
    }
    assert slow == {}


def test_the_listed_composed_patterns_still_exist() -> None:
    here = {
        (path, ast.unparse(call.args[0]))
        for path, source in _sources().items()
        for call in source.calls
    }
    assert set(MADE) <= here


@pytest.mark.parametrize(
    ("pattern", "use"),
    [
        (r"\s+x", "search"),
        (r"(\w+)[^<]*x", "match"),
        (r"(?:a+)+x", "match"),
        (r"<(a|b)>\n.*?</\1>", "finditer"),
        (r"^(?:\s*\w+)*$", "match"),
        (r"\[ARGS\]([\w.-]+)[^<]*<end>", "search"),
        (rb"(\w+)[^<]*x", "match"),
    ],
)
def test_the_inputs_reveal_slow_patterns(pattern: str, use: str) -> None:
    made = re.compile(pattern, re.DOTALL)
    assert slow_on(made, _run(made, use))
