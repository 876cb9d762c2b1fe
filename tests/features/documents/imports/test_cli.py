"""`ricordo import` as people run it."""

import json
import re
from pathlib import Path

import httpx2

from tests.cli.conftest import Shell
from tests.features.documents.imports.test_chats import CLAUDE, OPENWEBUI, chatgpt, zipped
from tests.support import postgres
from tests.support.letta_database import fill


def test_an_export_is_imported_for_a_user(shell: Shell) -> None:
    (shell.folder / "export.json").write_text(json.dumps([CLAUDE, 3]))
    for _ in range(2):
        done = shell.run(
            "import", "claude", "export.json", "--user", "mia", "--report", "report.json"
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert (
            "Imported from claude:\n  1 chats\n  2 messages\nLeft out:\n  1 chats (no. 2): it is not "
            "a JSON object" in done.stdout
        )
    assert json.loads((shell.folder / "report.json").read_text())["taken"] == {
        "chats": 1,
        "messages": 2,
    }
    nowhere = shell.run("import", "claude", "export.json", "--report", "no/folder/report.json")
    assert (nowhere.returncode, nowhere.stdout) == (2, "")  # before anything is imported
    assert "no/folder/report.json cannot be written. Name a file in a folder" in nowhere.stderr
    missing = shell.run("import", "claude", "missing.json")
    assert (missing.returncode, "There is no file missing.json" in missing.stderr) == (2, True)
    unknown = shell.run("import", "claude", "export.json", "--agent", "agent-1")
    assert (unknown.returncode, "agent-1 not found" in unknown.stderr) == (2, True)


def test_the_commands_in_the_moving_in_page_work(shell: Shell) -> None:
    page = (Path(__file__).parents[4] / "docs" / "start" / "moving-in.md").read_text()
    commands = re.findall(
        r"^ricordo (import (?:chatgpt|claude|openwebui|pasted|mem0) (\S+) .*)$", page, re.MULTILINE
    )
    memory = {"id": "1", "memory": "Likes tea."}
    for (command, name), content in zip(
        commands, (chatgpt(), CLAUDE, OPENWEBUI, "Likes tea.", memory), strict=True
    ):
        data = content.encode() if isinstance(content, str) else json.dumps([content]).encode()
        (shell.folder / name).write_bytes(
            zipped("conversations.json", data) if name.endswith(".zip") else data
        )
        done = shell.run(*command.split())
        # A busy machine adds a line about slow writes.
        said = done.stderr.replace("slow write\n", "")
        assert (done.returncode, said, "Imported from" in done.stdout) == (0, "", True)
        assert re.search("  1 (memories|memories proposed|chats)\n", done.stdout)


def test_a_persons_memory_is_restored_once(shell: Shell) -> None:
    with shell.serving() as server:
        address = f"{server.address}/users/ada"
        made = httpx2.put(f"{address}/blocks/human", json={"body": "Ada."}, trust_env=False)
        assert made.status_code == 200, made.text
        archive = httpx2.get(f"{address}/export", trust_env=False).content
    (shell.folder / "memory.zip").write_bytes(archive)
    for again in ([], ["--user", "bo"]):
        refused = shell.run("import", "memory", "memory.zip", *again)
        assert (refused.returncode, "forget" in refused.stderr.lower()) == (2, True)
    for suffix in ("", "-wal", "-shm"):
        (shell.data / f"ricordo.db{suffix}").unlink(missing_ok=True)
    done = shell.run("import", "memory", "memory.zip", "--report", "report.json")
    assert done.returncode == 0, done.stderr
    assert "Imported from memory of ada:\n  1 blocks\n  1 versions\n" in done.stdout
    assert json.loads((shell.folder / "report.json").read_text())["taken"]["versions"] == 1


def test_a_letta_import_needs_the_server_to_be_stopped(shell: Shell) -> None:
    url = postgres.server().new_database(empty=True)
    fill(url).connection.close()
    with shell.serving():
        busy = shell.run("import", "letta", "--database", url)
        assert (busy.returncode, "Another Ricordo server is using" in busy.stderr) == (2, True)
    done = shell.run(
        "import", "letta", LETTA_PG_URI=url.replace("postgresql://", "postgresql+pg8000://")
    )
    assert (done.returncode, done.stderr.replace("slow write\n", "")) == (0, "")
    assert "  2 agents\n" in done.stdout
    assert "1 groups (sleeptime): " in done.stdout
    assert (
        shell.run("import", "letta", "--database", "postgresql://u:hush@127.0.0.1:1/x").returncode
        == 2
    )
    postgres.server().drop(url)
