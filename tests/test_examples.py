"""Programs of the docs that are not Python or that read files, run unchanged."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seams.server import ServerInThread, serving

DOCS = Path(__file__).parent.parent / "docs" / "start"
ADDRESS = "http://127.0.0.1:8283"
LIMIT = 180


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A reader's server, with the librarian."""
    with serving(tmp_path_factory.mktemp("reader"), model="ricordo/librarian") as server:
        yield server


def code(page: str, language: str, server: ServerInThread) -> str:
    found = re.findall(
        rf"^```{language}\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found
    return "\n".join(found).replace(ADDRESS, server.url)


def said(command: list[str], folder: Path, **environment: str) -> str:
    given = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    done = subprocess.run(
        command, cwd=folder, env=given, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not on this machine")
def test_the_curl_commands_do_what_their_page_says(server: ServerInThread, tmp_path: Path) -> None:
    shown = said(["bash", "-euo", "pipefail", "-c", code("examples.md", "sh", server)], tmp_path)
    assert '"detail"' not in shown
    assert "data: [DONE]" in shown
    assert "I planted roses by the wall." in shown.partition("data: ")[2]
    assert "Her name is Ada. She gardens." in shown
    assert shown.count("Roses are cut in March.") == 2
    assert '"Her name is Mia."' in shown


@pytest.mark.skipif(not shutil.which("node"), reason="Node is not on this machine")
def test_the_javascript_program_talks_streams_and_gets_an_error(
    server: ServerInThread, tmp_path: Path
) -> None:
    (tmp_path / "talk.mjs").write_text(code("examples.md", "js", server), "utf-8")
    shown = said(["node", "talk.mjs"], tmp_path)
    assert re.search(r"^assistant_message \S", shown, re.MULTILINE)
    assert "My favourite tea is jasmine." in shown
    assert shown.splitlines()[-1].startswith(
        "422 INVALID_ARGUMENT: body.modell: There is no such field here."
    )


def test_agents_and_facts_are_imported_from_letta_mem0_and_open_webui(
    server: ServerInThread, tmp_path: Path
) -> None:
    page = (DOCS / "coming-from.md").read_text("utf-8")
    for name, text in re.findall(
        r"[Ss]ave this as `([^`]+)`:\n\n```json\n(.*?)```", page, re.DOTALL
    ):
        (tmp_path / name).write_text(text, "utf-8")
    with serving(tmp_path / "old", model="ricordo/librarian") as old, old.client() as client:
        agent = client.agents.create(
            name="Tutor",
            memory_blocks=[{"label": "human", "value": "Her name is Ada."}],
            tags=["maths"],
        )
        client.agents.messages.create(agent.id, input="I planted roses by the wall.")
        for number in range(3):
            client.agents.passages.create(
                agent.id, text=f"Note {number}.", created_at="2025-01-01T00:00:00Z", tags=["note"]
            )
        human = client.agents.blocks.retrieve("human", agent_id=agent.id).value
        program = code("coming-from.md", "python", server).replace(
            "http://old-server:8283", old.url
        )
        shown = said([sys.executable, "-c", program], tmp_path)
    assert shown.startswith("Tutor: 1 blocks, 2 messages, 3 passages\n")
    assert "Prefers tea over coffee\n" in shown
    assert shown.endswith("- I live in Vienna.\n- Prefers short answers.\n\n")
    with server.client() as client:
        (copy,) = client.agents.list(name="Tutor").items
        assert (copy.tags, client.agents.blocks.retrieve("human", agent_id=copy.id).value) == (
            ["maths"],
            human,
        )
        assert sorted(passage.text for passage in client.agents.passages.list(copy.id)) == [
            "Note 0.",
            "Note 1.",
            "Note 2.",
        ]
        assert "I planted roses by the wall." in str(client.messages.search(query="roses"))
