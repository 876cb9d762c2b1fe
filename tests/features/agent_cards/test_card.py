"""Agent cards: what an agent is and can do, without any text of memory."""

from typing import Any

import httpx2

from tests.seams.http import ok
from tests.seams.server import MODEL


def agent_of(http: httpx2.Client, **fields: Any) -> str:
    agent = {"model": MODEL, "name": "Tutor", "description": "Teaches algebra.", **fields}
    agent_id: str = ok(http.post("/v1/agents/", json=agent))["id"]
    return agent_id


def test_the_card_lists_model_tools_and_labels_but_no_memory_text(http: httpx2.Client) -> None:
    ok(
        http.put(
            "/users/ada/blocks/human", json={"body": "She fears exams.", "description": "Fears"}
        )
    )
    agent_id = agent_of(
        http,
        user_id="ada",
        tags=["maths"],
        memory_blocks=[
            {"label": "persona", "value": "I am strict.", "description": "Who you are"},
            {"label": "secret", "value": "The answers.", "hidden": True},
        ],
    )
    answer = http.get(f"/v1/agents/{agent_id}/card", params={"user_id": "ada"})
    card = ok(answer)
    assert (card["name"], card["description"], card["model"]) == (
        "Tutor",
        "Teaches algebra.",
        MODEL,
    )
    assert card["tags"] == ["maths"]
    assert card["url"] == f"/v1/agents/{agent_id}/messages"
    assert {"memory_insert", "conversation_search"} <= {tool["name"] for tool in card["tools"]}
    assert all(set(tool) == {"name", "description"} for tool in card["tools"])
    assert {"label": "persona", "belongs_to": "agent", "description": "Who you are"} in card[
        "blocks"
    ]
    assert {"label": "human", "belongs_to": "user", "description": None} in card["blocks"]
    assert [block for block in card["blocks"] if block["label"] == "secret"] == []
    for text in ("She fears exams.", "Fears", "I am strict.", "The answers."):
        assert text not in answer.text


def test_the_card_lists_readers_but_shows_users_only_themselves(
    http: httpx2.Client,
) -> None:
    people = {
        name: ok(http.post("/v1/identities/", json=person(name))) for name in ("bo", "cy", "di")
    }
    open_agent = agent_of(http)
    restricted = agent_of(http, identity_ids=[people["bo"]["id"], people["cy"]["id"]])
    card = ok(http.get(f"/v1/agents/{open_agent}/card"))
    assert (card["is_restricted"], card["readers"]) == (False, [])
    card = ok(http.get(f"/v1/agents/{restricted}/card"))
    assert card["is_restricted"]
    assert len(card["readers"]) == 2
    of_bo = ok(http.get(f"/v1/agents/{restricted}/card", params={"user_id": "bo"}))
    assert of_bo["is_restricted"]
    assert len(of_bo["readers"]) == 1
    for_di = ok(http.get(f"/v1/agents/{restricted}/card", headers={"x-ricordo-user": "di"}))
    assert (for_di["is_restricted"], for_di["readers"]) == (True, [])


def person(name: str) -> dict[str, str]:
    return {"identifier_key": name, "name": name, "identity_type": "user"}
