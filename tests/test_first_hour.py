"""A newcomer's first hour with README.md and all pages of docs/, in reading order.

The tests run every command and every snippet unchanged, in one home folder and on one server. If a
page says to save a text, they save it. `NOT_RUN` lists the exceptions, with reasons. The packages
are those of the tests. With `FIRST_HOUR_PYTHON=/usr/bin/python3.13` the soak run also installs them
for that Python, with `make` and from the package index.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server_process import free_port, wait_until_up

ROOT = Path(__file__).parent.parent
LIMIT = 120  # seconds for one command or snippet
PORT, SECOND_PORT = "8283", "8284"
DATABASE = "needs a PostgreSQL server; tests/storage/test_postgres.py and tests/features/operations/move have one"
SHARED = "needs a package index; the environment has the package already"
OPENAI = "needs a key of OpenAI; tests/test_docs.py runs it on a stand-in"
REMOTE = (
    "needs a git or Dolt server of one's own; tests/features/sync/remotes and tests/features/sync/dolt have "
    "one"
)
# Parts of lines or snippets that are not run, by page, with the reason.
NOT_RUN = {
    "README.md": {
        "make test": "it would run this test again",
        "OPENAI_API_KEY=sk-": "needs a key of OpenAI; tests/llm has stand-ins",
        "pip install": SHARED,
    },
    "agents.md": {
        "weather = client.agents.create": OPENAI,
        "novelist = client.agents.create": OPENAI,
        "novelist.id}/context": OPENAI,
    },
    "coming-from.md": {"old.agents.list()": "needs the old server; tests/test_examples.py has one"},
    "databases.md": {
        "RICORDO_DATABASE_URL=": DATABASE,
        "ricordo serve": DATABASE,
        "migrate-to postgresql": DATABASE,
        "migrate-to sqlite": DATABASE,
        "--partition agent-": "the id is an example",
    },
    "connect.md": {"claude mcp add": "needs Claude Code"},
    "for-operators.md": {
        "ricordo key create": "from then on each snippet needs a key; tests/features/identity/accounts"
    },
    "keys.md": {"ricordo user invite": "needs a first key; tests/features/identity/sign_in_links"},
    "installation.md": {
        "make dist": "tests/test_package.py does it",
        "pip install": "needs a package index; tests/test_package.py installs the wheel without one",
        "uvx --from": "needs a package index",
    },
    "models.md": {
        "ricordo agent model companion": OPENAI,
        "thinker = client.agents.create": OPENAI,
        "return_logprobs=True": OPENAI,
        "--model ollama": "needs Ollama",
    },
    "operations.md": {
        "deploy/.env": "the folder of the test has no container builder",
        "docker compose": "needs a container builder",
        "sudo -u ricordo": "needs the service of systemd",
    },
    "open-webui.md": {
        "RICORDO_OPENWEBUI_": "needs Open WebUI",
        "open-webui:6afe3026": "needs Open WebUI",
    },
    "remotes.md": {"git.example.org": REMOTE, "RICORDO_DOLT_REMOTE=": REMOTE},
}
# The pages say that these commands need a stopped server.
STOPPED = ("ricordo search reindex", "ricordo doctor --repair")
SAID = {"ricordo chat": "I grow roses.\n", "ricordo memory forget": "y\n"}

# The program runs each snippet that it reads as a line of JSON. Snippets share their names, as at
# Python's prompt.
PROMPT = """
import io, json, sys, traceback
from contextlib import redirect_stdout
names = {"__name__": "__main__"}
for line in sys.stdin:
    out, fault = io.StringIO(), None
    with redirect_stdout(out):
        try:
            exec(compile(json.loads(line), "snippet", "exec"), names)
        except BaseException:
            fault = traceback.format_exc()
    print(json.dumps([out.getvalue(), fault]), flush=True)
"""


PAGES = {*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md")}


def reading_order() -> list[Path]:
    """Return README.md, then the pages that it links to, then the pages linked there."""
    pages = [ROOT / "README.md"]
    for page in pages:
        links = re.findall(r"\]\(([^)#:]+\.md)", page.read_text())
        found = [(page.parent / link).resolve() for link in links]
        pages += [link for link in dict.fromkeys(found) if link not in pages and link in PAGES]
    return pages


class Stranger:
    """A newcomer with an empty home folder, who types the pages' commands."""

    def __init__(self, place: Path, python: str | None) -> None:
        self.home, self.folder = place / "home", place / "ricordo"
        self.home.mkdir()
        self._ports = {PORT: str(free_port()), SECOND_PORT: str(free_port())}
        self._here = self.folder
        self._exports: list[str] = []
        self._servers: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        self._prompt: subprocess.Popen[str] | None = None
        own = re.compile(r"LANG$|LC_ALL$|TMPDIR$|PIP_|SSL_")
        kept = {name: value for name, value in os.environ.items() if own.match(name)}
        self.environment = kept | {
            "HOME": str(self.home),
            "PATH": os.defpath + os.pathsep + os.environ["PATH"],
            "RICORDO_PORT": self._ports[PORT],
            "RICORDO_FIND_LOCAL_MODELS": "false",
            "GIT_TERMINAL_PROMPT": "0",
        }
        left_out = shutil.ignore_patterns(".*", "__pycache__", "tests", "bench", "*.egg-info")
        shutil.copytree(ROOT, self.folder, ignore=left_out)
        self._installs = python is not None
        if python:
            self.environment["PYTHON"] = python  # `make install` uses this interpreter
            self._shell("make install")
        else:
            self._share_packages()

    def read(self, page: Path) -> None:
        """Follow the page from its top to its end."""
        listed = NOT_RUN.get(page.name, {}).items()
        text, reasons = (
            page.read_text(),
            {part for part, why in listed if not (self._installs and why == SHARED)},
        )
        left = set(reasons)
        for found in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            language, block = found.groups()
            before = text[: found.start()].rstrip().rpartition("\n\n")[2]
            if language in ("sh", "bash", "console"):
                lines = block.splitlines()
                left -= {part for part in reasons if part in block}
                block = "\n".join(
                    line for line in lines if not any(part in line for part in reasons)
                )
                self._type(block.replace("$ ricordo", "ricordo"))
            elif language == "python" and (parts := {part for part in reasons if part in block}):
                left -= parts
            elif language == "python":
                if "kill the server" in before:
                    self.stop(signal.SIGKILL)
                    self._type("make run")
                self._run(block)
            elif name := re.search(r"[Ss]ave this(?: one)?\s+as\s+`([^`]+)`", before):
                path = self._here / name[1].replace("~", str(self.home))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block)
        assert left == set(), f"{page.name} no longer contains these entries of NOT_RUN"
        self._end_prompt()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> list[str]:
        """Stop all servers; returns the commands that started them."""
        commands = []
        for command, process in self._servers.values():
            os.killpg(process.pid, how)
            process.wait(LIMIT)
            commands.append(command)
        self._servers = {}
        return commands

    def type_what_the_server_said(self) -> None:
        """Type the command that the first `make run` printed, in a new terminal in the folder."""
        command = re.findall(r"Talk to it with `([^`]+)`", (self.home / "server.log").read_text())[
            0
        ]
        ran = subprocess.run(
            ["bash", "-c", command],
            input="Hello.\n",
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=LIMIT,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")

    def _type(self, block: str) -> None:
        for line in filter(str.strip, re.sub(r"\\\n", "", block).splitlines()):
            command = self._translated(line)
            if re.match(r"(make run|ricordo serve)\b", command):
                self._serve(command)
                continue
            halted = self.stop() if command.startswith(STOPPED) else []
            self._shell(command)
            for each in halted:
                self._serve(each)

    def _shell(self, command: str) -> None:
        said = next((said for name, said in SAID.items() if command.startswith(name)), "")
        state = self.home / ".shell"
        remember = f"pwd > {state}; export -p >> {state}"
        ran = self._popen_and_wait(
            ["bash", "-e", "-o", "pipefail", "-c", f"{command}\n{remember}"], said
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        # curl also succeeds if the server refuses the request.
        assert not re.search(r'"(detail|error)":', ran.stdout), f"{command}\n{ran.stdout}"
        folder, _, exports = state.read_text().partition("\n")
        self._here, self._exports = (
            Path(folder),
            [line for line in exports.splitlines() if " PWD=" not in line],
        )

    def _popen_and_wait(self, command: list[str], said: str) -> "subprocess.CompletedProcess[str]":
        command[-1] = "\n".join([*self._exports, command[-1]])
        return subprocess.run(
            command,
            input=said,
            capture_output=True,
            text=True,
            cwd=self._here,
            env=self.environment,
            timeout=LIMIT,
            check=False,
        )

    def _serve(self, command: str) -> None:
        port = next((port for port in self._ports.values() if port in command), self._ports[PORT])
        if port in self._servers:
            return  # the server is already running
        script = "\n".join([*self._exports, f"exec {command}"])
        with (self.home / "server.log").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self._here,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._servers[port] = (command, process)
        wait_until_up(f"http://127.0.0.1:{port}", (self.home / "server.log").read_text)

    def _run(self, code: str) -> None:
        """Run a snippet in the same program as the earlier snippets of the page."""
        if self._prompt is None:
            script = "\n".join([*self._exports, 'exec python -c "$0"'])
            self._prompt = subprocess.Popen(
                ["bash", "-c", script, PROMPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=self._here,
                env=self.environment,
            )
        assert self._prompt.stdin
        assert self._prompt.stdout
        self._prompt.stdin.write(json.dumps(self._translated(code)) + "\n")
        self._prompt.stdin.flush()
        printed, fault = json.loads(self._prompt.stdout.readline())
        assert fault is None, f"{code}\n{fault}"
        # The page says to paste the line.
        self._exports += re.findall(r"^export \w+=\S+$", printed, re.MULTILINE)

    def _end_prompt(self) -> None:
        if self._prompt:
            self._prompt.communicate(timeout=LIMIT)
            assert self._prompt.returncode == 0
            self._prompt = None

    def close(self) -> None:
        if self._prompt:
            self._prompt.kill()
            self._prompt.communicate()
        self.stop(signal.SIGKILL)

    def _translated(self, text: str) -> str:
        """Return the text with ports that are free on this machine."""
        for port, free in self._ports.items():
            text = text.replace(port, free)
        return text

    def _share_packages(self) -> None:
        venv = self.folder / ".venv"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=LIMIT
        )
        (site,) = venv.glob("lib/python*/site-packages")
        (site / "shared.pth").write_text(f"{self.folder}\n{sysconfig.get_path('purelib')}\n")
        script = venv / "bin" / "ricordo"
        script.write_text(f"#!{venv}/bin/python\nfrom ricordo.cli import app\n\napp()\n")
        script.chmod(0o755)
        # `make run` then finds its packages installed.
        for mark in (".created", ".installed"):
            (venv / mark).touch()


@contextmanager
def stranger(place: Path, python: str | None = None) -> Iterator[Stranger]:
    opened = Stranger(place, python)
    try:
        yield opened
    finally:
        opened.close()


on_posix = pytest.mark.skipif(os.name != "posix", reason="the pages are written for a POSIX shell")


# In the suite tests/test_docs.py runs both pages, without a copy of the repository.
@pytest.mark.soak
@on_posix
def test_the_first_minutes_work_as_the_pages_say(tmp_path: Path) -> None:
    with stranger(tmp_path) as reader:
        reader.read(ROOT / "README.md")
        reader.type_what_the_server_said()
        reader.read(ROOT / "docs" / "tutor" / "a-students-day.md")


@pytest.mark.soak
@on_posix
@pytest.mark.parametrize(
    "python", [None, os.environ.get("FIRST_HOUR_PYTHON", "")], ids=["this", "another"]
)
def test_the_first_hour_works_as_the_pages_say(tmp_path: Path, python: str | None) -> None:
    if python == "":
        pytest.skip("FIRST_HOUR_PYTHON names no other Python")
    with stranger(tmp_path, python) as reader:
        for page in reading_order():
            reader.read(page)


def test_every_page_is_read() -> None:
    assert set(reading_order()) == {ROOT / "README.md", *PAGES}
    assert set(NOT_RUN) <= {page.name for page in reading_order()}
