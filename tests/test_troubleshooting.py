"""Ricordo prints each error that docs/start/troubleshooting.md quotes.

The test causes the trouble, and looks for the error.
"""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.seams.server import MODEL, Gate, ServerInThread, serving
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK, free_port

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="commands are forked")
PAGE = (Path(__file__).parent.parent / "docs/start/troubleshooting.md").read_text("utf-8")
# Other tests have the causes of these errors: an environment without the extra
# (tests/test_package.py), damaged rows (tests/cli/test_repair.py), a pooler
# (tests/storage/test_postgres.py), a full disk (tests/storage/test_failures.py), a withheld answer
# (tests/agents/test_loop.py), old schemas (tests/storage/test_schema.py).
ELSEWHERE = {
    "RICORDO_DATABASE_URL names PostgreSQL, which needs an extra.",
    "… need repair",
    "… leads to a connection pooler in transaction mode",
    "The disk is full.",
    "The provider's content filter withheld the answer.",
    "… made by one of the first versions of Ricordo",
}


def sentences() -> list[str]:
    """Return the errors that the first column quotes, without its settings and commands."""
    cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| ")]
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return [text for text in quoted if " " in text and not text.startswith("ricordo ")]


def found(sentence: str, said: str) -> bool:
    return re.search(".+?".join(map(re.escape, sentence.split("…"))), said) is not None


@pytest.fixture(scope="module")
def ricordo(tmp_path_factory: pytest.TempPathFactory, helper: Helper) -> Callable[..., str]:
    """Runs a command in an empty folder; returns all of its output."""

    def run(*arguments: str, folder: Path | None = None, **variables: str) -> str:
        home = folder or tmp_path_factory.mktemp("home")
        given = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "RICORDO_FIND_LOCAL_MODELS": "false",
            **variables,
        }
        done = helper.run(arguments, home, given)
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


def said_at_the_start(ricordo: Callable[..., str], server: ServerInThread, folder: Path) -> str:
    foreign, damaged, restored = folder / "foreign.db", folder / "damaged.db", folder / "restored"
    with closing(sqlite3.connect(foreign)) as opened:
        opened.execute("CREATE TABLE songs (title)")
    damaged.write_text("no database at all\n" * 100)
    ricordo("key", "create", "--user", "ada", RICORDO_DATA_DIR=str(restored))
    (restored / "secret.key").unlink()
    port, free = server.url.rpartition(":")[2], str(free_port())
    starts: list[dict[str, str]] = [
        {"RICORDO_PORT": port},
        {"RICORDO_DATA_DIR": str(server.settings.data_dir), "RICORDO_PORT": free},
        {"RICORDO_HOST": "0.0.0.0", "RICORDO_PORT": free},  # noqa: S104 - it is refused
        {"RICORDO_HOST": "0.0.0.0", "RICORDO_PORT": free, "RICORDO_API_KEY": "short"},  # noqa: S104
        {"RICORDO_PROT": "9000"},
        {"RICORDO_DATA_DIR": str(restored), "RICORDO_PORT": free},
        {"RICORDO_DATABASE_URL": f"sqlite:///{foreign}", "RICORDO_PORT": free},
        {"RICORDO_DATABASE_URL": f"sqlite:///{damaged}", "RICORDO_PORT": free},
        {"RICORDO_DATABASE_URL": "postgresql://ricordo@127.0.0.1:1/ricordo", "RICORDO_PORT": free},
    ]
    said = [ricordo("serve", **each) for each in starts]
    said.append(ricordo("chat", "--server", f"http://127.0.0.1:{free}"))
    said.append(ricordo("doctor", RICORDO_MODEL="openai/gpt-4.1", RICORDO_EMBEDDING="none"))
    return "\n".join(said)


def said_by_the_server(server: ServerInThread, folder: Path) -> str:
    said: list[Any] = []
    with server.http() as http:
        said += [http.get("/v1/agents/", headers={"host": "ricordo.example.org"})]
        said += [http.get("/v1/agents/", headers={"x-forwarded-for": "203.0.113.9"})]
        said += [http.get("/v1/agents/", headers={"origin": "https://evil.example"})]
        said += [
            http.post("/v1/agents/", json={"model": "openai/gpt-4.1"}),
            http.post("/v1/agents/", json={"modell": "x"}),
        ]
        said += [http.post("/v1/agents/", content=b"x" * (33 * 1024**2))]
        agent = http.post("/v1/agents/", json={"model": MODEL}).json()["id"]
        gate = Gate(server)
        server.answers_with(gate)
        begun = http.post(f"/v1/agents/{agent}/messages/async", json={"input": "Hello."})
        assert begun.status_code == 200
        gate.wait()
        said += [http.post(f"/v1/agents/{agent}/messages", json={"input": "And now?"})]
        gate.open()
    with (
        serving(folder / "locked", api_key="a-long-secret-of-the-operator") as locked,
        locked.http() as http,
    ):
        said += [
            http.get("/v1/agents/"),
            http.get("/v1/agents/", headers={"authorization": "Bearer wrong"}),
        ]
    return "\n".join(f"{each.status_code} {each.json()['detail']}" for each in said)


def test_every_error_quoted_on_the_page_is_printed(
    ricordo: Callable[..., str], server: ServerInThread, tmp_path: Path
) -> None:
    said = said_at_the_start(ricordo, server, tmp_path) + said_by_the_server(server, tmp_path)
    quoted = sentences()
    assert len(quoted) > 20
    assert set(quoted) >= ELSEWHERE
    assert [each for each in quoted if each not in ELSEWHERE and not found(each, said)] == [], said
