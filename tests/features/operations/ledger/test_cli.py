"""`ricordo costs`: the ledger as a table, from a server or from the database itself."""

import asyncio

from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.domain.usage import Expense, Usage
from ricordo.features.operations.ledger.service import FILE
from ricordo.settings import Settings
from ricordo.storage import runs
from ricordo.storage.engine.database import open_store
from tests.cli.conftest import Shell

PRICES = 'currency = "USD"\n["a/*"]\ninput = 10\noutput = 20\n'


def fill(shell: Shell) -> None:
    """Make a database in which tokens were used today."""

    async def work() -> None:
        shell.data.mkdir()
        store = open_store(Settings(data_dir=shell.data))
        for model in ("a/model", "b/model"):
            spent = Expense(
                LOCAL_ORGANIZATION, "compaction", model, Usage(100_000, 2_000), "agent-1"
            )
            await store.write(lambda tx, spent=spent: runs.add_expense(tx, spent))  # type: ignore[misc]
        await store.close()

    asyncio.run(work())


def test_costs_are_the_same_with_and_without_a_running_server(shell: Shell) -> None:
    fill(shell)
    (shell.data / FILE).write_text(PRICES)
    at_rest = shell.run("costs", "--by", "model", "--days", "2")
    assert (at_rest.returncode, at_rest.stderr) == (0, "")
    lines = [line.split() for line in at_rest.stdout.splitlines() if line]
    assert lines[1] == [
        "model",
        "input",
        "of",
        "it",
        "cached",
        "output",
        "total",
        "cost",
        "in",
        "USD",
    ]
    assert lines[2:5] == [
        ["a/model", "100,000", "-", "2,000", "102,000", "1.0400"],
        ["b/model", "100,000", "-", "2,000", "102,000", "-"],
        ["all", "200,000", "-", "4,000", "204,000", "1.0400"],
    ]
    assert "102,000 tokens are of models without a price in prices.toml" in at_rest.stdout
    with shell.serving() as server:
        asked = shell.run("costs", "--by", "model", "--days", "2", "--server", server.address)
    assert (asked.returncode, asked.stdout) == (0, at_rest.stdout)


def test_invalid_costs_commands_are_refused_with_a_reason(shell: Shell) -> None:
    for arguments, sentence in (
        (("--by", "colour"), "Use one of: day, agent, user, model, purpose."),
        (("--days", "0"), "--days is a number of days from 1"),
        ((), "There is no database at"),
        (("--server", "http://127.0.0.1:9"), "No server answers at http://127.0.0.1:9"),
    ):
        done = shell.run("costs", *arguments)
        assert (done.returncode, sentence in done.stderr) == (2, True), done.stderr
