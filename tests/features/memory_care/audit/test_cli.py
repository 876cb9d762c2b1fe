"""`ricordo memory audit` reads memory with and without a running server, and changes nothing."""

import json

import httpx2

from tests.cli.conftest import Shell

BLOCK = {"label": "human", "value": "She likes green tea in the morning, without sugar.\nTODO"}


def test_the_audit_is_the_same_with_and_without_a_running_server(shell: Shell) -> None:
    with shell.serving() as server:
        made = httpx2.post(f"{server.address}/v1/blocks/", json=BLOCK, trust_env=False)
        assert made.status_code == 200
        beside = shell.run("memory", "audit", "--json")
    assert (beside.returncode, beside.stderr) == (0, "")
    said = json.loads(beside.stdout)
    assert (said["blocks"], said["lines"], said["passages"]) == (1, 2, 0)
    assert said["counts"] == {
        "junk": 1,
        "duplicate": 0,
        "near-duplicate": 0,
        "unsupported": 0,
        "contradiction": 0,
        "stale": 0,
        "secret": 0,
        "untrusted": 0,
    }
    (finding,) = said["findings"]
    assert (finding["kind"], finding["place"], finding["line"], finding["text"]) == (
        "junk",
        "human",
        2,
        "TODO",
    )
    (growth,) = said["growth"]
    assert (growth["label"], growth["versions"]) == ("human", 1)
    assert said["tallies"] == []
    at_rest = shell.run("memory", "audit", "--json")
    assert (at_rest.returncode, at_rest.stdout) == (0, beside.stdout)
    shown = shell.run("memory", "audit", "--most", "0")
    assert "1 blocks with 2 lines, and 0 passages" in shown.stdout
    assert "… and 1 more. All of them: ricordo memory audit --json" in shown.stdout
    whole = shell.run("memory", "audit").stdout
    assert "human:2  TODO  (says nothing)" in whole
    assert "human (direct) of block block-" in whole


def test_an_audit_without_a_database_reports_that(shell: Shell) -> None:
    answer = shell.run("memory", "audit")
    assert answer.returncode == 2
    assert "There is no database at" in answer.stderr
    assert not shell.data.exists()


def test_the_audit_shows_counts_by_user_and_fails_above_the_gate(shell: Shell) -> None:
    lines = ["I live in Graz.", "I live in Vienna.", "My name is Ada."]
    with shell.serving() as server:
        body = {"body": "\n".join(lines)}
        path = f"{server.address}/users/ada/blocks/human"
        httpx2.put(path, json=body, trust_env=False).raise_for_status()
    shown = shell.run("memory", "audit", "--gate", "5")
    assert shown.returncode == 1
    assert "     3    0.0%    0.0%    0.0%   33.3%    0.0%  ada (blocks)" in shown.stdout
    (tally,) = json.loads(shell.run("memory", "audit", "--json").stdout)["tallies"]
    assert (tally["name"], tally["source"], tally["items"]) == ("ada", "block", 3)
    assert (tally["contradictions"], tally["stale"]) == (1, 0)
    assert shell.run("memory", "audit", "--gate", "50").returncode == 0
