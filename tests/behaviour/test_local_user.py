"""On a server without keys, facts that unowned agents learn are proposed to the local user."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_USER
from tests.seams.http import bearer
from tests.seams.scene import Scene, calls
from tests.seams.server import MODEL, call, serving

TEA = "My favourite tea is jasmine."
CATS = "I have two cats, Mina and Tom."


def tell(scene: Scene, agent: str, *facts: str, label: str = "human", **fields: Any) -> None:
    """Let the agent insert each fact into a block, in a turn for each."""
    for fact in facts:
        scene.says(calls(("memory_insert", {"label": label, "new_string": fact})), "Noted.")
        headers = fields.get("headers")
        message = {"role": "user", "content": fact} | fields.get("message", {})
        answer = scene.post(agent, message, headers=headers)
        assert answer.status_code == 200, answer.text


def new_agent(scene: Scene, **blocks: str) -> str:
    memory = [{"label": label, "value": text} for label, text in blocks.items()]
    return scene.agent("memory_insert", "memory_replace", name=new_id("name"), memory_blocks=memory)


def waiting(scene: Scene, agent: str, user: str = LOCAL_USER) -> list[dict[str, Any]]:
    rows = scene.http.get(f"/users/{user}/diffs").json()
    return [row for row in rows if agent in str(row)]


def body(scene: Scene, label: str) -> str:
    return str(scene.http.get(f"/users/{LOCAL_USER}/blocks/{label}").json()["body"])


def decide(scene: Scene, proposal: dict[str, Any], decision: str) -> None:
    path = f"/users/{LOCAL_USER}/blocks/{proposal['label']}/diffs/{proposal['id']}/{decision}"
    answer = scene.http.post(path)
    assert answer.status_code == 200, answer.text


def own_block(scene: Scene, agent: str, label: str = "human") -> str:
    block = scene.http.get(f"/v1/agents/{agent}/core-memory/blocks/{label}").json()
    return str(block["value"])


def test_a_fact_is_saved_in_the_agents_block_and_proposed_to_the_local_user(scene: Scene) -> None:
    agent = new_agent(scene, human="Her name is Ada.")
    tell(scene, agent, TEA)
    assert own_block(scene, agent) == f"Her name is Ada.\n{TEA}"
    (proposal,) = waiting(scene, agent)
    assert body(scene, proposal["label"]) == "Her name is Ada."
    decide(scene, proposal, "approve")
    assert body(scene, proposal["label"]) == f"Her name is Ada.\n{TEA}"


def test_each_fact_has_its_own_proposal_and_a_rejected_one_stays_out(scene: Scene) -> None:
    agent = new_agent(scene, human="Her name is Ada.")
    tell(scene, agent, TEA, CATS)
    tea, cats = sorted(waiting(scene, agent), key=lambda row: TEA not in str(row))
    decide(scene, tea, "reject")
    decide(scene, cats, "approve")
    assert body(scene, cats["label"]) == f"Her name is Ada.\n{CATS}"
    tell(scene, agent, "I sing.")
    (song,) = waiting(scene, agent)
    decide(scene, song, "approve")
    assert body(scene, cats["label"]) == f"Her name is Ada.\n{CATS}\nI sing."


def edit(scene: Scene, agent: str, old: str, new: str) -> None:
    """Let the agent replace text of its block in a turn."""
    arguments = {"label": "human", "old_string": old, "new_string": new}
    scene.says(calls(("memory_replace", arguments)), "Done.")
    assert scene.post(agent, {"role": "user", "content": f"Not: {old}"}).status_code == 200


def approve_all(scene: Scene, agent: str) -> None:
    for row in waiting(scene, agent):
        decide(scene, row, "approve")
    assert waiting(scene, agent) == []


@pytest.mark.parametrize("seed", range(6))
def test_approving_everything_gives_the_lines_that_the_agent_kept(scene: Scene, seed: int) -> None:
    """Facts are told, replaced, deleted and approved in any order. Each waits in one proposal."""
    random = Random(seed)  # noqa: S311 -- a test that can be repeated
    agent = new_agent(scene, human="Her name is Ada.")
    kept = ["I sing."]
    tell(scene, agent, *kept)
    label = waiting(scene, agent)[0]["label"]
    for number in range(8):
        fact = f"Fact {number} of {seed}."
        if kept and random.random() < 0.5:
            position = random.randrange(len(kept))
            new = random.choice([fact, ""])
            edit(scene, agent, kept[position] if new else f"\n{kept[position]}", new)
            kept[position : position + 1] = [new] if new else []
        else:
            facts = [fact, f"Detail {number} of {seed}."][: random.randint(1, 2)]
            tell(scene, agent, "\n".join(facts))
            kept += facts
        if random.random() < 0.15:
            approve_all(scene, agent)
    shown_lines = "\n".join(row["diff"] for row in waiting(scene, agent)).split("\n")
    added = [line for line in shown_lines if line.startswith(("+Fact", "+Detail"))]
    assert len(added) == len(set(added))
    approve_all(scene, agent)
    first_line, *lines = body(scene, label).split("\n")
    assert first_line == "Her name is Ada."
    assert sorted(lines) == sorted(kept)


def test_facts_from_before_are_proposed_and_not_copied(scene: Scene) -> None:
    user = new_id("grace")
    agent = new_agent(scene, human="")
    path = f"/v1/agents/{agent}/core-memory/blocks/human"
    assert scene.http.patch(path, json={"value": "Old fact."}).status_code == 200
    tell(scene, agent, TEA)
    (proposal,) = waiting(scene, agent)
    assert body(scene, proposal["label"]) == ""
    decide(scene, proposal, "approve")
    assert body(scene, proposal["label"]) == f"Old fact.\n{TEA}"
    assert waiting(scene, agent, user) == []


def test_only_facts_in_human_blocks_from_the_users_own_words_are_proposed(scene: Scene) -> None:
    agent = new_agent(scene, human="", persona="I am brief.", tasks="")
    tell(scene, agent, "I answer in rhymes.", label="persona")
    tell(scene, agent, "Buy tea.", label="tasks")
    tell(scene, agent, "Grace lives in Rome.", message={"name": "Grace"})
    assert waiting(scene, agent) == []


def test_facts_of_a_named_user_are_proposed_only_to_that_user(scene: Scene) -> None:
    user = new_id("grace")
    scene.http.put(f"/users/{user}/blocks/human", json={"body": "Her name is Grace."})
    agent = new_agent(scene)
    tell(scene, agent, "I live in Rome.", headers={"X-Ricordo-User": user})
    assert len(waiting(scene, agent, user)) == 1
    assert waiting(scene, agent) == []


def test_with_keys_an_unowned_agent_proposes_nothing_to_the_local_user(tmp_path: Path) -> None:
    sent = {"model": MODEL, "memory_blocks": [{"label": "human", "value": ""}]}
    with serving(tmp_path) as server:
        headers = bearer(server.key("boss", "admin"))
        with server.http(headers=headers) as http:
            agent = http.post("/v1/agents/", json=sent).json()["id"]
            server.says(call("memory_insert", label="human", new_string=TEA), "Noted.")
            message = {"messages": [{"role": "user", "content": TEA}]}
            assert http.post(f"/v1/agents/{agent}/messages", json=message).status_code == 200
            assert http.get(f"/users/{LOCAL_USER}/diffs").json() == []
