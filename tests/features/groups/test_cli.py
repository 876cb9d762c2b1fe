"""`ricordo group`: listing, showing and talking, while a server runs."""

from tests.api.conftest import Api
from tests.cli.conftest import Shell
from tests.features.groups.test_pages import make_agent
from tests.seams.http import ok
from tests.seams.server import ServerInThread


def run(shell: Shell, server: ServerInThread, *arguments: str, code: int = 0) -> str:
    done = shell.run("group", *arguments, "--server", server.url)
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return f"{done.stdout}{done.stderr}"


def test_the_group_command_lists_shows_and_messages_groups(shell: Shell, api: Api) -> None:
    server = api.server
    members = [make_agent(api.http, name) for name in ("Uma", "Vera\x1b[2J")]
    body = {
        "agent_ids": members,
        "description": "Two tutors.",
        "manager_config": {"manager_type": "round_robin"},
    }
    group = ok(api.http.post("/v1/groups/", json=body))["id"]
    listed = run(shell, server, "list")
    assert all(words in listed for words in (group, "round_robin", "Two tutors.", "Uma, Vera"))
    server.says("Tea.", "Coffee.")
    said = run(shell, server, "say", "Two tutors.", "What shall we drink?")
    assert "Uma: Tea." in said
    assert said.index("Uma: Tea.") < said.index("Coffee.")
    assert "\x1b" not in said
    shown = run(shell, server, "show", group)
    assert (
        shown.index("user: What shall we drink?")
        < shown.index("Uma: Tea.")
        < shown.index("Coffee.")
    )
    assert all(words in shown for words in (*members, "Two tutors."))


def test_missing_and_ambiguous_groups_are_reported(shell: Shell, api: Api) -> None:
    members = [make_agent(api.http, name) for name in ("Wim", "Xaver")]
    for _ in range(2):
        ok(api.http.post("/v1/groups/", json={"agent_ids": members, "description": "Twins"}))
    assert "2 groups have the description" in run(shell, api.server, "show", "Twins", code=2)
    assert "There is no group" in run(shell, api.server, "say", "Triplets", "Hello.", code=2)
    missing = "group-00000000-0000-4000-8000-000000000000"
    assert "not found" in run(shell, api.server, "show", missing, code=2)
