"""From LaTeX to a PDF: the engine of this machine, run in the sandbox on one document alone, and what its log says."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from ricordo.errors import Invalid, Unavailable
from ricordo.features.workspaces.service import LARGEST
from ricordo.sandbox.service import Sandbox, SandboxCall, SandboxLimits

MISSING = "no LaTeX: notes need pdflatex (Debian's texlive-latex-base and texlive-latex-recommended) or tectonic"
_MOST_ERRORS = 8
_MOST_WARNINGS = 5
_LIMITS = SandboxLimits(
    seconds=60, cpu_seconds=20, processes=16, file_mb=20, output_kb=LARGEST // 1000 + 300
)
# A first run writes what the second reads, such as a table of contents; at the end the PDF and the log go out.
_RUNS = """for run in 1 2 3; do
  "$@" >/dev/null 2>&1 </dev/null; code=$?
  [ $code = 0 ] || break
  [ $run = 1 ] && [ -e notes.toc ] || grep -q 'Rerun to get\\|Rerun LaTeX' notes.log || break
done
tail -c 250000 notes.log >&2
[ $code = 0 ] && cat notes.pdf
exit $code"""
# Where lines of the log break; and, with "p", names of files that lead out of the folder are refused for reading and writing.
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
# In one line, so that the second of the document is the first of the content.
_HEAD = (
    r"\documentclass[11pt,a4paper]{article}\IfFileExists{lmodern.sty}{\usepackage[T1]{fontenc}\usepackage{lmodern}}{}"
    + "".join(rf"\IfFileExists{{{name}.sty}}{{\usepackage{{{name}}}}}{{}}" for name in _PACKAGES)
    + r"\IfFileExists{geometry.sty}{\usepackage[margin=2.5cm]{geometry}}{}\date{}"
)
_ESCAPED = {letter: rf"\{letter}" for letter in "{}$&#_%"} | {
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}
_IS_WHOLE = re.compile(r"(?:\s|%[^\n]*\n)*\\documentclass\b")
_ERROR = re.compile(r"(?:(?:\./)?notes\.tex:(?P<line>\d+): |! )(?P<text>.+)")
_PLACE = re.compile(r"l\.(\d+) ?(.*)")
_PAGES = re.compile(r"Output written on notes\.\w+ \((\d+) pages?")
_WARNING = re.compile(
    r"^(?:LaTeX|Package \w+) Warning: (?!No \\author|Empty bibliography)(.+?)(?: on input line \d+)?\.?$",
    re.MULTILINE,
)


def find_engine() -> tuple[str, ...]:
    """Return the command of the LaTeX that is on the path, TeX Live before Tectonic; nothing where there is none."""
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
    """Return the PDF, with its pages and warnings. Raises Invalid with the lines that are wrong, Unavailable without an engine."""
    if not (command := find_engine()):
        raise Unavailable(
            f"This server has {MISSING}. Its operator can install one. Give the notes as text instead."
        )
    is_whole = _IS_WHOLE.match(content) is not None
    # What Tectonic has loaded before; it loads nothing here.
    cache = os.environ.get("TECTONIC_CACHE_DIR") or str(Path.home() / ".cache" / "Tectonic")
    readable = map(Path, ("/etc/texmf", "/var/lib/texmf", command[0], cache))
    call = SandboxCall(
        argv=("sh", "-c", _RUNS, "sh", *command),
        files={
            "notes.tex": (content if is_whole else document(title, content)).encode(
                "utf-8", "replace"
            )
        },
        environment={**_VARIABLES, "TECTONIC_CACHE_DIR": cache},
        readable=[path for path in readable if path.exists()],
        limits=_LIMITS,
    )
    result = await sandbox.run(call)
    log = result.stderr.decode("utf-8", "replace")
    if result.stopped_by:
        raise Invalid(f"{result.reason} Does the LaTeX repeat something without end?")
    if result.exit_code or not result.stdout.startswith(b"%PDF-"):
        raise Invalid(
            "LaTeX found errors. Correct them, and call the tool again.\n"
            + "\n".join(errors(log, is_whole))
        )
    pages = _PAGES.search(log)
    told: dict[str, Any] = {"pages": int(pages[1]) if pages else 0, "bytes": len(result.stdout)}
    warnings = list(dict.fromkeys(found[:200] for found in _WARNING.findall(log)))[:_MOST_WARNINGS]
    return result.stdout, told | ({"warnings": warnings} if warnings else {})


def document(title: str, content: str) -> str:
    """Return a whole document with this body; its second line is the first of the content."""
    letters = (
        _ESCAPED.get(letter, letter) for letter in " ".join(title.split()) if letter.isprintable()
    )
    return f"{_HEAD}\\title{{{''.join(letters)}}}\\begin{{document}}\\maketitle\n{content}\n\\end{{document}}\n"


def errors(log: str, is_whole: bool) -> list[str]:
    """Return what the log says is wrong, each with its line in the content."""
    found: dict[str, None] = {}
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if (
            not (match := _ERROR.match(line))
            or "==> Fatal error" in line
            or ("Emergency stop" in line and found)
        ):
            continue
        place = next(filter(None, map(_PLACE.match, lines[number + 1 : number + 12])), None)
        at = int(match["line"] or (place[1] if place else 0)) - (0 if is_whole else 1)
        where = f"line {at}: " if at > 0 else "in the title: " if match["line"] else ""
        near = f"  ({place[2].strip()[-120:]})" if place and place[2].strip() else ""
        found[f"{where}{match['text'].strip()[:300]}{near}"] = None
    return list(found)[:_MOST_ERRORS] or ["The engine wrote no PDF, and gave no reason."]
