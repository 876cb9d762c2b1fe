"""Sandbox program that extracts the text of a document.

It reads a line with the file's kind and then the file from standard input, and writes JSON with the
text to descriptor 3.
"""

import codecs
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MOST_PAGES = 5_000
_LEVELS = frozenset("123456789")  # of headings in Word
MOST_ROWS = 200_000
MOST_UNPACKED = 300 * 2**20
# The most characters of a text: one more than the caller accepts, so that the caller notices a
# longer text.
MOST = 10_000_001


class Unreadable(Exception):
    """The file cannot be read; the message is the reason."""


def joined(parts: Iterable[str]) -> str:
    """Join the parts with empty lines between them, up to `MOST` characters.

    Args:
        parts: The parts of a text. They are read only until the limit is reached.
    """
    texts: list[str] = []
    size = 0
    for part in parts:
        text = part.rstrip()
        texts.append(text)
        size += len(text) + 2
        if size > MOST:
            break
    return "\n\n".join(texts)[:MOST]


def pages_of_pdf(content: bytes) -> Iterator[str]:
    """Yield the text of each page that has text, below a line with its number.

    Args:
        content: The bytes of the PDF.

    Raises:
        Unreadable: The PDF needs a password, or has too many pages.
    """
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise Unreadable("It needs a password. Save it without one.")
    if len(reader.pages) > MOST_PAGES:
        raise Unreadable(f"It has {len(reader.pages)} pages, and {MOST_PAGES} are allowed.")
    for number, page in enumerate(reader.pages, 1):
        if text := page.extract_text().strip():
            yield f"[page {number}]\n{text}"


def unpacked(content: bytes) -> io.BytesIO:
    """Return a zip file as a stream, after a check of its unpacked size.

    Args:
        content: The bytes of a zip file, such as a Word document.

    Raises:
        Unreadable: It states more than 300 MB as its unpacked size.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > MOST_UNPACKED:
        raise Unreadable(
            f"It unpacks to {size // 2**20} MB, and {MOST_UNPACKED // 2**20} are allowed."
        )
    return io.BytesIO(content)


def row_of(cells: Iterable[Any]) -> str:
    """Return a row of a table as one line, with bars between the cells.

    Args:
        cells: The values of the cells; None is an empty cell.
    """
    return " | ".join(" ".join(str("" if cell is None else cell).split()) for cell in cells).rstrip(
        " |"
    )


def parts_of_docx(content: bytes) -> Iterator[str]:
    """Yield the paragraphs and tables of a Word document, headings in Markdown.

    Args:
        content: The bytes of the document.

    Raises:
        Unreadable: It is too large when it is unpacked.
    """
    import docx
    from docx.table import Table

    for part in docx.Document(unpacked(content)).iter_inner_content():
        if isinstance(part, Table):
            yield "\n".join(row_of(cell.text for cell in row.cells) for row in part.rows)
        elif part.text.strip():
            style = (part.style.name if part.style else "") or ""
            level = style.removeprefix("Heading ")
            mark = ""
            if style.startswith("List"):
                mark = "- "
            elif style.startswith("Heading ") and level in _LEVELS:
                mark = "#" * int(level) + " "
            yield mark + part.text


def slides_of(content: bytes) -> Iterator[str]:
    """Yield the text of each slide with its notes, below a line with its number.

    Args:
        content: The bytes of the PowerPoint file.

    Raises:
        Unreadable: It is too large when it is unpacked.
    """
    import pptx

    for number, slide in enumerate(pptx.Presentation(unpacked(content)).slides, 1):
        texts = [f"[slide {number}]"]
        for shape in shapes_of(slide.shapes):
            if shape.has_text_frame and shape.text_frame.text.strip():
                texts.append(shape.text_frame.text)
            elif shape.has_table:
                texts += [row_of(cell.text for cell in row.cells) for row in shape.table.rows]
        if (
            slide.has_notes_slide
            and (notes := slide.notes_slide.notes_text_frame)
            and notes.text.strip()
        ):
            texts.append(f"Notes: {notes.text}")
        yield "\n".join(texts)


def shapes_of(shapes: Iterable[Any]) -> Iterator[Any]:
    """Yield the shapes, with those inside a group in its place.

    Args:
        shapes: The shapes of a slide or of a group.
    """
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from shapes_of(shape.shapes)
        else:
            yield shape


def sheets_of(content: bytes) -> Iterator[str]:
    """Yield each sheet as lines, below a line with its title.

    Args:
        content: The bytes of the Excel file. Formulas are read as their last values.

    Raises:
        Unreadable: It is too large when it is unpacked, or a sheet is too long.
    """
    import openpyxl

    book = openpyxl.load_workbook(unpacked(content), read_only=True, data_only=True)
    for sheet in book.worksheets:
        lines = [f"[sheet {sheet.title}]"]
        size = 0
        for count, row in enumerate(sheet.iter_rows(values_only=True)):
            line = row_of(row)
            size += len(line)
            if count >= MOST_ROWS:
                raise Unreadable(
                    f"The sheet {sheet.title} has more than {MOST_ROWS} rows. Save it as several "
                    "files."
                )
            if size >= MOST:
                raise Unreadable(
                    f"The sheet {sheet.title} has more than {MOST - 1} characters. Save it as "
                    "several files."
                )
            if line:
                lines.append(line)
        yield "\n".join(lines)


def text_of_html(content: str | bytes) -> str:
    """Return the text of a page as Markdown, without scripts and pictures.

    Args:
        content: The page. Bytes are read in the charset that it names, or in a guessed one.
    """
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    soup = BeautifulSoup(content, "lxml")
    for element in soup(["script", "style", "noscript", "template", "head"]):
        element.decompose()
    markdown = MarkdownConverter(heading_style="ATX", strip=["img"]).convert_soup(soup)
    lines = [line.rstrip() for line in markdown.splitlines()]
    return "\n".join(
        line for line, before in zip(lines, ["", *lines], strict=False) if line or before
    ).strip()


def parts_of_email(content: bytes) -> Iterator[str]:
    """Yield the headers, the text and the names of attachments of a mail.

    Args:
        content: The bytes of the mail (RFC 5322). Of several forms, plain text is preferred.
    """
    from email import message_from_bytes
    from email.policy import default

    message = message_from_bytes(content, policy=default)
    names = [name for name in ("From", "To", "Cc", "Date", "Subject") if message[name]]
    yield "\n".join(f"{name}: {message[name]}" for name in names)
    body = message.get_body(("plain", "html"))
    if body is not None:
        yield text_of_part(body)
    for attached in message.iter_attachments():
        yield f"[attached: {attached.get_filename() or attached.get_content_type()}]"


def text_of_part(part: Any) -> str:
    """Return the text of a part of an e-mail.

    The part's header names its encoding. If that encoding is missing or unusable, an HTML page may
    name its own, and plain text is read by `decoded`.
    """
    is_html = part.get_content_type() == "text/html"
    try:
        codecs.lookup(part.get_content_charset("none"))
        text = str(part.get_content())
    except (LookupError, ValueError):
        # Encodings such as `hex` and `idna` are known to Python, but cannot decode a mail.
        content = part.get_payload(decode=True) or b""
        return text_of_html(content) if is_html else decoded(content)
    return text_of_html(text) if is_html else text


def decoded(content: bytes) -> str:
    """Return a text without a known encoding: UTF-8, or else Windows-1252."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def text_of_rtf(content: bytes) -> str:
    """Return the text of an RTF file.

    Args:
        content: The bytes of the file.

    Raises:
        Unreadable: It does not begin like an RTF file.
    """
    from striprtf.striprtf import rtf_to_text

    if not content.lstrip().startswith(b"{\\rtf"):
        raise Unreadable("It does not begin like an RTF file. Check the ending of its name.")
    read: Callable[..., Any] = rtf_to_text
    return str(read(content.decode("cp1252", "replace"), errors="replace"))


READERS: dict[str, Callable[[bytes], Iterable[str]]] = {
    "pdf": pages_of_pdf,
    "docx": parts_of_docx,
    "pptx": slides_of,
    "xlsx": sheets_of,
    "html": lambda content: [text_of_html(content)],
    "email": parts_of_email,
    "rtf": lambda content: [text_of_rtf(content)],
}


def main() -> None:
    import logging

    logging.disable()
    kind, _, content = sys.stdin.buffer.read().partition(b"\n")
    sys.setrecursionlimit(2_000)
    try:
        answer = {"text": joined(READERS[kind.decode()](content))}
    except Unreadable as error:
        answer = {"error": str(error)}
    except ModuleNotFoundError as error:
        answer = {"missing": str(error.name)}
    except MemoryError:
        answer = {"error": "It takes too much memory."}
    except Exception as error:
        answer = {"error": f"It is damaged, or of another type ({type(error).__name__}: {error})."}
    with os.fdopen(3, "w", encoding="utf-8", errors="replace") as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main()
