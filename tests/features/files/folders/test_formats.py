"""Reading the text of files of all types.

A hostile file gets an error that says why, in bounded time and memory.
"""

import io
import zipfile
from collections.abc import Callable
from email.message import EmailMessage

import docx
import openpyxl
import pptx
import pytest
from pypdf import PdfWriter

from ricordo.features.files.folders import program
from tests.api.conftest import Api
from tests.features.files.folders.conftest import put, read


def pdf(*pages: str, password: str = "") -> bytes:
    """Return a PDF with one line of text on each page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", ""]
    kids = []
    for text in pages:
        number = len(objects) + 1
        kids.append(f"{number} 0 R")
        stream = f"BT /F1 24 Tf 72 720 Td ({text}) Tj ET"
        font = "<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
        box = "/MediaBox [0 0 612 792]"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R {box} /Resources {font} /Contents {number + 1} 0 R >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    made, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(made))
        made += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(made)}\n%%EOF"
    whole = f"{made}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()
    if not password:
        return whole
    writer = PdfWriter(clone_from=io.BytesIO(whole))
    writer.encrypt(password, algorithm="RC4-128")
    return saved_bytes(writer.write)


def saved_bytes(write: Callable[[io.BytesIO], object]) -> bytes:
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def document() -> bytes:
    made = docx.Document()
    made.add_heading("Bees", 1)
    made.add_paragraph("Bees make honey.")
    table = made.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "one", "two"
    return saved_bytes(made.save)


def slides() -> bytes:
    made = pptx.Presentation()
    slide = made.slides.add_slide(made.slide_layouts[0])
    slide.shapes.title.text = "Bees"
    slide.notes_slide.notes_text_frame.text = "Say honey."
    return saved_bytes(made.save)


def sheets() -> bytes:
    made = openpyxl.Workbook()
    made.active.title = "Prices"
    made.active.append(["Honey", 7, None])
    made.active.append(["Wax", 2.5])
    return saved_bytes(made.save)


def mail() -> bytes:
    made = EmailMessage()
    made["From"], made["Subject"] = "ada@example.com", "Honey"
    made.set_content("Seven jars.\n")
    made.add_attachment(b"x", maintype="image", subtype="png", filename="jar.png")
    return made.as_bytes()


def html_mail(content_type: str, text: str, encoding: str) -> bytes:
    """Return a mail with this text in this encoding, as text of this type."""
    header = f"Subject: Honey\nMIME-Version: 1.0\nContent-Type: text/{content_type}\n"
    return f"{header}Content-Transfer-Encoding: 8bit\n\n{text}\n".encode(encoding)


META = '<html><head><meta charset="{}"></head><body><p>caf\xe9 \u20ac</p></body></html>'
PAGE = b"<html><head><title>T</title><script>evil()</script></head><body><h1>Bees</h1><p>Make <b>honey</b>.</p></body></html>"
RTF = (
    rb"{\rtf1\ansi\ansicpg1252 {\fonttbl\f0 Arial;}\f0 Gr\'f6\'dfe \b honey\b0\par Wax \u8364?\par}"
)
READ: dict[str, tuple[bytes, str]] = {
    "a.pdf": (
        pdf("Bees make honey.", "Wasps do not."),
        "[page 1]\nBees make honey.\n\n[page 2]\nWasps do not.",
    ),
    "a.docx": (document(), "# Bees\n\nBees make honey.\n\none | two"),
    "a.pptx": (slides(), "[slide 1]\nBees\nNotes: Say honey."),
    "a.xlsx": (sheets(), "[sheet Prices]\nHoney | 7\nWax | 2.5"),
    "a.eml": (
        mail(),
        "From: ada@example.com\nSubject: Honey\n\nSeven jars.\n\n[attached: jar.png]",
    ),
    "a.HTML": (PAGE, "# Bees\n\nMake **honey**."),
    "a.csv": (b"honey,7\r\nwax,2.5\r\n", "honey,7\nwax,2.5\n"),
    "a.json": (b'{"honey": 7}', '{"honey": 7}'),
    "code.rs": (b"fn main() {}\n", "fn main() {}\n"),
    "no_suffix": ("Größe\n".encode(), "Größe\n"),
    "mark.txt": ("\ufeffGröße".encode(), "Größe"),
    "wide.txt": ("Größe".encode("utf-16"), "Größe"),
    "old.txt": ("Größe".encode("cp1252"), "Größe"),
    "a.rtf": (RTF, "Größe honey\nWax €"),
    "mac.txt": (b"one\rtwo\rthree", "one\ntwo\nthree"),
}


@pytest.mark.parametrize("name", READ)
def test_a_file_of_each_type_is_read(api: Api, folder: str, name: str) -> None:
    data, text = READ[name]
    file = put(api, folder, name, data)
    assert file.error_message is None
    assert (
        api.client.folders.files.retrieve(file.id, folder_id=folder, include_content=True).content
        == text
    )


MAILS = {
    # The header's encoding counts, then that of the page.
    "windows": ("html; charset=windows-1252", META.format("iso-8859-1"), "cp1252"),
    "utf-8": ("html; charset=utf-8", META.format("iso-8859-1"), "utf-8"),
    "only in the page": ("html", META.format("windows-1252"), "cp1252"),
    "unknown": ("html; charset=x-none", META.format("utf-8"), "utf-8"),
    "plain": ("plain", "café €", "utf-8"),
    "plain and unknown": ("plain; charset=x-none", "café €", "cp1252"),
    "not an encoding of texts": ("html; charset=hex", META.format("utf-8"), "utf-8"),
    "without replacements": ("plain; charset=idna", "café €", "utf-8"),
}


@pytest.mark.parametrize("name", MAILS)
def test_a_mail_is_read_in_its_encoding(name: str) -> None:
    parts = [part.strip() for part in program.parts_of_email(html_mail(*MAILS[name]))]
    assert parts == ["Subject: Honey", "café €"]


def test_texts_in_groups_of_a_slide_are_read() -> None:
    made = pptx.Presentation()
    slide = made.slides.add_slide(made.slide_layouts[6])
    outer = slide.shapes.add_group_shape()
    outer.shapes.add_textbox(0, 0, 10, 10).text_frame.text = "Bees"
    inner = outer.shapes.add_group_shape()
    inner.shapes.add_textbox(0, 0, 10, 10).text_frame.text = "Honey"

    assert [*program.slides_of(saved_bytes(made.save))] == ["[slide 1]\nBees\nHoney"]


@pytest.mark.parametrize(
    ("limit", "size", "reason"),
    [("MOST_ROWS", 1, "more than 1 rows"), ("MOST", 8, "more than 7 characters")],
)
def test_a_sheet_that_is_too_large_is_refused_with_its_limit(
    monkeypatch: pytest.MonkeyPatch, limit: str, size: int, reason: str
) -> None:
    assert [*program.sheets_of(sheets())] == ["[sheet Prices]\nHoney | 7\nWax | 2.5"]
    monkeypatch.setattr(program, limit, size)
    with pytest.raises(program.Unreadable, match=f"The sheet Prices has {reason}"):
        [*program.sheets_of(sheets())]


def packed(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for name, data in files.items():
            made.writestr(name.replace("__", "/").replace("_dot_", "."), data)
    return out.getvalue()


def bomb() -> bytes:
    """Return an archive of 400 MB, in which each name refers to the same 10 MB."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("word/document.xml", b"\0" * 10_000_000)
        made.filelist *= 40
    return out.getvalue()


def tampered(data: bytes, name: str, content: bytes) -> bytes:
    """Return the archive with one of its files replaced."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as read,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made,
    ):
        for one in read.namelist():
            made.writestr(one, content if one == name else read.read(one))
    return out.getvalue()


LAUGHS = (
    b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "ha">'
    + b"".join(b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 12))
    + b']><w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r><w:t>&a11;'
    + b"</w:t></w:r></w:p></w:body></w:document>"
)
READS = LAUGHS.replace(b'<!ENTITY a0 "ha">', b'<!ENTITY a11 SYSTEM "file:///etc/passwd">')
# The expected outcome for each file: words of its error, "" if it can be read, or None if both are
# allowed. Each file must end in bounded time.
HOSTILE: dict[str, tuple[bytes | Callable[[], bytes], str | None]] = {
    "empty.pdf": (b"", "cannot be read as pdf"),
    "no.pdf": (b"Just text.", "cannot be read as pdf"),
    "cut.pdf": (pdf("Bees")[:200], "cannot be read as pdf"),
    "locked.pdf": (pdf("Bees", password="secret"), "needs a password"),
    "blank.pdf": (pdf(""), "holds no text"),
    "loop.pdf": (pdf("a").replace(b"/Kids [3 0 R]", b"/Kids [2 0 R]"), "cannot be read as pdf"),
    "many.pdf": (pdf("a").replace(b"/Count 1", b"/Count 99999999999"), None),
    "bomb.docx": (bomb, "unpacks to"),
    "laughs.docx": (tampered(document(), "word/document.xml", LAUGHS), None),
    "reads.docx": (tampered(document(), "word/document.xml", READS), None),
    "deep.docx": (
        tampered(document(), "word/document.xml", b"<a>" * 300_000),
        "cannot be read as docx",
    ),
    "path.docx": (packed(**{"____etc__passwd": b"x"}), "cannot be read as docx"),
    "no.docx": (b"PK\x03\x04" + b"\0" * 1000, "cannot be read as docx"),
    "other.docx": (sheets(), "cannot be read as docx"),
    "no.xlsx": (b"a,b\n", "cannot be read as xlsx"),
    "wide.xlsx": (
        tampered(
            sheets(),
            "xl/worksheets/sheet1.xml",
            b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData><row r="1048576">'
            b'<c r="XFD1048576"><v>1</v></c></row></sheetData></worksheet>',
        ),
        None,
    ),
    "no.pptx": (document(), "cannot be read as pptx"),
    "deep.html": (b"<div>" * 20_000 + b"x", None),
    "nul.html": (b"<p>a\0b</p>", ""),
    "odd.eml": (
        b"Subject: =?utf-8?q?=ff?=\nContent-Type: text/plain; charset=nosuch\n\nHello\n",
        None,
    ),
    "parts.eml": (b"Content-Type: multipart/mixed; boundary=x\n\n" + b"--x\n\n" * 5_000, None),
    "line.txt": (b"x" * 1_000_000, ""),
    "lines.txt": (b"\n" * 500_000, ""),
    "long.txt": (b"word " * 2_100_000, "10,000,000 are allowed"),
    "nuls.txt": (b"one\0two" + b" text" * 500, ""),
    "halves.txt": ("one".encode("utf-16-le") + b"\0\xd8", "not text"),
    "lies.txt": (b"text " * 3000 + bytes(range(256)) * 100, ""),
    "../../etc/cron.d/evil.txt": (b"Text.", ""),
    "\u202etxt.exe": (b"Text.", ""),
}


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_are_refused_or_read_safely(api: Api, folder: str, name: str) -> None:
    content, why = HOSTILE[name]
    data = content() if callable(content) else content
    answer = api.http.post(
        f"/v1/folders/{folder}/upload", files={"file": (name, data)}, timeout=300
    )
    if answer.status_code == 415:
        assert why == "not text"
        return
    assert answer.status_code == 200, answer.text
    file = read(api, folder, answer.json()["id"])
    assert "/" not in (file.file_name or "")
    if why is not None:
        assert (why in (file.error_message or "")) if why else file.error_message is None, (
            file.error_message
        )
    whole = (
        api.client.folders.files.retrieve(file.id, folder_id=folder, include_content=True).content
        or ""
    )
    assert "root:" not in whole
    assert len(whole) <= 10_000_000
    assert api.http.get("/v1/health").status_code == 200


def test_spaces_at_the_end_of_a_part_do_not_count_as_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "MOST", 20)
    assert program.joined(["bees" + " " * 30, "honey"]) == "bees\n\nhoney"
    assert len(program.joined(["bees"] * 10)) == 20
