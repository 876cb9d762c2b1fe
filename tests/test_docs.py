"""The docs are correct: code runs, commands and settings exist, and links work."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click.testing
import httpx2
import pytest
from pydantic import SecretStr
from typer.main import get_command
from typer.testing import CliRunner

from ricordo.agents.callbacks import signature, signing_key
from ricordo.api.conversations import ConversationFields
from ricordo.api.models import agents, turns
from ricordo.cli import app
from ricordo.cli.settings_list import listed_settings
from ricordo.domain.agent import AgentType, CompactionMode
from ricordo.domain.model import LIBRARIAN
from ricordo.domain.tool import RuleType
from ricordo.features import FEATURES
from ricordo.features.tutor.courses.prompt import TUTOR_TOOLS
from ricordo.plugins import HOOKS
from ricordo.setting_types import feature_settings, variables_of
from ricordo.settings import ProviderSettings, Settings
from tests.seams.http import bearer
from tests.seams.server import ServerInThread, serving
from tests.support.model_server import Answer, ModelServer, Seen, completion, say_ok, tool_call
from tests.support.ready import helper
from tests.support.server_process import CAN_FORK, MadeServer, free_port

ROOT = Path(__file__).parent.parent
PAGES = {
    path: path.read_text() for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
}
ALL = "\n".join(PAGES.values())
README = PAGES[ROOT / "README.md"]
ADDRESS = "http://127.0.0.1:8283"


def page_text(name: str) -> str:
    """Return the text of a page; page names are unique across folders."""
    (text,) = [text for page, text in PAGES.items() if page.name == name]
    return text


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def printed(command: list[str], **how: Any) -> str:
    """Run a command, which must succeed; return its output."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, **how
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Python:
    """Runs programs, each in a prepared process and in a separate working folder.

    So a page's program writes nothing into this repository.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._helper = helper() if CAN_FORK else None

    def __call__(self, code: str) -> str:
        """Run a program, which must succeed; return its output."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            if self._helper is None:
                return printed([sys.executable, "-c", code], cwd=folder)
            done = self._helper.run(["-c", code], Path(folder), os.environ)
            assert done.returncode == 0, done.stderr
            return done.stdout


@pytest.fixture(scope="module")
def run_python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    return Python(tmp_path_factory.mktemp("pages"))


def run_shell(commands: str, folder: Path) -> str:
    """Run shell commands, each of which must succeed; return their output."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0"}
    return printed(["bash", "-e", "-c", commands], cwd=folder, env=environment)


def test_the_readmes_conversation_is_remembered_after_a_sigkill(
    tmp_path: Path, run_python: Python
) -> None:
    """Follow the README's first steps unchanged.

    Tell a fact, kill the server, start it again, ask.
    """
    tell, ask, *_ = blocks(README, "python")
    with MadeServer(tmp_path) as server:
        told = run_python(tell.replace(ADDRESS, server.url))
        assert "assistant_message" in told
        server.end(signal.SIGKILL)
        server.start()
        answer, human = run_python(ask.replace(ADDRESS, server.url)).split("\nHer name is Ada.")
        assert "My favourite tea is jasmine." in answer
        assert "My favourite tea is jasmine." in human
        run_python(tell.replace(ADDRESS, server.url))
        with httpx2.Client(base_url=server.url, trust_env=False) as http:
            # The program ran twice, and made the agent once.
            assert [agent["name"] for agent in http.get("/v1/agents/").json()] == ["companion"]


def say_something(seen: Seen) -> Answer:
    """Answer as a provider for the docs.

    The provider has the model that the docs name. If a request offers the tool `read_thermometer`,
    the model first calls the tool, and then answers in a sentence.
    """
    if seen.method == "GET":
        return Answer({"object": "list", "data": [{"id": "gpt-4.1", "object": "model"}]})
    body = seen.body
    if body.get("stream"):
        return say_ok(seen)
    is_asked = body["messages"][-1]["role"] == "user"
    if is_asked and "read_thermometer" in json.dumps(body.get("tools", [])):
        return completion(None, calls=[tool_call("read_thermometer", "{}")])
    return completion("It is 21 °C." if not is_asked else "It rains.")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A reader's server, with the librarian and a model of OpenAI's."""
    port = free_port()
    providers = ProviderSettings.model_construct(
        openai_api_key=SecretStr("sk-docs"), openai_base_url=f"http://127.0.0.1:{port}/v1"
    )
    with serving(tmp_path_factory.mktemp("reader"), providers=providers, model=LIBRARIAN) as server:
        provider = ModelServer(say_something)
        server.run(provider.start(port))
        yield server
        server.run(provider.stop())


def program(page: str) -> str:
    """Return all Python blocks of a page as one program."""
    return "\n".join(blocks(page_text(page), "python"))


def test_the_readmes_proposal_waits_until_its_owner_approves_it(
    reader: ServerInThread, run_python: Python, tmp_path: Path
) -> None:
    *_, six_lines = blocks(README, "python")
    (commands,) = blocks(README, "sh")
    waiting = "print(client.get('/users/ada/blocks/human', cast_to=object)['body'])\n(proposal,)"
    six_lines, commands = (
        re.sub(r"\bada\b", "lin", text.replace(ADDRESS, reader.url))
        for text in (six_lines.replace("(proposal,)", waiting), commands)
    )

    printed = run_python(six_lines)

    before, blame = printed.split("\n", 1)
    assert before == "Her name is Ada."
    assert '"I live in Turin."' in blame
    assert "approved_by" in blame
    assert '"label":"human"' in run_shell(commands, tmp_path)
    assert "I live in Turin." in (tmp_path / "adas-notes" / "human.md").read_text()


# Patterns of the output of a page's programs, in any order.
SHOWN = {
    "agents.md": (
        r"\['send_message', 'conversation_search'",
        r"\('send_message', 'exit_loop'\)",
        r"'assistant_message'\]\nend_turn\n",
        r"\nTrue\nmemory_insert {",
        r"Her name is Ada\.\n",
        r'"I live in Turin\."',
        r"\nIt is 21 °C\.\n",
        r"^13 (?:\d|1[0-2]) It rains\.$",
        r"^\d+ of \d+$",
        r"messages there, more in the branch",
    ),
    "models.md": (
        r"^provider-[0-9a-f-]+ lab openai$",
        r"\nIt rains\. 13\nNone\n\Z",
        r"\A(?![^\0]*sk-)",
    ),
    "typed-memory.md": (
        r"\A\[USER\] Alice \| High school senior\n\[TASK\] Brainstorm essay topics\n\[STATE\] active_task\n",
        r"\n\[USER\] Bob\n\[STATE\] idle\n\[FACTS\] Plays the cello\n",
        r"\nidle None 0\n",
        r"- Talked about school\n- Talked about music\n- Talked about the move to Turin\n",
        r"\nTrue \.\.\. in Genoa\.\n\Z",
    ),
    "code-and-web.md": (r"^2$",),
    "agent-files.md": (
        r"^\['archives', 'conversations', 'memory', 'messages', 'schedules'\]$",
        r"^Tutor_copy$",
        r"^\['Ada lives in Turin\.'\]$",
    ),
    "templates.md": (
        r"^tutor 1$",
        r"^Her name is Ada\.$",
        r"^2 completed$",
        r"^You ask, and never tell\.$",
    ),
    "memories.md": (r'\AADD waits\nfact [-0-9]+: "I play the cello',),
    "access-tokens.md": (
        r"\Ahttps://shop\.example\.org \['read_messages', 'write_messages'\]\n",
        r"\n1\n\Z",
    ),
    "files.md": (
        r"^bees\.md completed 1$",
        r"^\['grep_files', 'open_files', 'semantic_search_files'\]$",
        r"^\[Viewing file start \(out of 4 lines\)\]\n1: # Bees\n2: \n3: Bees make honey in June\.\n4: Wasps do not\.$",
    ),
    "skills.md": (r"\Atea propose\nTrue\n\['tea'\]\n\Z",),
    "schedules.md": (
        r"\Arecurring 20[-0-9]+T0[56]:00:00\.000000Z\none-time 20[-0-9]+T[0-9:]+\.\d{6}Z\nTrue\n\Z",
    ),
    "batches.md": (r"\Acompleted 2\nassistant\n\Z",),
    "openai.md": (r"\Astop\n", r"jasmine"),
    "connect.md": (
        r'\A[^\n]*"Her name is Ada\."',
        r"\n[^\n]*Her name is Ada\.[^\0]*'status': 'waits'",
    ),
    "mcp-servers.md": (r"^notes \[\]$",),
    "memory.md": (
        r"\Aada She told me\nada Make student\nLikes tea\. 1\nLikes green tea\.\n\Z",
    ),  # runs without a server
    "embedded.md": (
        r'\A[^\n]*"My favourite tea is jasmine\."',
        r"^companion$",
        r"^\+.*I live in Turin\.",
        r"^20\d\d-\d\d-\d\d ada ",
        r"\nHer name is Ada\.\n\Z",
    ),  # runs without a server
    "costs.md": (
        r"^turn [1-9]\d* [1-9]\d*$",
        r"^[1-9]\d* of 200000 until 20",
        r"^[1-9]\d* [1-9]\d* \d+$",
    ),
    "groups.md": (
        r"^\['Algebra', 'Geometry', 'History'\]\nend_turn 3\n\['user', 'Algebra', 'Geometry', 'History'\]\n",
        r"\n\[\('system_message', 'Geometry'\), \('system_message', 'History'\)\]\n\Z",
    ),
    "sleeptime.md": (r'\A[-0-9]+: "I play the cello\."\n[-0-9]+: "I live in Turin\."\n20\n\Z',),
    "voice.md": (r'\Avoice_sleeptime 30 15\n[-0-9]+: "I play the cello\."\n',),
    "search.md": (
        r"\A[^\n]*The roses by the wall were planted in 2019\.\n",
        r"\n[^\n]*message-[^\n]*message-[^\n]*\n\Z",
    ),
}


@pytest.mark.parametrize("page", SHOWN)
def test_the_programs_of_a_page_print_what_it_shows(
    reader: ServerInThread, run_python: Python, page: str
) -> None:
    said = run_python(program(page).replace(ADDRESS, reader.url))
    assert [
        pattern for pattern in SHOWN[page] if not re.search(pattern, said, re.MULTILINE)
    ] == [], said


def test_the_programs_on_the_streams_page_print_what_it_shows(
    reader: ServerInThread, run_python: Python
) -> None:
    key, body, now = "ab" * 32, b'{"run_id":"run-1"}', int(time.time())
    good, old = signature(key, now, body), signature(key, now - 3600, body)
    checks = [f"is_from_ricordo({key!r}, {good!r}, {body!r})"]
    checks += [
        f"is_from_ricordo({key!r}, {good!r}, {body + b' '!r})",
        f"is_from_ricordo({key!r}, {old!r}, {body!r})",
    ]
    checks += [f"is_from_ricordo({'cd' * 32!r}, {good!r}, {body!r})"]
    code = program("streams.md").replace(ADDRESS, reader.url) + f"\nprint({', '.join(checks)})"

    said = run_python(code)

    assert "assistant_message have" in said
    assert re.search(
        r"^tool_call_message 1$.*^usage_statistics \d+$", said, re.MULTILINE | re.DOTALL
    )
    assert "user_message My favourite tea is jasmine." in said
    assert said.endswith("\nTrue False False False\n")


def test_the_command_on_the_streams_page_prints_the_signing_key_of_callbacks(
    tmp_path: Path, run_python: Python
) -> None:
    (command,) = blocks(page_text("streams.md"), "console")
    code = re.findall(r'-c "(.*)"', command)[0].replace("Path.home()", f"Path({str(tmp_path)!r})")

    assert run_python(code).strip() == signing_key(tmp_path / ".ricordo")


@pytest.fixture
def days_server(tmp_path: Path) -> Iterator[ServerInThread]:
    """A server that other pages do not use, so it knows nothing of Ada."""
    with serving(tmp_path / "day", model=LIBRARIAN) as server:
        yield server


def test_the_programs_of_a_students_day_work_as_described(
    days_server: ServerInThread, tmp_path: Path, run_python: Python
) -> None:
    day, end = page_text("a-students-day.md").split("## The end")
    (clones,) = blocks(day, "bash")
    said = run_python("\n".join(blocks(day, "python")).replace(ADDRESS, days_server.url))

    assert said.startswith("human propose 0\n")
    assert "was proposed as proposal-" in said
    assert "\n1 False\nMaths tutor wants:\n--- human\n+++ human\n" in said
    assert "\napproved She lives in Turin, near the river.\n" in said
    assert "\n['She lives in Turin, near the river.\\n']\n" in said
    assert 'My notes about you say: "She lives in Turin, near the river."' in said
    assert "\nTrue\nShe lives in Turin, near the river. - ada\n['I live in Turin.']\n" in said
    assert "\nHer name is Ada.\nShe studies maths.\n['Restore human as of " in said
    assert "explicit\n['blocks/human.md', 'blocks.jsonl', 'history.jsonl', " in said
    assert said.endswith("'facts.jsonl', 'learning.jsonl', 'manifest.json']\n")

    cloned = run_shell(clones.replace(ADDRESS, days_server.url), tmp_path)
    assert cloned.startswith("Restore human as of ")

    begin = blocks(day, "python")[0].partition("made = ")[0]
    end, _ = end.split("## With keys")
    forgotten = run_python(
        "\n".join([begin, *blocks(end, "python")]).replace(ADDRESS, days_server.url)
    )
    assert forgotten == "She likes proofs.\ndone\n"


def test_a_school_with_keys_works_as_described(tmp_path: Path, run_python: Python) -> None:
    _, page = page_text("a-students-day.md").split("## With keys")
    _start, clones = blocks(page, "bash")
    with serving(tmp_path / "data") as server:
        host = server.url.removeprefix("http://")
        program = "\n".join(blocks(page, "python")).replace("127.0.0.1:8284", host)
        *said, key = run_python(program).splitlines()
        assert said == ["403 403 403", "approved"]
        cloned = run_shell(key + "\n" + clones.replace("127.0.0.1:8284", host), tmp_path)
        assert cloned == "Ada:What I like\n"
        with server.http(headers=bearer(key.removeprefix("export KEY="))) as http:
            assert (
                http.get("/users/ada/blocks/human").json()["body"].endswith("She likes proofs.\n")
            )


def test_the_requests_on_the_connect_page_are_answered(
    reader: ServerInThread, tmp_path: Path
) -> None:
    commands = [
        block
        for block in blocks(page_text("connect.md"), "sh")
        if block.startswith(("curl", "git"))
    ]
    assert len(commands) == 2
    with reader.http() as http:
        http.put("/users/grace/blocks/human", json={"body": "Her name is Grace."})
    said = run_shell(
        "\n".join(commands).replace(ADDRESS, reader.url).replace("ada", "grace"), tmp_path
    )
    assert "Her name is Grace." in said
    assert (tmp_path / "memory" / "human.md").read_text() == "Her name is Grace."


def test_the_requests_on_the_formats_page_write_and_read_its_block(
    tmp_path: Path,
) -> None:
    text = page_text("block-formats.md")
    schema, shown, *_ = blocks(text, "toml")
    (tmp_path / "data" / "block_schemas").mkdir(parents=True)
    (tmp_path / "data" / "block_schemas" / "student.toml").write_text(schema)
    (tmp_path / "student.md").write_text(blocks(text, "markdown")[0])
    (commands,) = [block for block in blocks(text, "sh") if "curl" in block]
    with serving(tmp_path / "data") as server:
        said = run_shell(commands.replace(ADDRESS, server.url), tmp_path)
    assert blocks(text, "markdown")[0].strip() in said
    assert (tmp_path / "student.toml").read_text() == shown


def test_pages_import_only_packages_that_the_readme_installs() -> None:
    """Programs may import the standard library, the clients, and Ricordo's dependencies."""
    programs = (block for text in PAGES.values() for block in blocks(text, "python"))
    named = {
        name
        for code in programs
        for name in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
    }
    known = {"anthropic", "httpx2", "letta_client", "openai", "ricordo", "ricordo_countdown"}
    known |= {"a2a", "httpx", "ricordo_langgraph"}  # their pages name the packages
    assert named - sys.stdlib_module_names == known


def test_every_route_in_the_docs_exists(reader: ServerInThread) -> None:
    known = {
        (method.upper(), re.sub(r"\{\w+\}", "{}", path))
        for path, item in reader.app.openapi()["paths"].items()
        for method in item
    }
    not_served = page_text("compatibility.md")  # another test checks that page
    named = {
        (method, re.sub(r"\{\w+\}", "{}", path))
        for method, path in re.findall(
            r"\b(GET|POST|PATCH|PUT|DELETE) (/v1/[\w{}/-]*)", ALL.replace(not_served, "")
        )
    }
    assert ("GET", "/v1/agents/{}/context") in named
    assert named - known == set()


def test_every_agent_type_and_rule_is_on_the_agents_page() -> None:
    text = page_text("agents.md")
    assert [
        name
        for name in (*get_args(AgentType), *get_args(RuleType), *get_args(CompactionMode))
        if f"`{name}`" not in text
    ] == []


def test_the_agents_page_names_exactly_the_tools_of_these_types(reader: ServerInThread) -> None:
    """The rows of the other types refer to each other in words."""
    rows = re.findall(r"^\| (`\w+`.*?) \| native \| (.*?) \|", page_text("agents.md"), re.MULTILINE)
    named = {
        kind: re.findall(r"`(\w+)`", tools)
        for kinds, tools in rows
        for kind in re.findall(r"`(\w+)`", kinds)
    }
    assert len(named) == 5
    with reader.http() as http:
        for kind, tools in named.items():
            fields = {"agent_type": kind, "enable_sleeptime": kind == "voice_convo_agent"}
            agent = http.post("/v1/agents/", json=fields).json()
            assert [tool["name"] for tool in agent["tools"]] == tools


def test_the_courses_page_names_exactly_the_default_tools_of_agents() -> None:
    (tools,) = re.findall(r"the tools of a tutor: (.*?)\. ", page_text("courses.md"))
    assert tuple(re.findall(r"`(\w+)`", tools)) == TUTOR_TOOLS


def test_the_architecture_page_lists_what_features_require() -> None:
    lines = re.findall(r"^ (\w+) +→ (.+)$", page_text("architecture.md"), re.MULTILINE)
    required = {
        name: sorted(plugin.requires)
        for name in FEATURES
        if (plugin := import_module(f"ricordo.features.{name}").feature).requires
    }
    assert {name: names.split(", ") for name, names in lines} == required


def test_the_status_page_lists_exactly_the_refused_fields() -> None:
    text = page_text("status.md")
    refused = {*ConversationFields.unsupported}
    rows = [line for line in text.splitlines() if line.startswith("|") and line.endswith("| 422 |")]
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert refused - named == set()
    models = (agents.AgentRequest, agents.AgentUpdate, turns.AsyncSendRequest, ConversationFields)
    known = {field for model in models for field in model.model_fields}
    assert (named & known) - refused == set()


def test_the_settings_page_lists_every_setting() -> None:
    """A failure shows the lines for docs/operate/settings.md."""
    rows = [
        f"| `{each.variable}` | {f'`{each.default}`' if each.default else ''} | {each.meaning} |"
        for kind in (Settings, *feature_settings())
        for each in listed_settings(kind)
    ]
    page = [line for line in page_text("settings.md").splitlines() if line.startswith("| `")]
    assert page == rows, "\n".join(rows)


def test_every_make_target_in_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", ALL, re.MULTILINE))
    assert {"run", "test"} <= named <= targets


def test_every_command_in_the_docs_exists() -> None:
    named = set(re.findall(r"(?:`|bin/)ricordo ([a-z]+)", ALL))
    shown = CliRunner().invoke(app, ["--help"]).output
    assert named
    assert {name for name in named if not re.search(rf"\b{name}\b", shown)} == set()


def test_every_command_in_the_docs_has_its_options() -> None:
    """An example is `ricordo key create --user ada`.

    The test adds `--help`, so the command does nothing, and an unknown option is an error.
    """
    seen: dict[str, Any] = {}
    command = get_command(app)  # slow to build
    pages = "\n".join(
        text
        for page, text in PAGES.items()
        if page.parent.name != "decisions" and page.name != "CHANGELOG.md"
    )
    prose = re.sub(r"^```.*?^```", "", pages, flags=re.DOTALL | re.MULTILINE)
    for line in re.findall(r"`ricordo ([^`]+)`", prose):
        seen[line] = click.testing.CliRunner().invoke(
            command, [*line.replace("…", "").split(), "--help"]
        )
    assert len(seen) > 20
    assert {line: ran.output for line, ran in seen.items() if ran.exit_code != 0} == {}


def test_every_setting_in_the_docs_exists() -> None:
    known = {
        variable
        for kind in (Settings, ProviderSettings, *feature_settings())
        for variable in variables_of(kind)
    }
    # These are settings of tools, of clients and of the example plugin.
    known |= {
        "LETTA_API_KEY",
        "LETTA_BASE_URL",
        "RICORDO_COUNTDOWN_TIMEZONE",
    }
    text = "\n".join(text for page, text in PAGES.items() if page.parent.name != "decisions")
    named = set(
        re.findall(r"\b(?:RICORDO_[A-Z_]+[A-Z]|[A-Z]+_(?:API_KEY|BASE_URL|API_BASE))\b", text)
    )
    assert "RICORDO_API_KEY" in named
    assert named - known == set()
    models = page_text("models.md")
    assert [name for name in ProviderSettings.model_fields if name.upper() not in models] == []


def test_every_hook_is_documented() -> None:
    text = page_text("plugins.md")
    assert {hook for hook in HOOKS if f"`{hook}`" not in text} == set()


def test_every_link_has_an_existing_target() -> None:
    missing = [
        f"{page.name}: {link}"
        for page, text in PAGES.items()
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert missing == []


def test_the_tour_lists_every_folder_and_file_of_the_package() -> None:
    (tree,) = blocks(page_text("tour.md"), "text")
    named = set(re.findall(r"^  ([a-z_]+(?:\.py|/))", tree, re.MULTILINE))
    here = {
        path.name + ("/" if path.is_dir() else "")
        for path in (ROOT / "ricordo").iterdir()
        if not path.name.startswith(("_", ".")) and path.suffix in ("", ".py")
    }
    assert named == here
