"""Read a memory archive: its manifest, and its records one by one.

An archive is untrusted. The manifest, each record and the unpacked files have limits of size (the
last one only over HTTP). Each file must have the hash in the manifest, and each record is checked
by its class. Errors name the file and the line.

A later server may write values that are unknown here, such as a new policy of a block. A record's
class may define `later_words`: for each such field the value to use instead, which is the most
careful one. The archive's `notes` name each use. All other unknown values are refused.
"""

import hashlib
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from ricordo.domain.zips import ZIP_FAULTS
from ricordo.errors import Invalid, TooLong
from ricordo.features.documents.memory_archives.models import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    Manifest,
    content_hash,
)

R = TypeVar("R", bound=BaseModel)
_MOST_MANIFEST = 16 * 1024 * 1024
_LONGEST_LINE = 64 * 1024 * 1024
# A NUL that is escaped in JSON; stored texts cannot contain it. If its backslash is itself escaped,
# it is plain text.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
# Pydantic's types of the error for a word that is not among the known ones.
_UNKNOWN_WORD = frozenset({"literal_error", "string_pattern_mismatch"})
_NO_ARCHIVE = (
    "This is not an archive of a person's memory. Send the memory.zip that a Ricordo server "
    "exported."
)
_DAMAGED = "The archive is damaged: {} cannot be read. Export the memory again."
_CHANGED = (
    "{} does not match the manifest, so it was changed or cut since the export. Export the memory "
    "again."
)


class MemoryArchive:
    """An archive that is open for reading.

    Attributes:
        manifest: The manifest.
        names: The names of its other files.
        notes: A sentence for each field of a read record whose word is unknown here.
    """

    def __init__(self, archive: zipfile.ZipFile, most_bytes: int | None) -> None:
        """Read the manifest.

        Args:
            archive: The zip file.
            most_bytes: The bytes that its files may have together, unpacked; None sets no limit.

        Raises:
            Invalid: if the file is no memory archive, or has a later format.
            TooLong: if its files are larger than allowed.
        """
        self._archive = archive
        self.notes: list[str] = []
        # Tools that pack folders also write an entry for each folder.
        members = {member.filename: member for member in archive.infolist() if not member.is_dir()}
        if MANIFEST not in members:
            raise Invalid(_NO_ARCHIVE)
        size = sum(member.file_size for member in members.values())
        if most_bytes is not None and size > most_bytes:
            raise TooLong(
                f"The archive unpacks to {size} bytes, and {most_bytes} are allowed over HTTP. Use "
                "`ricordo import memory` on the server, which has no such limit."
            )
        self._sizes = {name: member.file_size for name, member in members.items()}
        if self._sizes[MANIFEST] > _MOST_MANIFEST:
            raise Invalid(_NO_ARCHIVE)
        self.manifest = _parsed(Manifest, self._content(MANIFEST), MANIFEST, 1)
        _check_manifest(self.manifest)
        self.names = [name for name in members if name != MANIFEST]
        for name in self.manifest.files:
            if name not in members:
                raise Invalid(f"The archive lacks {name}. Export the memory again.")
        for name in self.names:
            if name not in self.manifest.files:
                raise Invalid(_CHANGED.format(name))

    def text(self, name: str) -> str:
        """Return the text of a file.

        Args:
            name: A name of `names`.

        Raises:
            Invalid: The file cannot be read, is not UTF-8, or differs from its hash in the
                manifest.
        """
        content = self._content(name)
        if hashlib.sha256(content).hexdigest() != self.manifest.files[name]:
            raise Invalid(_CHANGED.format(name))
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise Invalid(_DAMAGED.format(name)) from None

    def records(self, name: str, record: type[R]) -> Iterator[R]:
        """Yield the records of a file; none if the archive lacks the file.

        Args:
            name: The name of a file of JSON lines, such as "history.jsonl".
            record: The class of its records. Unknown values that it replaces are added to `notes`.

        Raises:
            Invalid: A record is faulty; after the last record, if the file differs from its hash in
                the manifest.
        """
        for number, line in self._lines(name):
            yield _parsed(record, line, name, number, self.notes)

    def _lines(self, name: str) -> Iterator[tuple[int, bytes]]:
        if name not in self._sizes:
            return
        digest = hashlib.sha256()
        with self._opened(name) as file:
            number = 0
            while line := file.readline(_LONGEST_LINE):
                number += 1
                digest.update(line)
                if len(line) >= _LONGEST_LINE:
                    raise Invalid(f"{name}, line {number}: the record is too long.")
                yield number, line
        if digest.hexdigest() != self.manifest.files[name]:
            raise Invalid(_CHANGED.format(name))

    def _content(self, name: str) -> bytes:
        with self._opened(name) as file:
            # Read one byte more than the stated size, to detect a false size.
            content = file.read(self._sizes[name] + 1)
        if len(content) != self._sizes[name]:
            raise Invalid(_DAMAGED.format(name))
        return content

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        try:
            with self._archive.open(name) as file:
                yield file
        except ZIP_FAULTS:
            raise Invalid(_DAMAGED.format(name)) from None


@contextmanager
def opened_archive(file: IO[bytes], most_bytes: int | None = None) -> Iterator[MemoryArchive]:
    """Open an archive for reading, as a context manager.

    Args:
        file: The zip file, open for reading; it must allow seeking.
        most_bytes: The bytes that its files may have together, unpacked; None sets no limit.

    Raises:
        Invalid: The file is no memory archive, or has a later format.
        TooLong: Its files are larger than allowed.
    """
    try:
        archive = zipfile.ZipFile(file)
    except ZIP_FAULTS:
        raise Invalid(_NO_ARCHIVE) from None
    with archive:
        yield MemoryArchive(archive, most_bytes)


def _parsed(
    record: type[R], line: bytes, name: str, number: int, notes: list[str] | None = None
) -> R:
    """Return the record in this line.

    Args:
        record: The class of the record.
        line: The record as JSON.
        name: The file that contains the line.
        number: The number of the line in the file, from 1.
        notes: The list to which unknown words are added; with None, none is accepted.

    Raises:
        Invalid: if the line is no such record, or has an unknown word without a substitute.
    """
    if _NUL.search(line):
        raise Invalid(f"{name}, line {number}: a text holds a NUL character.")
    try:
        return record.model_validate_json(line)
    except ValidationError as error:
        substitutes = {} if notes is None else _substitutes(record, error)
        if notes is None or not substitutes:
            raise _faulty(error, name, number) from None
    values = orjson.loads(line)
    for field, substitute in substitutes.items():
        used = "nothing" if substitute is None else f'"{substitute}"'
        notes.append(
            f"{name}, line {number}: {field} is {str(values[field])[:80]!r}, which this server "
            f"does not know. It was restored with {used} instead."
        )
    # Pydantic reads dates from JSON differently from Python's values, so it gets JSON again.
    mended = orjson.dumps({**values, **substitutes})
    return _parsed(record, mended, name, number)


def _substitutes(record: type[BaseModel], error: ValidationError) -> dict[str, Any]:
    """Return the values to take for unknown words, by field; empty if anything else is wrong."""
    later_words = getattr(record, "later_words", {})
    fields = {
        ".".join(map(str, fault["loc"])): fault["type"]
        for fault in error.errors(include_url=False, include_input=False)
    }
    if not later_words.keys() >= fields.keys() or not set(fields.values()) <= _UNKNOWN_WORD:
        return {}
    return {field: later_words[field] for field in fields}


def _faulty(error: ValidationError, name: str, number: int) -> Invalid:
    fault = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in fault["loc"]) or "the record"
    advice = ""
    if fault["type"] in _UNKNOWN_WORD:
        advice = " A later server may know it. Update this server first."
    return Invalid(f"{name}, line {number}: {place}: {fault['msg']}.{advice}")


def _check_manifest(manifest: Manifest) -> None:
    """Raise Invalid if this server cannot read the archive, or the manifest was changed."""
    if manifest.format != FORMAT:
        raise Invalid(_NO_ARCHIVE)
    if manifest.version > FORMAT_VERSION:
        raise Invalid(
            f"The archive has format version {manifest.version}, but this server reads "
            f"versions up to {FORMAT_VERSION}. Update this server first."
        )
    if content_hash(manifest.files) != manifest.content:
        raise Invalid(_CHANGED.format(MANIFEST))
