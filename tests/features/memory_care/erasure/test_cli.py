"""`ricordo memory forget` and `receipt`, with a server and without one."""

from pathlib import Path

import orjson

from tests.cli.conftest import Shell, remember
from tests.support.canaries import canary, in_files


def receipts_of(shell: Shell) -> list[Path]:
    return sorted((shell.data / "receipts").glob("*.json"))


def test_a_user_can_be_erased_without_a_server_and_the_receipt_verified(shell: Shell) -> None:
    remember(shell, "ada", "bob")
    refused = shell.run("memory", "forget", "ada", said="n\n")
    assert refused.returncode == 1
    assert in_files(shell.data, canary("ada")) != []

    done = shell.run("memory", "forget", "ada", said="y\n")

    assert (done.returncode, done.stderr) == (0, "")
    assert 'Forget "ada"?' in done.stdout
    assert "chains: 1" in done.stdout
    assert "Clones, agent files, exports and backups" in done.stdout
    (receipt,) = receipts_of(shell)
    assert f"Receipt: {receipt}" in done.stdout
    assert in_files(shell.data, canary("ada")) == []
    assert in_files(shell.data, canary("bob")) != []
    checked = shell.run("memory", "receipt", str(receipt))
    assert checked.returncode == 0
    assert "It is unchanged since this installation signed it." in checked.stdout
    other = shell.run(
        "memory", "receipt", str(receipt), RICORDO_DATA_DIR=str(shell.folder / "other")
    )
    assert (other.returncode, "cannot be told here" in other.stdout) == (0, True)
    forged = orjson.loads(receipt.read_bytes())
    forged["removed"]["chains"] = 2
    receipt.write_bytes(orjson.dumps(forged))
    changed = shell.run("memory", "receipt", str(receipt))
    assert (changed.returncode, "was changed after it was signed" in changed.stdout) == (1, True)


def test_a_running_server_erases_a_user_for_the_command(shell: Shell) -> None:
    remember(shell, "ada")
    with shell.serving() as server:
        done = shell.run("memory", "forget", "ada", "--yes", "--server", server.address)
        assert (done.returncode, done.stderr) == (0, "")
        again = shell.run("memory", "forget", "ada", "--yes", "--server", server.address)
        assert again.stdout == done.stdout
        unknown = shell.run("memory", "forget", "eve", "--yes", "--server", server.address)
        assert unknown.returncode == 2
        assert 'There is no user "eve"' in unknown.stderr
    assert len(receipts_of(shell)) == 1


def test_erasure_commands_report_missing_databases_servers_and_users(shell: Shell) -> None:
    nothing = shell.run("memory", "forget", "ada", "--yes")
    assert (nothing.returncode, "There is no database at" in nothing.stderr) == (2, True)
    silent = shell.run("memory", "forget", "ada", "--yes", "--server", "http://127.0.0.1:9")
    assert (silent.returncode, "No server answers at" in silent.stderr) == (2, True)
    remember(shell, "ada")
    for command in (("memory", "forget", "nobody"), ("user", "delete", "nobody")):
        unknown = shell.run(*command)
        assert (unknown.returncode, unknown.stdout) == (2, "")  # without asking for confirmation
        assert 'There is no user "nobody"' in unknown.stderr
        assert "--yes shows the receipt" in unknown.stderr
    missing = shell.run("memory", "receipt", "nothing.json")
    assert (missing.returncode, "There is no file nothing.json" in missing.stderr) == (2, True)
