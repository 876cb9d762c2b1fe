"""`ricordo key`: with and without a running server, on servers with keys and without."""

import re
import subprocess

import httpx2
import pytest

from tests.cli.conftest import Shell, quick_command, shell
from tests.seams.http import bearer

__all__ = ["quick_command", "shell"]
KEY = re.compile(r"ricordo_[\w-]{43}")


def run(
    shell: Shell, *arguments: str, code: int = 0, **variables: str
) -> "subprocess.CompletedProcess[str]":
    done = shell.run(*arguments, **variables)
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done


def status(address: str, key: str | None = None) -> int:
    headers = bearer(key) if key else {}
    return httpx2.get(f"{address}/v1/agents/", headers=headers, trust_env=False).status_code


@pytest.mark.parametrize("has_server", [True, False])
def test_the_key_command_creates_lists_and_revokes_keys(shell: Shell, has_server: bool) -> None:
    def go(*server: str) -> None:
        made = run(
            shell, "key", "create", "--user", "ada", "--role", "admin", "--expires", "30d", *server
        )
        # A script may use the whole standard output, or its last line.
        assert KEY.fullmatch(made.stdout.rstrip("\n"))
        assert (
            "This is the first key: from now on every request to this server needs one."
            in made.stderr
        )
        assert "can read the conversations that belong to no user" in made.stderr
        limits = ("--limits", "6000", "100000")
        service = run(
            shell,
            "key",
            "create",
            "--role",
            "service",
            "--name",
            "pipe",
            "--scopes",
            "agents:read",
            *limits,
            *server,
        )
        assert "first key" not in service.stderr
        listed = run(shell, "key", "list", *server)
        assert made.stdout[:12] in listed.stdout
        assert made.stdout.strip() not in listed.stdout
        assert "6,000 requests a minute  100,000 bytes a request" in listed.stdout
        (id,) = re.findall(r"(key-\S+) .*pipe", listed.stdout)
        assert "is revoked" in run(shell, "key", "revoke", id, *server).stdout
        assert "revoked 2" in run(shell, "key", "list", *server).stdout

    if not has_server:
        go()
        return
    with shell.serving() as server:
        assert status(server.address) == 200
        go("--server", server.address)
        assert status(server.address) == 401
        made = run(shell, "key", "create", "--user", "ada", "--server", server.address)
        assert status(server.address, made.stdout.strip()) == 200


def test_the_key_command_reports_invalid_arguments(shell: Shell) -> None:
    assert (
        "no date such as"
        in run(shell, "key", "create", "--user", "ada", "--expires", "soon", code=2).stderr
    )
    assert (
        "There is no scope"
        in run(shell, "key", "create", "--user", "ada", "--scopes", "x", code=2).stderr
    )
    assert "no organization" in run(shell, "key", "list", "--organization", "acme", code=2).stderr
    assert "not found" in run(shell, "key", "revoke", "key-1", code=2).stderr


def test_a_publicly_reachable_server_needs_a_key_to_start(shell: Shell) -> None:
    everywhere = {"RICORDO_HOST": "0.0.0.0"}  # noqa: S104
    refused = run(shell, "serve", "--port", "0", code=2, **everywhere)
    assert "RICORDO_API_KEY" in refused.stderr
    assert "ricordo key create" in refused.stderr
    assert "does not start" in shell.run("doctor", **everywhere).stdout
    key = run(
        shell, "key", "create", "--user", "ada", "--role", "admin", **everywhere
    ).stdout.strip()
    assert "every request needs one: stored keys" in shell.run("doctor", **everywhere).stdout
    with shell.serving(**everywhere) as server:
        assert (status(server.address), status(server.address, key)) == (401, 200)
        assert "every request needs one: stored keys" in shell.run("doctor", **everywhere).stdout


def test_the_user_and_organization_commands_work_on_a_running_server(shell: Shell) -> None:
    with shell.serving() as server:
        to = ("--server", server.address)
        assert (
            "ada" in run(shell, "user", "create", "ada", "--email", "ada@example.org", *to).stdout
        )
        assert "lovelace" in run(shell, "user", "rename", "ada", "lovelace", *to).stdout
        assert "disabled 2" in run(shell, "user", "disable", "lovelace", *to).stdout
        assert "disabled" not in run(shell, "user", "enable", "lovelace", *to).stdout
        assert "lovelace  ada@example.org" in run(shell, "user", "list", *to).stdout
        assert "acme" in run(shell, "organization", "create", "acme", *to).stdout
        assert "acme" in run(shell, "organization", "list", *to).stdout
        of_acme = ("--organization", "acme", *to)
        run(shell, "key", "create", "--user", "boss", "--role", "admin", *of_acme)
        assert "boss" in run(shell, "key", "list", *of_acme).stdout
        assert "There are no keys" in run(shell, "key", "list", *to).stderr
        assert "done" in run(shell, "user", "delete", "lovelace", "--yes", *to).stdout
        assert "lovelace" not in run(shell, "user", "list", *to).stdout


def test_people_can_be_invited_by_file_or_by_name(shell: Shell) -> None:
    file = shell.folder / "class.csv"
    file.write_bytes("Name;E-Mail\r\nZoë;zoe@example.org\r\nBen;\r\n".encode("utf-16"))
    refused = run(shell, "user", "invite", "Ada", code=2)
    assert "ricordo key create" in refused.stderr
    run(shell, "key", "create", "--user", "boss", "--role", "admin")
    lines = run(shell, "user", "invite", "--csv", str(file)).stdout.splitlines()
    assert [line.split("\t")[1:] for line in lines] == [["Zoë", "zoe@example.org"], ["Ben"]]
    links = [
        re.fullmatch(r"http://[\w.:]+/invitation\?token=[\w-]{43}", line.split("\t")[0])
        for line in lines
    ]
    assert all(links)
    run(shell, "user", "invite", "Ada", "--csv", str(file), code=2)
