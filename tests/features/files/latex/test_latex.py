"""Notes in LaTeX.

An agent's notes become a PDF for one user, seen in a browser. Hostile documents reach nothing.
"""

import asyncio
import html
import importlib.util
import json
import shutil
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import orjson
import pytest
from playwright.sync_api import Browser

from ricordo.errors import Invalid, RicordoError, Unavailable
from ricordo.features.files.latex import engine
from ricordo.features.files.latex.engine import document, render
from ricordo.features.files.latex.tools import file_name
from ricordo.features.files.workspaces.service import path_of
from ricordo.llm.scripted import call
from ricordo.sandbox.service import Sandbox, SandboxLimits
from ricordo.settings import Settings
from tests.campaigns.sizes import short_and_long
from tests.seams.http import OPERATOR, bearer, ok, refused
from tests.seams.server import MODEL, ServerInThread, serving
from tests.support.browser import visit
from tests.support.latex import pdflatex
from tests.support.sandboxes import bubblewrap

T = TypeVar("T")
SECRET = "the-canary-of-a-user"
TITLE = 'Limits & <script>alert(1)</script> 100% \\input{x} "a"_b^c~'
BODY = (
    "\\section{One}\\label{one}\n$\\lim_{x \\to 0} \\frac{\\sin x}{x} = 1$, see "
    "\\ref{one}.\n\\newpage Second page."
)


@pytest.fixture(autouse=True, scope="module")
def _programs() -> None:
    bubblewrap()
    pdflatex()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("latex"), api_key=OPERATOR) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(headers=bearer(server.key(role="service"))) as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def course(server: ServerInThread) -> None:
    source = (
        f'[[agent]]\nname = "coach"\nmodel = "{MODEL}"\ninstructions = "Coach."\ntools = '
        '["render_notes"]\n'
    )
    with server.http(headers=bearer(OPERATOR)) as boss:
        ok(boss.put("/v1/courses/calculus", json={"source": source}))


def notes(
    server: ServerInThread, http: httpx2.Client, user: str, title: str, content: str
) -> list[dict[str, Any]]:
    """Return the events of a turn in which the agent writes these notes."""
    server.says(call("render_notes", title=title, content=content), "Here they are.")
    body = {
        "user_id": user,
        "messages": [{"role": "user", "content": f"Notes on {title}, please."}],
    }
    answer = http.post("/chat/stream", json=body)
    assert answer.status_code == 200, answer.text
    return [
        orjson.loads(part.removeprefix("data: "))
        for part in answer.text.split("\n\n")
        if part.startswith("data: ")
    ]


def result(server: ServerInThread) -> Any:
    """Return the result of the call that the model got."""
    (part,) = server.model.requests[-1].messages[-1].tool_returns
    assert len(part.content) < 1000
    return json.loads(part.content)["message"]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def rendered(folder: Path, content: str, title: str = "Notes") -> tuple[bytes, dict[str, Any]]:
    async def work() -> tuple[bytes, dict[str, Any]]:
        sandbox = Sandbox(Settings(data_dir=folder))
        try:
            return await render(sandbox, title, content)
        finally:
            await sandbox.close()

    return run(work())


def test_notes_become_a_private_pdf_and_the_model_gets_only_its_address(
    server: ServerInThread, http: httpx2.Client
) -> None:
    events = notes(server, http, "ada", TITLE, BODY)
    (artifact,) = [event["path"] for event in events if event["type"] == "artifact"]
    assert [event["type"] for event in events].index("artifact") < [
        event["type"] for event in events
    ].index("message")
    told = result(server)
    assert (told["pages"], told["artifact"]) == (2, artifact)
    (file,) = ok(http.get("/users/ada/workspace/files"))
    assert (
        file["path"] == told["file"] == "notes/limits-script-alert-1-script-100-input-x-a-b-c.pdf"
    )
    assert http.get(f"/users/ada/workspace/files/{file['path']}").content.startswith(b"%PDF-")
    # The same title again replaces the file.
    notes(server, http, "ada", TITLE, "Shorter.")
    assert result(server)["pages"] == 1
    assert len(ok(http.get("/users/ada/workspace/files"))) == 1
    # Another user cannot read the file, not even through one of their folders.
    ok(http.put("/users/bob/workspace/files/own.txt", content="Bob's."))
    bob = bearer(server.key(user="bob"))
    with server.http(headers=bob) as other:
        refused(other.get(artifact), 404)
        refused(other.get(f"/users/bob/latex/{file['path']}"), 404)
        refused(other.get("/users/bob/latex/own.txt"), 400)
        refused(other.get("/users/bob/latex/..%2Fada%2Fnotes"), 400)


def test_open_webui_shows_the_pdf_beside_the_answer(
    server: ServerInThread, http: httpx2.Client
) -> None:
    path = Path(__file__).parents[4] / "ricordo/features/openwebui/mirror/pipe.py"
    spec = importlib.util.spec_from_file_location("open_webui_pipe", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pipe = module.Pipe()
    pipe.valves = pipe.Valves(SERVER_URL=server.url, API_KEY=server.key(role="service"))
    shown: list[dict[str, Any]] = []

    async def emitter(event: dict[str, Any]) -> None:
        shown.append(event)

    async def talk() -> str:
        body = {
            "model": "ricordo.calculus/coach",
            "stream": True,
            "messages": [{"role": "user", "content": "Notes!"}],
        }
        answer = await pipe.pipe(body, {"id": "7"}, __chat_id__="c", __event_emitter__=emitter)
        return "".join([piece async for piece in answer])

    server.says(call("render_notes", title="Limits", content=BODY), "Here they are.")
    # The shown PDF is not part of the text that later turns send again.
    assert run(talk()) == "Here they are."
    (embeds,) = [event["data"]["embeds"] for event in shown if event["type"] == "embeds"]
    assert embeds[0].startswith("<!doctype html>")
    assert "limits.pdf" in embeds[0]


def test_the_viewer_shows_every_page_also_inside_an_iframe(
    browser: Browser, server: ServerInThread, http: httpx2.Client
) -> None:
    events = notes(server, http, "eve", TITLE, BODY)
    (artifact,) = [event["path"] for event in events if event["type"] == "artifact"]
    answer = http.get(artifact)
    assert "sandbox" in answer.headers["content-security-policy"]
    page = (
        '<iframe sandbox="allow-scripts allow-downloads" '
        f'srcdoc="{html.escape(answer.text)}"></iframe>'
    )
    headers = bearer(OPERATOR)
    with visit(browser, server.url, extra_http_headers=headers) as visitor:
        visitor.see(result(server)["page"])
        visitor.page.locator("[data-pages='2']").wait_for()
        assert "Second page." in (
            visitor.page.locator("canvas").nth(1).get_attribute("aria-label") or ""
        )
        assert visitor.faults() == []
        visitor.require_quiet()
    left: list[str] = []
    other = browser.new_page()
    other.on("request", lambda request: left.append(request.url))
    other.route(
        "http://chats.test/", lambda route: route.fulfill(body=page, content_type="text/html")
    )
    other.goto("http://chats.test/")
    frame = other.frame_locator("iframe")
    frame.locator("[data-pages='2']").wait_for()
    dark = (
        "(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, "
        "canvas.height).data.some((x) => x < 99)"
    )
    assert frame.locator("canvas").first.evaluate(dark)
    assert [url for url in left if not url.startswith("blob:")] == ["http://chats.test/"]


def test_errors_name_the_lines_of_the_content(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as failed:
        rendered(tmp_path, "Fine.\n\\undefined here\n$a_b_c$")
    lines = str(failed.value).splitlines()[1:]
    assert [line.partition(":")[0] for line in lines] == ["line 2", "line 3"]
    assert lines[0] == "line 2: Undefined control sequence.  (\\undefined)"
    with pytest.raises(Invalid, match=r"line 4: Undefined control sequence"):
        rendered(
            tmp_path,
            "% mine\n\\documentclass{article}\n\\begin{document}\n\\undefined\n\\end{document}",
        )


def test_an_error_in_a_package_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"in geometry\.sty: .*nonsense undefined"):
        rendered(
            tmp_path,
            "\\documentclass{article}\n\\usepackage[nonsense]{geometry}\n"
            "\\begin{document}x\\end{document}",
        )


def test_latex_in_a_title_is_escaped() -> None:
    made = document("A\n\\write18{id} $x$\x00\u202e", "Body.")
    assert (
        "\\title{A \\textbackslash{}write18\\{id\\} \\$x\\$}\\begin{document}\\maketitle\nBody.\n"
        in made
    )


HOSTILE = {
    "a file of the system": "\\input{/etc/passwd}",
    "a file above": "\\input{../../../etc/hostname}",
    "a stream from a file": "\\newread\\r\\openin\\r=/etc/passwd \\ifeof\\r\\undefined\\fi \\read\\r to\\line \\line",
    "a command": "\\immediate\\write18{id > out.txt}\\input{out.txt}",
    "a command as a file": "\\input{|id}",
    "a file to write": "\\newwrite\\w\\immediate\\openout\\w=/tmp/ricordo-written.txt \\immediate\\write\\w{x}",
    "a file to write above": "\\newwrite\\w\\immediate\\openout\\w=../ricordo-written.txt \\immediate\\write\\w{x}",
    "a hidden file": "\\newwrite\\w\\immediate\\openout\\w=.latexmkrc \\immediate\\write\\w{x}",
    "the workspace": "\\input{essays/draft}",
    "in place of the PDF": "\\newwrite\\w\\immediate\\openout\\w=notes.pdf \\immediate\\write\\w{<script>}x",
    "a macro of itself": "\\def\\x{\\x\\x}\\x",
}


def refusals_of(folder: Path, contents: Sequence[str]) -> list[str]:
    """Render all contents in one sandbox; return the error of each."""

    async def work() -> list[str]:
        sandbox = Sandbox(Settings(data_dir=folder))

        async def attempt(content: str) -> str:
            with pytest.raises(Invalid) as failed:
                await render(sandbox, "Notes", content)
            return str(failed.value)

        try:
            return await asyncio.gather(*map(attempt, contents))
        finally:
            await sandbox.close()

    return run(work())


# One attempt for each way to escape: reading, writing, running a program, and the content of the
# PDF.
FEW = ("a file of the system", "a file to write", "a command", "in place of the PDF")


@pytest.mark.parametrize("names", short_and_long((FEW,), (tuple(HOSTILE),)))
def test_a_document_cannot_read_files_or_run_programs(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    for name, refusal in zip(
        names, refusals_of(tmp_path, [HOSTILE[name] for name in names]), strict=True
    ):
        assert "root:" not in refusal, name
        assert "uid=" not in refusal, name
    assert not Path("/tmp/ricordo-written.txt").exists()


def test_a_document_cannot_read_the_servers_files(tmp_path: Path) -> None:
    """Files of workspaces are rows of the database.

    LaTeX can read neither the database nor other files in its folder.
    """
    (tmp_path / "ricordo.db").write_text(SECRET)
    for way in (f"\\input{{{tmp_path}/ricordo.db}}", f"\\pdfobj file {{{tmp_path}/ricordo.db}}"):
        with pytest.raises(RicordoError) as failed:
            rendered(tmp_path, f"{way}\\undefined")
        assert SECRET not in str(failed.value)


ENDLESS = (
    ("\\loop\\iftrue\\repeat", "seconds of processor time"),
    ("\\loop\\message{" + "x" * 500 + "}\\iftrue\\repeat", "was stopped"),
    ("\\loop x\\newpage\\iftrue\\repeat", "was stopped"),
)


@pytest.mark.parametrize("count", short_and_long(1, len(ENDLESS)))
def test_endless_documents_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(
        engine, "_LIMITS", SandboxLimits(seconds=60, cpu_seconds=1, processes=16, file_mb=5)
    )
    refusals = refusals_of(tmp_path, [content for content, _ in ENDLESS[:count]])
    for refusal, (content, why) in zip(refusals, ENDLESS[:count], strict=True):
        assert why in refusal, content


def test_a_full_workspace_refuses_notes(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_WORKSPACE_FILES", "1")
    ok(http.put("/users/full/workspace/files/one.txt", content="One."))
    events = notes(server, http, "full", "More", "More.")
    assert "artifact" not in [event["type"] for event in events]
    assert "The workspace has 1 files, and no more are allowed" in result(server)


def test_a_missing_latex_is_reported_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.findings(Settings(data_dir=tmp_path)) == [pdflatex()]
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(Unavailable, match="Debian's texlive-latex-base"):
        rendered(tmp_path, "Text.")
    (finding,) = engine.findings(Settings(data_dir=tmp_path))
    assert finding.startswith("no LaTeX: ")


def test_tectonic_is_called_offline_and_untrusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests cannot install Tectonic.

    A script replaces it, checks how it is called, and lets TeX Live do the work.
    """
    program = tmp_path / "bin" / "tectonic"
    program.parent.mkdir()
    wanted = "-X compile --untrusted --only-cached --keep-logs notes.tex"
    program.write_text(
        f'#!/bin/sh\n[ "$*" = "{wanted}" ] && [ -r "$TECTONIC_CACHE_DIR/bundle" ] && exec '
        "pdflatex notes.tex\n"
    )
    program.chmod(0o755)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "bundle").write_text("x")
    monkeypatch.setenv("TECTONIC_CACHE_DIR", str(tmp_path / "cache"))
    which, there = shutil.which, {"pdflatex": None, "tectonic": str(program)}
    monkeypatch.setattr(shutil, "which", lambda name: there[name] if name in there else which(name))
    assert rendered(tmp_path / "data", "Text.")[1]["pages"] == 1


@pytest.mark.parametrize(
    "title",
    ["作" * 50, "é" * 80, "Ж" * 60, "🙂" * 40, "한국어 " * 20, "ก" * 60, "İ" * 60, "__", "Limits"],
)
def test_a_title_in_any_script_becomes_a_valid_workspace_path(title: str) -> None:
    path = f"notes/{file_name(title)}.pdf"
    assert path_of(path) == path
