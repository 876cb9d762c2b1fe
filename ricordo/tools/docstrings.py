"""What a docstring says of a function and of its parameters, in the styles of Google, NumPy and Sphinx.

A line that is understood as belonging to a parameter, or to the sections on results and errors, is read as that. Every other
line stays in the description, so that a model sees all that its author wrote.
"""

import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

_PARAMETERS = (
    r"(?:args|arguments|parameters|params|keyword args|keyword arguments|other parameters)"
)
_RESULTS = r"(?:returns?|yields?|raises|warns|receives)"
_HEADER = re.compile(
    rf"(?:(?P<parameters>{_PARAMETERS})|(?P<results>{_RESULTS}))\s*:\s*", re.IGNORECASE
)
_NUMPY_HEADER = re.compile(
    rf"(?:(?P<parameters>{_PARAMETERS})|(?P<results>{_RESULTS}))\s*", re.IGNORECASE
)
_UNDERLINE = re.compile(r"-{3,}|={3,}")
# The name of a parameter, as an item of a list or not, before its type and what it is.
_NAME = re.compile(r"(?:[-*\u2022]\s+)?`{0,2}\*{0,2}(\w+)`{0,2}")
_SEPARATORS = (":", "\uff1a", "\u2013", "\u2014")
_FIELD = re.compile(r":(?P<kind>\w+)(?:\s(?P<rest>[^:]*))?:(?P<text>.*)")
_OF_PARAMETER = frozenset({"param", "parameter", "arg", "argument", "key", "keyword", "kwarg"})
_OF_RESULT = frozenset(
    {
        "return",
        "returns",
        "rtype",
        "raise",
        "raises",
        "except",
        "exception",
        "yield",
        "yields",
        "ytype",
    }
)
# What says no more than the signature does.
_SIGNS_OF_TYPES = frozenset("_[], .|")
_WORDS = 3  # of a type at most


@dataclass
class Docstring:
    """What a docstring says: of the function, and of each parameter by its name."""

    description: str = ""
    arguments: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str, names: Collection[str]) -> Docstring:
    """Read a docstring of a function with parameters of these names."""
    reader = _Reader(inspect.cleandoc(text).splitlines(), frozenset(names))
    reader.read()
    description = "\n".join(line.rstrip() for line in reader.kept).strip()
    return Docstring(re.sub(r"\n{3,}", "\n\n", description), reader.arguments)


class _Reader:
    """Goes through the lines of a docstring once."""

    def __init__(self, lines: Sequence[str], names: frozenset[str]) -> None:
        self._lines = lines
        self._names = names
        self.kept: list[str] = []
        self.arguments: dict[str, str] = {}

    def read(self) -> None:
        at = 0
        while at < len(self._lines):
            line = self._lines[at]
            following = self._lines[at + 1] if at + 1 < len(self._lines) else ""
            google = _HEADER.fullmatch(line)
            numpy = _NUMPY_HEADER.fullmatch(line)
            sphinx = _FIELD.match(line.strip())
            if numpy and _UNDERLINE.fullmatch(following.strip()):
                end = self._end_of_numpy(at + 2)
                self._section(
                    self._lines[at + 2 : end],
                    self._lines[at:end],
                    is_numpy=True,
                    is_result=bool(numpy["results"]),
                )
            elif google and not line[:1].isspace():
                end = self._end_of_indented(at + 1)
                self._section(
                    self._lines[at + 1 : end],
                    self._lines[at:end],
                    is_result=bool(google["results"]),
                )
            elif sphinx:
                end = self._end_of_field(at + 1, _indent(line))
                self._field(sphinx, self._lines[at:end])
            else:
                end = at + 1
                self.kept.append(line)
            at = end

    def _end_of_indented(self, at: int) -> int:
        """The end of lines that are indented or empty."""
        while at < len(self._lines) and (
            not self._lines[at].strip() or self._lines[at][:1].isspace()
        ):
            at += 1
        return at

    def _end_of_numpy(self, at: int) -> int:
        """The end of a section, which is the next header, or a line that is no parameter at the margin."""
        while at < len(self._lines):
            line = self._lines[at]
            is_header = (
                at + 1 < len(self._lines)
                and _UNDERLINE.fullmatch(self._lines[at + 1].strip())
                and line.strip()
            )
            if is_header or _HEADER.fullmatch(line) or _FIELD.match(line):
                return at
            at += 1
        return at

    def _end_of_field(self, at: int, indent: int) -> int:
        """The end of a field's text: lines that are indented further, none of them empty."""
        while (
            at < len(self._lines) and self._lines[at].strip() and _indent(self._lines[at]) > indent
        ):
            at += 1
        return at

    def _section(
        self,
        body: Sequence[str],
        whole: Sequence[str],
        *,
        is_numpy: bool = False,
        is_result: bool = False,
    ) -> None:
        if is_result:
            return
        known = set(self.arguments)
        left = list(self._numpy(body) if is_numpy else self._google(body))
        if set(self.arguments) == known and self._names and any(line.strip() for line in body):
            self.kept += whole  # a section of another kind
        elif left:
            self.kept += ["", *left]

    def _google(self, body: Sequence[str]) -> Iterator[str]:
        """Read parameters, one at each line with the least indent; gives the lines that belong to none."""
        margin = min((_indent(line) for line in body if line.strip()), default=0)
        name = ""
        for line in body:
            found = _entry(line.strip()) if _indent(line) == margin else None
            if found and found[0] in self._names:
                name = found[0]
                self._add(name, _of_type(found[1]), found[2])
            elif found and " " not in line.strip().partition(":")[0]:
                name = ""  # of a parameter that is not there
                yield line.strip()
            elif name and line.strip():
                self._add(name, line.strip())
            elif line.strip():
                yield line.strip()

    def _numpy(self, body: Sequence[str]) -> Iterator[str]:
        """Read parameters, whose names stand at the margin with what they are below; gives the lines that belong to none."""
        margin = min((_indent(line) for line in body if line.strip()), default=0)
        names: list[str] = []
        for line in body:
            if line.strip() and _indent(line) == margin:
                before, _, kind = line.partition(":")
                listed = [name.strip().lstrip("*") for name in before.split(",")]
                if self._names.issuperset(listed):
                    names = listed
                    for name in names:
                        self._add(name, _of_type(kind))
                    continue
            if _indent(line) == margin and line.strip():
                names = []
            if not names and line.strip():
                yield line.strip()
            for name in names:
                self._add(name, line.strip())

    def _field(self, found: re.Match[str], lines: Sequence[str]) -> None:
        kind = found["kind"].lower()
        rest = (found["rest"] or "").split()
        name = rest[-1].lstrip("*") if rest else ""
        texts = [found["text"].strip(), *(line.strip() for line in lines[1:])]
        if kind in _OF_PARAMETER and name in self._names:
            self._add(name, _of_type(" ".join(rest[:-1])), *texts)
        elif kind == "type" and name in self._names:
            self._add(name, _of_type(" ".join(texts)))
        elif kind not in _OF_RESULT:
            self.kept += lines

    def _add(self, name: str, *texts: str) -> None:
        self.arguments[name] = " ".join(filter(None, (self.arguments.get(name, ""), *texts)))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _entry(line: str) -> tuple[str, str, str] | None:
    """A line that tells of a parameter: its name, what stands in the place of its type, and what it is."""
    found = _NAME.match(line)
    if found is None:
        return None
    rest = line[found.end() :]
    is_apart = rest[:1].isspace()
    rest = rest.lstrip()
    kind = ""
    if rest.startswith("("):
        end = _end_of_brackets(rest)
        kind = rest[1 : end - 1]
        is_apart = True
        rest = rest[end:].lstrip()
        if not end:
            return None
    if rest.startswith(_SEPARATORS):
        return found[1], kind, rest[1:].strip()
    if is_apart and rest.startswith("- "):
        return (found[1], kind, rest[1:].strip())
    return None


def _end_of_brackets(text: str) -> int:
    """The place behind the bracket that closes the first one; 0 where none does."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return place + 1
    return 0


def _of_type(text: str) -> str:
    """What is said at the place of a type, in brackets; nothing where it is just a type."""
    text = text.strip()
    kind = text.partition("default")[0]
    is_plain = len(text.split()) <= _WORDS and all(
        sign.isalnum() or sign in _SIGNS_OF_TYPES for sign in kind
    )
    if is_plain:
        return ""
    return f"({text})"
