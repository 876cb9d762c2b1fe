"""`ricordo user forget`: it lists, and removes with --yes."""

from tests.cli.conftest import Shell, remember
from tests.support.canaries import canary, in_files


def test_the_forget_command_lists_matches_and_removes_them_with_yes(shell: Shell) -> None:
    remember(shell, "ada", "bob")
    with shell.serving() as server:
        command = ("user", "forget", "ada", "--text", canary("ada"), "--server", server.address)
        listed = shell.run(*command)
        assert (listed.returncode, listed.stderr) == (0, "")
        assert "Says it:" in listed.stdout
        assert "Nothing was removed." in listed.stdout

        done = shell.run(*command, "--yes")

        assert (done.returncode, done.stderr) == (0, "")
        assert "Changed:" in done.stdout
        again = shell.run(*command, "--yes")
        assert (again.returncode, "No stored text says it" in again.stderr) == (2, True)
    assert in_files(shell.data, canary("ada")) == []
    assert in_files(shell.data, canary("bob")) != []
