"""Edits of a user's memory by callers of every role.

They are applied, proposed or refused, by ownership and the block's policy.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, get_args

import httpx2
import pytest
from letta_client import AsyncLetta, Letta

from ricordo import memory
from ricordo.domain.block import Policy
from tests.seams.server import ServerInThread, serving

POLICIES = get_args(Policy)
BEFORE, AFTER = "Tea.\n", "Coffee.\n"
_INSIDE = "users:impersonate"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: ServerInThread) -> Iterator[dict[str, httpx2.Client]]:
    """A client for each caller, with a separate key."""
    made = {
        "ada": server.key("ada"),
        "bob": server.key("bob"),
        "teacher": server.key("teacher", "admin"),
        "developer": server.key("dev", "developer"),
        "reader": server.key(
            "dev",
            "developer",
            scopes=("agents:write", "agents:read", "memory:read", "memory:write"),
        ),
        "root": server.key(
            "root",
            "admin",
            scopes=("agents:write", "memory:read", "memory:write", "memory:override"),
        ),
        "tutor": server.key(None, "service"),
        "pipe": server.key(
            None, "service", scopes=("memory:read", "memory:write", "memory:approve", _INSIDE)
        ),
    }
    clients = {}
    for name, key in made.items():
        clients[name] = server.http()
        clients[name].headers["authorization"] = f"Bearer {key}"
    yield clients
    for client in clients.values():
        client.close()


def _by_path(on: httpx2.Client, _id: str) -> httpx2.Response:
    return on.put("/users/ada/blocks/human", json={"body": AFTER})


def _by_id(on: httpx2.Client, id: str) -> httpx2.Response:
    return on.patch(f"/v1/blocks/{id}", json={"value": AFTER})


WAYS: dict[str, Callable[[httpx2.Client, str], httpx2.Response]] = {
    "by path": _by_path,
    "by id": _by_id,
}
# The outcome of the edit for each of POLICIES: applied, proposed, or refused with this status.
AS_OWNER = ("applied",) * 5
BY_POLICY = ("applied", "applied", "proposed", "proposed", 403)
EXPECTED: dict[tuple[str, str], tuple[Any, ...]] = {
    ("ada", "by path"): AS_OWNER,
    ("ada", "by id"): (*AS_OWNER,),
    ("bob", "by path"): (404,) * 5,
    ("bob", "by id"): (404,) * 5,
    ("teacher", "by path"): BY_POLICY,
    ("teacher", "by id"): BY_POLICY,
    ("developer", "by path"): (403,) * 5,
    ("developer", "by id"): (404,) * 5,
    ("reader", "by path"): BY_POLICY,
    ("reader", "by id"): BY_POLICY,
    ("root", "by path"): AS_OWNER,
    ("root", "by id"): AS_OWNER,
    ("tutor", "by path"): BY_POLICY,
    ("tutor", "by id"): (404,) * 5,
    ("pipe", "by path"): AS_OWNER,
}
AUTHORS = {
    "ada": ("user", "ada"),
    "teacher": ("user", "teacher"),
    "reader": ("user", "dev"),
    "root": ("administrator", "root"),
    "tutor": ("service", "service for ada"),
    "pipe": ("user", "service for ada"),
}


@pytest.mark.parametrize(("caller", "way"), EXPECTED)
def test_an_edit_is_applied_proposed_or_refused_by_ownership_and_policy(
    http: dict[str, httpx2.Client], caller: str, way: str
) -> None:
    ada = http["ada"]
    for policy, expected in zip(POLICIES, EXPECTED[caller, way], strict=True):
        made = ada.put("/users/ada/blocks/human", json={"body": BEFORE, "policy": policy}).json()
        answer = WAYS[way](http[caller], made["id"])
        now = ada.get("/users/ada/blocks/human").json()
        waiting = ada.get("/users/ada/diffs").json()
        case = (policy, answer.text)
        if isinstance(expected, int):
            assert (answer.status_code, now["body"], waiting) == (expected, BEFORE, []), case
            continue
        assert answer.status_code == 200, case
        told = answer.json()
        assert (
            told.get("body", told.get("value"))
            == now["body"]
            == (AFTER if expected == "applied" else BEFORE)
        ), case
        if expected == "applied":
            assert (waiting, told["proposal_id"], answer.headers.get("x-proposal-id")) == (
                [],
                None,
                None,
            ), case
            newest = ada.get("/users/ada/blocks/human/history").json()[0]
            assert (newest["author_kind"], newest["author"]) == AUTHORS[caller], case
        else:
            (one,) = waiting
            assert told["proposal_id"] == answer.headers["x-proposal-id"] == one["id"], case
            assert (one["author_kind"], one["author"]) == AUTHORS[caller], case
            again = WAYS[way](http[caller], made["id"])
            assert len(ada.get("/users/ada/diffs").json()) == 1, again.text
            ada.post(f"/users/ada/blocks/human/diffs/{one['id']}/reject", json={})


def test_only_the_owner_decides_and_changes_settings(
    http: dict[str, httpx2.Client],
) -> None:
    ada, teacher, tutor = http["ada"], http["teacher"], http["tutor"]
    ada.put("/users/ada/blocks/human", json={"body": BEFORE, "policy": "propose"})
    proposed = tutor.put("/users/ada/blocks/human", json={"body": AFTER}).headers["x-proposal-id"]
    address = f"/users/ada/blocks/human/diffs/{proposed}"
    for other in (teacher, tutor):
        assert other.post(f"{address}/approve", json={}).status_code == 403
        assert other.post(f"{address}/reject", json={}).status_code == 403
        assert other.patch("/users/ada/blocks/human", json={"policy": "direct"}).status_code == 403
        assert (
            other.put("/users/ada/blocks/human", json={"body": AFTER, "title": "Mine"}).status_code
            == 403
        )
    edit = {"old_string": "Tea", "new_string": "Milk", "reasoning": "So.", "agent_id": "tutor"}
    assert ada.post("/users/ada/blocks/human/propose", json=edit).status_code == 403
    assert ada.post(f"{address}/approve", json={}).json()["block"]["body"] == AFTER
    newest = ada.get("/users/ada/blocks/human/history").json()[0]
    assert newest["author_kind"] == "service"


def test_another_callers_new_block_is_proposed_and_created_on_approval(
    http: dict[str, httpx2.Client],
) -> None:
    ada, tutor = http["ada"], http["tutor"]
    answer = tutor.put(
        "/users/ada/blocks/goals", json={"body": "Pass.\n", "description": "What she wants."}
    )
    assert (answer.status_code, answer.headers["x-proposal-id"]) == (202, answer.json()["id"])
    assert ada.get("/users/ada/blocks/goals").status_code == 404
    assert (
        tutor.put("/users/ada/blocks/plans", json={"body": "x", "policy": "direct"}).status_code
        == 403
    )
    done = ada.post(f"/users/ada/blocks/goals/diffs/{answer.json()['id']}/approve", json={}).json()
    block = done["block"]
    assert (block["body"], block["description"], block["policy"]) == (
        "Pass.\n",
        "What she wants.",
        "propose",
    )


def test_deleting_renaming_and_restoring_by_others_is_proposed(
    http: dict[str, httpx2.Client],
) -> None:
    ada, teacher = http["ada"], http["teacher"]
    made = ada.put("/users/ada/blocks/diary", json={"body": BEFORE, "policy": "propose"}).json()
    ada.put("/users/ada/blocks/diary", json={"body": AFTER})
    restored = teacher.post(f"/v1/blocks/{made['id']}/restore", json={"sha": made["version"]})
    renamed = teacher.patch("/users/ada/blocks/diary", json={"label": "journal"})
    deleted = teacher.delete("/users/ada/blocks/diary")
    ids = [answer.headers["x-proposal-id"] for answer in (restored, renamed, deleted)]
    assert ada.get("/users/ada/blocks/diary").json()["body"] == AFTER
    ada.post(f"/users/ada/blocks/diary/diffs/{ids[-1]}/approve", json={})
    assert ada.get("/users/ada/blocks/diary").status_code == 404


def test_an_edit_of_a_block_that_was_deleted_meanwhile_is_refused_to_all(
    http: dict[str, httpx2.Client],
) -> None:
    ada = http["ada"]
    version = ada.put("/users/ada/blocks/old", json={"body": BEFORE}).json()["version"]
    ada.delete("/users/ada/blocks/old")
    for caller in ("ada", "teacher", "tutor"):
        edit = {"body": AFTER, "version": version}
        answer = http[caller].put("/users/ada/blocks/old", json=edit)
        assert answer.status_code == 409, caller
        assert "was deleted" in answer.text
    assert all(diff["label"] != "old" for diff in ada.get("/users/ada/diffs").json())
    assert ada.get("/users/ada/blocks/old").status_code == 404


@pytest.mark.parametrize("kind", ["program", "asynchronous program"])
async def test_a_program_gets_the_proposal_of_a_block_that_does_not_exist(
    server: ServerInThread, http: dict[str, httpx2.Client], kind: str
) -> None:
    ada = http["ada"]
    label = f"gone {kind}"
    sha = ada.put(f"/users/ada/blocks/{label}", json={"body": BEFORE}).json()["version"]
    ada.delete(f"/users/ada/blocks/{label}")
    key = http["teacher"].headers["authorization"].removeprefix("Bearer ")
    if kind == "program":
        with Letta(base_url=server.url, api_key=key) as client:
            blocks = memory.UserBlocks(client, "ada")
            written = await asyncio.to_thread(blocks.write, f"new {label}", AFTER)
            restored = await asyncio.to_thread(blocks.restore, label, sha, message="Needed")
    else:
        async with AsyncLetta(base_url=server.url, api_key=key) as async_client:
            async_blocks = memory.AsyncUserBlocks(async_client, "ada")
            written = await async_blocks.write(f"new {label}", AFTER)
            restored = await async_blocks.restore(label, sha, message="Needed")
    assert isinstance(written, memory.BlockProposal)
    assert isinstance(restored, memory.BlockProposal)
    assert (restored.body, restored.reasoning) == (BEFORE, "Needed")
    for proposal in (written, restored):
        ada.post(f"/users/ada/blocks/{proposal.label}/diffs/{proposal.id}/approve", json={})
    assert ada.get(f"/users/ada/blocks/{label}").json()["body"] == BEFORE


def test_the_document_names_the_proposal_of_a_block_that_does_not_exist(
    http: dict[str, httpx2.Client],
) -> None:
    paths = http["ada"].get("/openapi.json").json()["paths"]
    block = "/users/{user_id}/blocks/{label}"
    for answers in (paths[block]["put"], paths[f"{block}/restore"]["post"]):
        schema = answers["responses"]["202"]["content"]["application/json"]["schema"]
        assert schema["$ref"].endswith("/ProposalResponse")


def test_no_caller_writes_or_proposes_a_text_above_the_limit(
    http: dict[str, httpx2.Client],
) -> None:
    ada = http["ada"]
    for policy in ("direct", "propose"):
        settings = {"policy": policy, "limit": 100}
        long = ada.put("/users/ada/blocks/human", json={"body": "x" * 90, **settings}).json()
        ada.put("/users/ada/blocks/human", json={"body": BEFORE, "limit": 50})
        for caller in ("teacher", "tutor", "root"):
            tries = (
                http[caller].put("/users/ada/blocks/human", json={"body": "x" * 51}),
                http[caller].post("/users/ada/blocks/human/restore", json={"sha": long["version"]}),
            )
            assert [answer.status_code for answer in tries] == [422, 422], (policy, caller)
        assert ada.get("/users/ada/blocks/human").json()["body"] == BEFORE
        assert ada.get("/users/ada/diffs").json() == []


@pytest.mark.parametrize("caller", ["tutor", pytest.param("teacher", marks=pytest.mark.soak)])
def test_the_number_of_waiting_proposals_for_one_block_is_limited(
    http: dict[str, httpx2.Client], caller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test lowers the limit to ten; `tests/memory/test_proposals.py` tests the real one."""
    monkeypatch.setattr("ricordo.memory.proposals._AUTHOR_LIMIT", 10)
    ada = http["ada"]
    ada.put("/users/ada/blocks/human", json={"body": BEFORE, "policy": "propose"})
    facts = [{"body": f"{BEFORE}Fact {number}.\n"} for number in range(11)]
    codes = [http[caller].put("/users/ada/blocks/human", json=fact).status_code for fact in facts]
    assert codes == [200] * 10 + [409]


def test_what_would_need_two_proposals_or_be_lost_in_one_is_refused(
    http: dict[str, httpx2.Client],
) -> None:
    ada, teacher = http["ada"], http["teacher"]
    hidden = {"body": "Tea\u200b.\n", "policy": "propose"}
    ada.put("/users/ada/blocks/marks", json=hidden).raise_for_status()
    both = {"removes_hidden_text": True, "label": "signs"}
    refused = teacher.patch("/users/ada/blocks/marks", json=both)
    assert (refused.status_code, "two requests" in refused.text) == (400, True)
    assert ada.get("/users/ada/blocks/marks/diffs").json() == []
    for field, setting in both.items():
        answer = teacher.patch("/users/ada/blocks/marks", json={field: setting})
        assert "x-proposal-id" in answer.headers
    assert len(ada.get("/users/ada/blocks/marks/diffs").json()) == 2
    done = ada.patch("/users/ada/blocks/marks", json=both).json()
    assert (done["label"], done["body"]) == ("signs", "Tea.\n")
    new = {"body": "x", "metadata": {"a": 1}}
    lost = http["tutor"].put("/users/ada/blocks/notes", json=new)
    assert (lost.status_code, "metadata" in lost.text) == (400, True)
    assert ada.get("/users/ada/blocks/notes").status_code == 404
    assert ada.put("/users/ada/blocks/notes", json=new).json()["metadata"] == {"a": 1}
