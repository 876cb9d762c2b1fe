"""Reading of files that a user names in a command."""

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
