"""Read docstrings of functions in the styles of Google, NumPy and Sphinx.

A line about a parameter, or in the sections on results and errors, is read as such. Every other
line remains in the description, so that a model sees everything that the author wrote.
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
# The name of a parameter before its type and description; it may be an item of a list.
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
# Characters of plain types, which the signature already contains.
_SIGNS_OF_TYPES = frozenset("_[], .|")
_WORDS = 3  # the most parts of a type


@dataclass
class Docstring:
    """A function's description, and those of its parameters by name."""

    description: str = ""
    arguments: dict[str, str] = field(default_factory=dict)


def read_docstring(text: str, parameter_names: Collection[str]) -> Docstring:
    """Read a docstring of a function with parameters of these names.

    Args:
        text: The docstring as it is in the source.
        parameter_names: The function's parameters. Entries for other names stay in the description.
    """
    reader = _Reader(inspect.cleandoc(text).splitlines(), frozenset(parameter_names))
    reader.read()
    description = "\n".join(line.rstrip() for line in reader.description_lines).strip()
    return Docstring(re.sub(r"\n{3,}", "\n\n", description), reader.arguments)


class _Reader:
    """Reads the lines of a docstring once."""

    def __init__(self, lines: Sequence[str], names: frozenset[str]) -> None:
        self._lines = lines
        self._names = names
        self.description_lines: list[str] = []
        self.arguments: dict[str, str] = {}

    def read(self) -> None:
        index = 0
        while index < len(self._lines):
            line = self._lines[index]
            if index + 1 < len(self._lines):
                following = self._lines[index + 1]
            else:
                following = ""
            google = _HEADER.fullmatch(line)
            numpy = _NUMPY_HEADER.fullmatch(line)
            sphinx = _FIELD.match(line.strip())
            if numpy and _UNDERLINE.fullmatch(following.strip()):
                end = self._end_of_numpy(index + 2)
                self._section(
                    self._lines[index + 2 : end],
                    self._lines[index:end],
                    is_numpy=True,
                    is_result=bool(numpy["results"]),
                )
            elif google and not line[:1].isspace():
                end = self._end_of_indented(index + 1)
                self._section(
                    self._lines[index + 1 : end],
                    self._lines[index:end],
                    is_result=bool(google["results"]),
                )
            elif sphinx:
                end = self._end_of_field(index + 1, _indent(line))
                self._field(sphinx, self._lines[index:end])
            else:
                end = index + 1
                self.description_lines.append(line)
            index = end

    def _end_of_indented(self, index: int) -> int:
        """Return the end of lines that are indented or empty."""
        while index < len(self._lines) and (
            not self._lines[index].strip() or self._lines[index][:1].isspace()
        ):
            index += 1
        return index

    def _end_of_numpy(self, index: int) -> int:
        """Return the end of a NumPy section.

        It is the next header of any style, or a Sphinx field.
        """
        while index < len(self._lines):
            line = self._lines[index]
            is_header = (
                index + 1 < len(self._lines)
                and _UNDERLINE.fullmatch(self._lines[index + 1].strip())
                and line.strip()
            )
            if is_header or _HEADER.fullmatch(line) or _FIELD.match(line):
                return index
            index += 1
        return index

    def _end_of_field(self, index: int, indent: int) -> int:
        """Return the end of a field's text: indented further, without empty lines."""
        while (
            index < len(self._lines)
            and self._lines[index].strip()
            and _indent(self._lines[index]) > indent
        ):
            index += 1
        return index

    def _section(
        self,
        body: Sequence[str],
        section_lines: Sequence[str],
        *,
        is_numpy: bool = False,
        is_result: bool = False,
    ) -> None:
        if is_result:
            return
        known_names = set(self.arguments)
        unused_lines = list(self._numpy(body) if is_numpy else self._google(body))
        if (
            set(self.arguments) == known_names
            and self._names
            and any(line.strip() for line in body)
        ):
            self.description_lines += section_lines  # a section of another kind
        elif unused_lines:
            self.description_lines += ["", *unused_lines]

    def _google(self, body: Sequence[str]) -> Iterator[str]:
        """Read parameters, which begin at the smallest indent; yield the other lines."""
        margin = min((_indent(line) for line in body if line.strip()), default=0)
        name = ""
        for line in body:
            if _indent(line) == margin:
                entry = _entry(line.strip())
            else:
                entry = None
            if entry and entry[0] in self._names:
                name = entry[0]
                self._add(name, _of_type(entry[1]), entry[2])
            elif entry and " " not in line.strip().partition(":")[0]:
                name = ""  # an unknown parameter
                yield line.strip()
            elif name and line.strip():
                self._add(name, line.strip())
            elif line.strip():
                yield line.strip()

    def _numpy(self, body: Sequence[str]) -> Iterator[str]:
        """Read parameters: names at the margin, descriptions below; yield other lines."""
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

    def _field(self, match: re.Match[str], lines: Sequence[str]) -> None:
        kind = match["kind"].lower()
        rest = (match["rest"] or "").split()
        name = rest[-1].lstrip("*") if rest else ""
        texts = [match["text"].strip(), *(line.strip() for line in lines[1:])]
        if kind in _OF_PARAMETER and name in self._names:
            self._add(name, _of_type(" ".join(rest[:-1])), *texts)
        elif kind == "type" and name in self._names:
            self._add(name, _of_type(" ".join(texts)))
        elif kind not in _OF_RESULT:
            self.description_lines += lines

    def _add(self, name: str, *texts: str) -> None:
        self.arguments[name] = " ".join(filter(None, (self.arguments.get(name, ""), *texts)))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _entry(line: str) -> tuple[str, str, str] | None:
    """Return the name, type and description from a line about a parameter."""
    match = _NAME.match(line)
    if match is None:
        return None
    rest = line[match.end() :]
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
        return match[1], kind, rest[1:].strip()
    if is_apart and rest.startswith("- "):
        return (match[1], kind, rest[1:].strip())
    return None


def _end_of_brackets(text: str) -> int:
    """Return the index after the matching bracket; 0 if there is none."""
    depth = 0
    for index, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return index + 1
    return 0


def _of_type(text: str) -> str:
    """Return, in brackets, a text that is written where a type is expected.

    Returns "" if the text is only a type.
    """
    text = text.strip()
    kind = text.partition("default")[0]
    is_plain = len(text.split()) <= _WORDS and all(
        sign.isalnum() or sign in _SIGNS_OF_TYPES for sign in kind
    )
    if is_plain:
        return ""
    return f"({text})"
