"""The commands of `ricordo memory`, with a running server and without one."""

import json
import re

import httpx2

from tests.cli.conftest import Shell, remember
from tests.support.canaries import canary


def test_the_memory_command_shows_memory_without_a_server(shell: Shell) -> None:
    remember(shell, "ada")
    for command, is_text in (("show", True), ("history", False)):
        done = shell.run("memory", command, "ada", "human")
        assert (done.returncode, done.stderr, canary("ada") in done.stdout) == (0, "", is_text), (
            command
        )
    unknown = shell.run("memory", "show", "eve")
    assert (unknown.returncode, 'There is no user "eve"' in unknown.stderr) == (2, True)


def test_the_memory_command_lists_and_decides_proposals_on_a_server(shell: Shell) -> None:
    remember(shell, "ada")
    with shell.serving() as server, httpx2.Client(base_url=server.address, trust_env=False) as http:
        address = ("--server", server.address)
        ids = []
        for word in ("tea", "coffee", "milk"):
            body = {
                "old_string": "",
                "new_string": f"Likes {word}.",
                "reasoning": f"On {word}",
                "agent_id": word,
            }
            ids.append(http.post(f"/users/ada/blocks/{word[:3]}/propose", json=body).json()["id"])
        listed = shell.run("memory", "proposals", "ada", *address).stdout
        assert [
            line.split()[0] for line in listed.splitlines() if line.startswith("proposal-")
        ] == ids[::-1]
        assert "+Likes tea." in listed
        assert "\x1b" not in listed

        shown = shell.run("memory", "show", "ada", *address).stdout.splitlines()
        assert shown[1:] == [f"{label}  not made yet  1 waiting" for label in ("cof", "mil", "tea")]
        assert http.get("/users/ada/blocks").headers["x-waiting"] == "3"

        approved = shell.run("memory", "approve", "ada", ids[0], *address)
        assert re.fullmatch(rf"{ids[0]}: approved, version [0-9a-f]{{12}}\n", approved.stdout)
        own = shell.run(
            "memory", "approve", "ada", ids[1], "--text", "-", *address, said="Likes water.\n"
        )
        assert (own.returncode, own.stderr) == (0, "")
        several = shell.run("memory", "approve", "ada", *ids, "--text", "-", *address, said="No.")
        assert (several.returncode, "--text gives the text for one" in several.stderr) == (2, True)
        again = shell.run("memory", "approve", "ada", ids[0], *address)
        assert (again.returncode, "is approved already" in again.stdout) == (1, True)
        rejected = shell.run("memory", "reject", "ada", "all", "--reason", "No", *address)
        assert rejected.stdout == f"{ids[2]}: rejected\n"
        assert shell.run("memory", "proposals", "ada", *address).stdout == "Nothing waits.\n"
        expired = shell.run("memory", "proposals", "ada", "--status", "expired", *address)
        assert expired.stdout == "No such proposals.\n"

        assert shell.run("memory", "show", "ada", "cof", *address).stdout == "Likes water.\n"
        (version,) = json.loads(
            shell.run("memory", "history", "ada", "tea", "--json", *address).stdout
        )
        assert (version["author"], version["message"]) == ("tea", "On tea")
        assert "tea  Likes tea." in shell.run("memory", "blame", "ada", "tea", *address).stdout
        assert "human" in shell.run("memory", "show", "ada", *address).stdout
