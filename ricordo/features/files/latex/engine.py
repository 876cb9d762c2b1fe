"""Turn LaTeX into a PDF with this machine's engine, in the sandbox.

The sandbox holds only the document. Errors are read from the engine's log.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from ricordo.errors import Invalid, Unavailable
from ricordo.features.files.workspaces.service import LARGEST
from ricordo.sandbox.service import Sandbox, SandboxCall, SandboxLimits
from ricordo.settings import Settings

MISSING = (
    "no LaTeX: notes need pdflatex (Debian's texlive-latex-base and texlive-latex-recommended) or "
    "tectonic"
)
_MOST_ERRORS = 8
_MOST_WARNINGS = 5
_LIMITS = SandboxLimits(
    seconds=60, cpu_seconds=20, processes=16, file_mb=20, output_kb=LARGEST // 1000 + 300
)
# The first run writes files that the second run reads, such as a table of contents. At the end, the
# script prints the log and, without errors, the PDF.
_RUNS = """for run in 1 2 3; do
  "$@" >/dev/null 2>&1 </dev/null; code=$?
  [ $code = 0 ] || break
  [ $run = 1 ] && [ -e notes.toc ] || grep -q 'Rerun to get\\|Rerun LaTeX' notes.log || break
done
tail -c 250000 notes.log >&2
[ $code = 0 ] && cat notes.pdf
exit $code"""
# Long lines in the log keep each error on one line. "p" forbids files outside of the folder.
_VARIABLES = {
    "max_print_line": "1000",
    "error_line": "200",
    "half_error_line": "180",
    "openin_any": "p",
    "openout_any": "p",
}
_PACKAGES = (
    "amsmath",
    "amssymb",
    "amsthm",
    "mathtools",
    "graphicx",
    "xcolor",
    "booktabs",
    "enumitem",
    "hyperref",
)
# The preamble is one line, so that the content starts on the document's second line.
_HEAD = (
    r"\documentclass[11pt,a4paper]{article}"
    r"\IfFileExists{lmodern.sty}{\usepackage[T1]{fontenc}\usepackage{lmodern}}{}"
    + "".join(rf"\IfFileExists{{{name}.sty}}{{\usepackage{{{name}}}}}{{}}" for name in _PACKAGES)
    + r"\IfFileExists{geometry.sty}{\usepackage[margin=2.5cm]{geometry}}{}\date{}"
)
_ESCAPED = {letter: rf"\{letter}" for letter in "{}$&#_%"} | {
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}
_IS_WHOLE = re.compile(r"(?:\s|%[^\n]*\n)*\\documentclass\b")
# An error in another file than the notes, such as a package, is named by this file.
_ERROR = re.compile(
    r"(?:(?:\./)?notes\.tex:(?P<line>\d+): |(?:\S*/)?(?P<file>[^\s/:]+\.\w+):\d+: |! )(?P<text>.+)"
)
_SOURCE_LINE = re.compile(r"l\.(\d+) ?(.*)")
_PAGES = re.compile(r"Output written on notes\.\w+ \((\d+) pages?")
_WARNING = re.compile(
    r"^(?:LaTeX|Package \w+) Warning: (?!No \\author|Empty bibliography)(.+?)"
    r"(?: on input line \d+)?\.?$",
    re.MULTILINE,
)


def find_engine() -> tuple[str, ...]:
    """Return the command of the installed LaTeX.

    TeX Live is preferred, then Tectonic. The command is empty if neither is installed.
    """
    if program := shutil.which("pdflatex"):
        return (
            program,
            "-no-shell-escape",
            "-interaction=nonstopmode",
            "-file-line-error",
            "notes.tex",
        )
    if program := shutil.which("tectonic"):
        return (
            program,
            "-X",
            "compile",
            "--untrusted",
            "--only-cached",
            "--keep-logs",
            "notes.tex",
        )
    return ()


async def render(sandbox: Sandbox, title: str, content: str) -> tuple[bytes, dict[str, Any]]:
    r"""Return the PDF, and details about it: its pages, bytes and warnings.

    Args:
        sandbox: The sandbox in which LaTeX runs.
        title: The title as plain text; not used if `content` is a whole document.
        content: LaTeX: a body, or a whole document that begins with `\documentclass`.

    Raises:
        Invalid: with the faulty lines, or if LaTeX exceeded a limit of the sandbox.
        Unavailable: without an engine or a sandbox.
    """
    if not (command := find_engine()):
        raise Unavailable(
            f"This server has {MISSING}. Its operator can install one. Give the notes as text "
            "instead."
        )
    is_whole = _IS_WHOLE.match(content) is not None
    if is_whole:
        source = content
    else:
        source = document(title, content)
    # Packages that Tectonic downloaded earlier; in the sandbox it downloads nothing.
    cache = os.environ.get("TECTONIC_CACHE_DIR") or str(Path.home() / ".cache" / "Tectonic")
    readable = map(Path, ("/etc/texmf", "/var/lib/texmf", command[0], cache))
    call = SandboxCall(
        argv=("sh", "-c", _RUNS, "sh", *command),
        files={"notes.tex": source.encode("utf-8", "replace")},
        environment={**_VARIABLES, "TECTONIC_CACHE_DIR": cache},
        readable=[path for path in readable if path.exists()],
        limits=_LIMITS,
    )
    outcome = await sandbox.run(call)
    log = outcome.stderr.decode("utf-8", "replace")
    if outcome.stopped_by:
        raise Invalid(f"{outcome.reason} Check the LaTeX for an endless loop.")
    if outcome.exit_code or not outcome.stdout.startswith(b"%PDF-"):
        raise Invalid(
            "LaTeX found errors. Correct them, and call the tool again.\n"
            + "\n".join(errors(log, is_whole))
        )
    pages = _PAGES.search(log)
    details: dict[str, Any] = {
        "pages": int(pages[1]) if pages else 0,
        "bytes": len(outcome.stdout),
    }
    warnings = list(dict.fromkeys(warning[:200] for warning in _WARNING.findall(log)))
    if warnings:
        details["warnings"] = warnings[:_MOST_WARNINGS]
    return outcome.stdout, details


def document(title: str, content: str) -> str:
    r"""Return a complete document; the body's first line is the document's second line.

    Args:
        title: Plain text, which is escaped.
        content: LaTeX that belongs between \begin{document} and \end{document}.
    """
    letters = (
        _ESCAPED.get(letter, letter) for letter in " ".join(title.split()) if letter.isprintable()
    )
    return (
        f"{_HEAD}\\title{{{''.join(letters)}}}\\begin{{document}}\\maketitle\n"
        f"{content}\n\\end{{document}}\n"
    )


def errors(log: str, is_whole: bool) -> list[str]:
    """Return the first errors in the log, each with its line in the content or with its file.

    Args:
        log: The engine's log, or its last part.
        is_whole: True if the content is a whole document, so its lines have the numbers of the log.
    """
    sentences: dict[str, None] = {}
    lines = log.splitlines()
    for number, line in enumerate(lines):
        match = _ERROR.match(line)
        if match is None or "==> Fatal error" in line:
            continue
        if "Emergency stop" in line and sentences:
            continue
        following = map(_SOURCE_LINE.match, lines[number + 1 : number + 12])
        source = next(filter(None, following), None)
        position = _position(match, source, is_whole=is_whole)
        if source and source[2].strip():
            near = f"  ({source[2].strip()[-120:]})"
        else:
            near = ""
        sentences[f"{position}{match['text'].strip()[:300]}{near}"] = None
    return list(sentences)[:_MOST_ERRORS] or ["The LaTeX engine wrote no PDF and gave no reason."]


def _position(error: re.Match[str], source_line: re.Match[str] | None, *, is_whole: bool) -> str:
    """Return the beginning of an error's sentence: its line in the content, or its file."""
    if error["file"]:
        return f"in {error['file']}: "
    line_number = 0
    if error["line"]:
        line_number = int(error["line"])
    elif source_line:
        line_number = int(source_line[1])
    if not is_whole:
        line_number -= 1  # the line of the title
    if line_number > 0:
        return f"line {line_number}: "
    return "in the title: " if error["line"] else ""


def findings(_settings: Settings) -> list[str]:
    """Return the installed LaTeX as a line of `ricordo doctor`."""
    return [next(iter(find_engine()), MISSING)]
