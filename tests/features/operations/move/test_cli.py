"""`ricordo db migrate-to`: its output, its refusals, and that it shows no password."""

import asyncio
import math
import re
from pathlib import Path

import pytest

from ricordo.cli.screen import ProgressLine
from ricordo.features import FEATURES
from ricordo.plugins import load_plugins
from ricordo.storage.engine.sqlite import open_sqlite
from tests.cli.conftest import Shell
from tests.seams import make
from tests.support import postgres


def fill(path: Path) -> str:
    """Make a database with an agent and its messages; return the agent's id."""
    # Registers the tables of features, so that the database has all tables that a server makes.
    load_plugins(FEATURES).tables()

    async def work() -> str:
        store = open_sqlite(path)
        state = await make.stored_agent(store)
        await make.stored_messages(store, make.message(state.agent, "Jasmine tea."))
        await store.close()
        return state.agent.id

    return asyncio.run(work())


def test_a_database_can_be_moved_to_postgresql_and_back(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricordo.cli.screen._EVERY", {True: math.inf, False: math.inf})
    fill(shell.data / "ricordo.db")
    url = postgres.server().new_database().replace("postgres@", "postgres:s3cret@")
    try:
        there = shell.run("db", "migrate-to", url)
        assert there.returncode == 0, there.stderr
        assert re.search(r"Moved \d+ rows in \d+ tables", there.stdout)
        assert "compared" not in there.stdout  # no line for each of the many tables
        assert "Their numbers and their hashes are equal." in there.stdout
        assert "set RICORDO_DATABASE_URL=postgresql://postgres:<password>@" in there.stdout
        again = shell.run("db", "migrate-to", url)
        assert again.returncode == 2
        assert "is not empty" in again.stderr
        (shell.data / "ricordo.db").rename(shell.data / "old.db")
        back = shell.run(
            "db", "migrate-to", f"sqlite:///{shell.data}/ricordo.db", RICORDO_DATABASE_URL=url
        )
        assert back.returncode == 0, back.stderr
        assert "unset RICORDO_DATABASE_URL" in back.stdout
        for done in (there, again, back):
            assert "s3cret" not in done.stdout + done.stderr
    finally:
        postgres.server().drop(url.replace("postgres:s3cret@", "postgres@"))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://somewhere/else", "must be sqlite:///path"),
        (
            "postgresql://me:s3cret@127.0.0.1:1/ricordo",
            "postgresql://me:***@127.0.0.1:1/ricordo cannot be opened",
        ),
    ],
)
def test_an_invalid_target_address_is_refused_with_a_reason(
    shell: Shell, url: str, says: str
) -> None:
    fill(shell.data / "ricordo.db")
    refused = shell.run("db", "migrate-to", url)
    assert refused.returncode == 2
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "s3cret" not in refused.stdout + refused.stderr


def test_the_end_of_a_part_gets_no_separate_progress_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for is_live, shown in (
        (False, "copied b: 2 of 2\n"),
        (True, "\r\x1b[Kcopied a: 2 of 2\r\x1b[Kcopied b: 2 of 2\n"),
    ):
        moments = iter([0.0, 0.05, 1.0, 6.0, 6.05]).__next__
        progress = ProgressLine(has_parts=True, is_live=is_live, clock=moments)
        for part, done in (("a", 1), ("a", 2), ("b", 2), ("c", 1)):
            progress.show(f"copied {part}", done, 2)
        progress.end()
        assert capsys.readouterr().out == shown


def test_progress_is_one_line_on_a_terminal_and_occasional_lines_in_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for is_live, moments, shown in (
        (False, [0.0, 1.0, 6.0], "copied: 1 of 3,000\ncopied: 3 of 3,000\n"),
        (True, [0.0, 0.05, 0.2], "\r\x1b[Kcopied: 1 of 3,000\r\x1b[Kcopied: 3 of 3,000\n"),
    ):
        progress = ProgressLine(is_live=is_live, clock=iter(moments).__next__)
        for done in (1, 2, 3):
            progress.show("copied", done, 3000)
        progress.end()
        assert capsys.readouterr().out == shown
