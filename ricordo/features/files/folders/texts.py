"""The text of a file and its chunks, which searches find.

Text files are decoded in this process; other types are parsed in the sandbox.
"""

import codecs
import mimetypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import orjson

from ricordo.errors import Invalid, Unavailable
from ricordo.features.files.folders.encodings import GuessedEncoding, guess, wide_encoding
from ricordo.offload import offload
from ricordo.sandbox.process import program_beside
from ricordo.sandbox.service import Sandbox, SandboxLimits

MOST_CHARACTERS = 10_000_000  # of one file's text
# The kinds of files that the sandbox program parses, by suffix.
PARSED = {
    ".pdf": "pdf",
    ".rtf": "rtf",
    ".docx": "docx",
    ".pptx": "pptx",
    ".xlsx": "xlsx",
    ".eml": "email",
} | dict.fromkeys((".html", ".htm", ".xhtml"), "html")
_TYPES = {
    ".md": "text/markdown",
    ".jsonl": "application/jsonl",
    ".ts": "text/typescript",
    ".docx": "",
    ".log": "text/plain",
}
_LIMITS = SandboxLimits(memory_mb=1024, cpu_seconds=60, seconds=90, processes=8, output_kb=48_000)
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    *((mark, "utf-32") for mark in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)),
    *((mark, "utf-16") for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_SAMPLE = 8192  # bytes that decide if a file is text
_LINE_ENDS = re.compile("\r\n?|\x0b|\x0c|\x85|\u2028|\u2029")
# Characters of a chunk: it ends at the first empty line after `_ENOUGH`, or else at `_MOST`.
_ENOUGH = 900
_MOST = 1800


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file. `encoding` is set if it had to be guessed."""

    text: str
    encoding: GuessedEncoding | None = None

    def notes_for(self, type: str | None) -> tuple[str | None, str | None]:
        """Return the file's type with the guessed encoding, and a note.

        The note is None if the guess is certain.

        Args:
            type: The MIME type that the file's name shows, or None.
        """
        if self.encoding is None:
            return type, None
        name = self.encoding.name
        note = (
            f"The encoding is not marked. It was read as {name}, but other encodings fit nearly "
            "as well. If its text looks wrong, save it as UTF-8 and upload it again."
        )
        return f"{type or 'text/plain'}; charset={name}", note if self.encoding.is_unsure else None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A searchable part of a file's text: whole lines, except for very long ones.

    `line` is its first line, counted from 0.
    """

    number: int
    line: int
    text: str


def type_of(name: str) -> str:
    """Return the MIME type of a file by its name."""
    suffix = PurePosixPath(name).suffix.lower()
    return _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "text/plain"


def is_readable(name: str, content: bytes) -> bool:
    """Return True if a file of this name can be read.

    It must be of a known type, or look like text.

    Args:
        name: The file's name, of which the suffix counts.
        content: The file, or at least its first 8,192 bytes.
    """
    sample = content[:_SAMPLE]
    return (
        PurePosixPath(name).suffix.lower() in PARSED
        or _is_text(sample)
        or _known_encoding(sample) is not None
    )


async def text_of(sandbox: Sandbox, name: str, content: bytes) -> FileText:
    """Return the text of a file, with line feeds as line ends.

    Args:
        sandbox: The sandbox that parses documents. Text files are decoded without it.
        name: The file's name; its suffix decides how the content is read.
        content: The whole file.

    Raises:
        Invalid: if it cannot be read, if a parsed document has no text, or for a text of more than
            `MOST_CHARACTERS`.
        Unavailable: if the sandbox or the extra for this type is missing.
    """
    kind = PARSED.get(PurePosixPath(name).suffix.lower())
    encoding = None
    if kind:
        text = await _parsed(sandbox, kind, content)
    else:
        text, encoding = await offload(lambda: decoded_text(content), len(content))
    if len(text) > MOST_CHARACTERS:
        raise Invalid(
            f"Its text has {len(text):,} characters, and {MOST_CHARACTERS:,} are allowed. Upload "
            "it in parts."
        )
    return FileText(await offload(lambda: _tidy(text), len(text)), encoding)


def lines_in(text: str) -> int:
    """Return the number of lines; a line break at the end begins no further line."""
    return text.count("\n") + bool(text and text[-1] != "\n")


def chunks_of(text: str) -> Iterator[Chunk]:
    """Cut a text into chunks. The same text always gives the same chunks."""
    number = start = first = line = 0
    size = len(text)
    while start < size:
        end = start
        while end < size:
            stop = text.find("\n", end) + 1 or size
            is_break = stop == end + 1 and end - start >= _ENOUGH
            if stop - start > _MOST or is_break:
                break
            end = stop
            line = line + 1
        if end == start:  # a single line is longer than a chunk
            end = start + _MOST
            if (space := text.rfind(" ", start + _ENOUGH, end) + 1) and end < size:
                end = space
        part = text[start:end]
        if part.strip():
            yield Chunk(number, first + len(part) - len(part.lstrip("\n")), part.strip("\n"))
            number += 1
        if end < size and text[end] == "\n" and not part.endswith("\n"):
            line += 1
            end += 1
        start = end
        first = line


def decoded_text(content: bytes) -> tuple[str, GuessedEncoding | None]:
    """Return the text of a text file, and its encoding if that had to be guessed.

    Args:
        content: The whole file, in any encoding that people use.

    Raises:
        Invalid: if it is not text.
    """
    if name := _known_encoding(content):
        return content.decode(name, "replace"), None
    if not _is_text(content):
        raise Invalid(
            "It is not text: it holds bytes that text cannot have. Check the ending of its name."
        )
    try:
        return content.decode("utf-8"), None
    except UnicodeDecodeError as error:
        if error.end >= len(content) and error.reason == "unexpected end of data":
            return content.decode("utf-8", "replace"), None
    guessed = guess(content)
    return content.decode(guessed.name, "replace"), guessed


def _known_encoding(content: bytes) -> str | None:
    """Return the encoding that a byte order mark or the positions of zero bytes prove."""
    return next((name for mark, name in _MARKS if content.startswith(mark)), None) or wide_encoding(
        content
    )


def _is_text(content: bytes) -> bool:
    return len(_CONTROL.findall(content[:_SAMPLE])) * 100 <= len(content[:_SAMPLE])


def _tidy(text: str) -> str:
    """Remove characters that cannot be stored, and use line feeds as line ends.

    NULs, which PostgreSQL does not store, are dropped. Lone surrogates become question marks.
    """
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return _LINE_ENDS.sub("\n", text)


async def _parsed(sandbox: Sandbox, kind: str, content: bytes) -> str:
    outcome = await sandbox.run_python(
        program_beside(__file__), kind.encode() + b"\n" + content, limits=_LIMITS
    )
    try:
        answer = orjson.loads(outcome.answer)
        text, error, missing = (answer.get(name) for name in ("text", "error", "missing"))
    except (ValueError, AttributeError):
        text = error = missing = None
    if missing:
        raise Unavailable(
            f"Files of this type need the extra `files` ({missing} is missing): install "
            "ricordo[files]."
        )
    if not isinstance(text, str):
        reason = outcome.reason or "The program that reads it failed."
        if isinstance(error, str):
            reason = error
        raise Invalid(f"It cannot be read as {kind}. {reason[:500]}")
    if not text.strip():
        raise Invalid("It holds no text. Run text recognition (OCR) on scanned pages first.")
    return text
