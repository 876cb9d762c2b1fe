"""`ricordo` with an unusable data folder.

One sentence says what to do, and nothing is changed.
"""

import sqlite3
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from ricordo.secret import FILE
from tests.cli.conftest import Shell, environment, remember

COMMANDS = (("serve", "--port", "0"), ("chat",), ("memory", "show", "ada"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


def refusals(shell: Shell, *commands: Sequence[str]) -> set[str]:
    """Return the one-line refusal of each command."""
    told = set()
    for command in commands or COMMANDS:
        ran = shell.run(*command)
        assert (ran.returncode, ran.stdout) == (2, ""), ran.stdout + ran.stderr
        assert "Traceback" not in ran.stderr
        (line,) = ran.stderr.splitlines()
        told.add(line)
    return told


# Gives up root's rights to read and write every file (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH),
# and runs a command.
CONFINED = """
import ctypes
from ricordo.cli import app

header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.capget(header, sets) == 0
for kind in range(3):
    sets[kind] &= ~0b110
assert libc.capset(header, sets) == 0
app({arguments!r}, prog_name="ricordo")
"""


class ConfinedShell(Shell):
    """A shell whose processes obey file permissions, even if the tests run as root."""

    def run(
        self, *arguments: str, said: str = "", **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        assert self.helper
        program = CONFINED.format(arguments=list(arguments))
        return self.helper.run(
            ["-c", program], self.folder, environment(self.data, **variables), said
        )


@pytest.fixture
def confined(shell: Shell) -> Shell:
    if sys.platform != "linux" or shell.helper is None:
        pytest.skip("only Linux has capabilities")
    return ConfinedShell(shell.folder, shell.command, shell.helper)


@pytest.mark.parametrize("name", ["ricordo.db", "."])
def test_a_read_only_database_is_refused_in_one_sentence(confined: Shell, name: str) -> None:
    remember(confined, "ada")
    path = confined.data / name
    path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        (told,) = refusals(confined, COMMANDS[0])
        examined = confined.run("doctor")
    finally:
        path.chmod(0o700)
    assert f"{path.resolve()} is read-only for this user" in told
    assert (examined.returncode, f"{path.resolve()} is read-only" in examined.stdout) == (1, True)


def test_a_data_folder_of_another_user_is_refused_in_one_sentence(confined: Shell) -> None:
    remember(confined, "ada")
    confined.data.chmod(0)
    commands = [("search", "reindex"), ("audit", "verify"), ("key", "list"), ("course", "check")]
    try:
        (told,) = refusals(confined, COMMANDS[0])
        others = refusals(confined, *COMMANDS[1:], *commands)
        examined = confined.run("doctor")
    finally:
        confined.data.chmod(0o700)
    assert f"{confined.data.resolve()} is read-only for this user" in told
    for line in others:
        assert "cannot be used: Permission denied. Run this command as the user who owns it" in line
    assert (examined.returncode, examined.stderr) == (1, "")
    assert f"{confined.data.resolve()} is read-only for this user" in examined.stdout


@pytest.mark.parametrize(("mode", "content"), [(0, b"RICORDO_PORT=9\n"), (0o600, b"\xff\xfe=1\n")])
def test_an_unreadable_file_of_settings_is_refused_in_one_sentence(
    confined: Shell, mode: int, content: bytes
) -> None:
    path = confined.folder / ".env"
    path.write_bytes(content)
    path.chmod(mode)
    (told,) = refusals(confined, COMMANDS[0], COMMANDS[1], ("user", "list"))
    assert told.startswith(f"ricordo: The file {path} cannot be read:")
    examined = confined.run("doctor")
    assert (examined.returncode, "wrong    settings" in examined.stdout) == (1, True)


def test_a_database_of_another_program_is_refused_and_left_unchanged(shell: Shell) -> None:
    shell.data.mkdir()
    with closing(sqlite3.connect(shell.data / "ricordo.db")) as other:
        other.execute("CREATE TABLE bookmarks (address TEXT)")
        # This table has the name of one of Ricordo's tables.
        other.execute("CREATE TABLE agents (name TEXT)")
        other.commit()
    before = files(shell.data)
    (told,) = refusals(shell, *COMMANDS, ("memory", "audit"))
    assert "ricordo.db is a database of another program: it has the table agents" in told
    examined = shell.run("doctor")
    assert (examined.returncode, "it has the table agents" in examined.stdout) == (1, True)
    assert files(shell.data) == before


@pytest.mark.parametrize("content", [b"", b"half a k", urlsafe_b64encode(b"of another size")])
def test_a_damaged_secret_key_is_refused_and_left_unchanged(shell: Shell, content: bytes) -> None:
    remember(shell, "ada")
    (shell.data / FILE).write_bytes(content)
    (told,) = refusals(shell)
    assert "holds no secret key of Ricordo. Put back the right file." in told
    examined = shell.run("doctor")
    assert (examined.returncode, "wrong    secret key" in examined.stdout) == (1, True)
    assert (shell.data / FILE).read_bytes() == content


def test_a_missing_secret_key_that_api_keys_need_is_refused(
    shell: Shell,
) -> None:
    made = shell.run("key", "create", "--user", "ada", "--role", "admin")
    assert made.returncode == 0, made.stderr
    (shell.data / FILE).unlink()
    (told,) = refusals(shell)
    assert "is missing, and without it the database's 1 API keys cannot be used." in told
    assert not (shell.data / FILE).exists()
    examined = shell.run("doctor")
    assert (examined.returncode, "wrong    secret key" in examined.stdout) == (1, True)
    # The file looks like the output of `openssl rand -base64 32`.
    (shell.data / FILE).write_text("VGhlc2UgYXJlIDMyIGJ5dGVzIG9mIGEgbmV3IGtleSE=\n")
    assert shell.run("key", "list").returncode == 0


def test_a_missing_secret_key_that_may_have_signed_something_gives_a_warning(shell: Shell) -> None:
    assert "Darjeeling" not in shell.run("chat", said="My favourite tea is Darjeeling.\n").stderr
    (shell.data / FILE).unlink()
    made = shell.run("user", "create", "ada")
    assert (made.returncode, "this database had no secret key" in made.stderr) == (
        0,
        True,
    )
    with shell.serving() as server:
        server.process.terminate()
        _, logged = server.process.communicate(timeout=180)
    assert "secret key" not in logged
