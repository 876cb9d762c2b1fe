"""`ricordo memory remotes`: with a server and without one, and never showing a password."""

import json
import shutil
from pathlib import Path

import pytest

from ricordo.features.sync.remotes.cli import line
from tests.cli.conftest import Shell, remember
from tests.support.git import git

OF_ADA = ("--user", "ada")


def remotes(shell: Shell, *arguments: str, said: str = "", code: int = 0, **variables: str) -> str:
    done = shell.run("memory", "remotes", *arguments, said=said, **variables)
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.parametrize("has_server", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_remote_command_adds_syncs_lists_and_removes_a_remote(
    shell: Shell, has_server: bool
) -> None:
    remember(shell, "ada")
    bare = shell.data / "remotes" / "ada.git"

    def go(*server: str) -> None:
        assert "has no remotes" in remotes(shell, "list", *OF_ADA, *server)
        assert str(bare) in remotes(shell, "add", "git", str(bare), *OF_ADA, *server)
        assert "version 1, checked at 2" in remotes(shell, "sync", *OF_ADA, *server)
        assert git(bare, "log", "-1", "--format=%s", "main")
        (listed,) = json.loads(remotes(shell, "list", "--json", *OF_ADA, *server))
        assert (listed["kind"], listed["address"], listed["followed"]) == ("git", str(bare), 1)
        shutil.rmtree(bare)
        bare.mkdir()
        failed = remotes(shell, "sync", listed["id"], *OF_ADA, *server, code=1)
        assert "There is no git repository at the remote" in failed
        assert "stays there" in remotes(shell, "remove", str(bare), *OF_ADA, *server)
        assert "There is no remote" in remotes(
            shell, "remove", listed["id"], *OF_ADA, *server, code=2
        )

    if has_server:
        with shell.serving() as server:
            go("--server", server.address)
    else:
        go()


def test_a_password_is_typed_and_never_printed(shell: Shell) -> None:
    remember(shell, "ada")
    with shell.serving() as server:
        to = (*OF_ADA, "--server", server.address)
        add = ("add", "git", "https://git.invalid/ada.git", "--username", "ada", "--password", *to)
        said = remotes(shell, *add, said="s3cret\n")
        said += remotes(shell, "list", *to) + remotes(shell, "list", "--json", *to)
        assert "https://git.invalid/ada.git" in said
        assert "s3cret" not in said
        assert "No password was given" in remotes(shell, *add, code=2)
        # Everybody on the machine can read the command line of a program.
        embedded = remotes(
            shell, "add", "dolt", "mysql://ada:s3cret@dolt.invalid/memory", *to, code=2
        )
        assert "use --password" in embedded
        assert "s3cret" not in embedded
        assert "s3cret" not in remotes(shell, "list", *to)
        assert "dolt.invalid" not in remotes(shell, "list", *to)
        private = remotes(
            shell,
            "add",
            "dolt",
            "mysql://ada@10.0.0.7/memory",
            "--password",
            *to,
            said="x\n",
            code=2,
        )
        assert "RICORDO_ALLOW_PRIVATE_REMOTES" in private


def test_the_remote_command_reports_invalid_arguments(shell: Shell, tmp_path: Path) -> None:
    assert "There is no database at" in remotes(shell, "list", *OF_ADA, code=2)
    assert "Write it as name=value" in remotes(
        shell, "add", "git", "x", "--option", "y", *OF_ADA, code=2
    )
    remember(shell, "ada")
    with shell.serving() as server:
        to = ("--server", server.address)
        refused = remotes(shell, "add", "git", str(tmp_path / "a.git"), *OF_ADA, *to, code=2)
        assert "RICORDO_REMOTE_FOLDERS" in refused
        assert "eve" in remotes(shell, "list", "--user", "eve", *to, code=2)


def test_control_characters_in_remote_errors_are_not_printed() -> None:
    remote = {
        "id": "remote-1",
        "kind": "git",
        "address": "/a/\x1b]0;b",
        "followed": 1,
        "last_at": None,
    }
    printed = line(
        {**remote, "last_error": "The remote refused the branch main: \x1b[2J\rAll is well"}
    )
    assert "\x1b" not in printed
    assert "\r" not in printed
    assert "refused the branch main" in printed
