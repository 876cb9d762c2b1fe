"""Reading and writing of files that a user names in a command."""

import os
from pathlib import Path

from ricordo.errors import Invalid


def read_file(file: Path) -> bytes:
    """Return the file's content.

    Args:
        file: The path as the user typed it.

    Raises:
        Invalid: The file cannot be read; the sentence says why.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}.") from None


def read_text_file(file: Path) -> str:
    """Return the text of a UTF-8 file, without its byte order mark.

    Args:
        file: The path as the user typed it.

    Raises:
        Invalid: The file cannot be read, or it is not UTF-8 text.
    """
    try:
        return read_file(file).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid(f"{file} is not UTF-8 text. Save it as UTF-8.") from None


def require_place(file: Path) -> None:
    """Check before long work that a file can be written at its end.

    Args:
        file: The path as the user typed it.

    Raises:
        Invalid: The path is a folder, or its folder is missing or read-only.
    """
    if file.is_dir():
        raise Invalid(f"{file} is a folder. Name a file.")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise Invalid(
            f"{file} cannot be written. Name a file in a folder that exists and can be written."
        )


def write_file(file: Path, content: bytes) -> None:
    """Write a file, which replaces one of the same name.

    Args:
        file: The path as the user typed it.
        content: The new content.

    Raises:
        Invalid: The path is a folder, or its folder is missing or read-only.
        OSError: The disk is full.
    """
    require_place(file)
    file.write_bytes(content)
