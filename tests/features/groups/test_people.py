"""In a group with several people, each person has separate conversations."""

from pathlib import Path
from typing import Any

from ricordo.domain.model import ModelRequest
from ricordo.llm.scripted import Line, call
from tests.api.conftest import Api
from tests.features.groups.talking import aloud, new_agent, new_group, panel, speaker_of
from tests.seams.server import serving
from tests.seams.waiting import wait_for


def test_messages_of_one_user_in_a_group_reach_no_other_user(api: Api) -> None:
    prompts: dict[str, list[str]] = {"ada": [], "bob": []}
    user = "ada"

    def answer(request: ModelRequest) -> Line:
        prompts[user].append("\n".join(one.text for one in request.messages))
        return aloud(f"{speaker_of(request)} for {user}")

    api.server.answers_with(answer)
    group, agents = panel(api, "Ann", "Ben")
    service = api.server.key(role="service")
    for user, secret in (("ada", "CANARY-ADA"), ("bob", "CANARY-BOB")):
        headers = {"Authorization": f"Bearer {service}", "X-Ricordo-User": user}
        body = {"messages": [{"role": "user", "content": secret, "otid": "same"}]}
        response = api.http.post(f"/v1/groups/{group}/messages", json=body, headers=headers)
        assert response.status_code == 200, response.text
        shown = api.http.get(f"/v1/groups/{group}/messages", headers=headers).text
        own = api.http.get(f"/v1/agents/{agents['Ann']}/messages", headers=headers).text
        for text in (shown, own, *prompts[user]):
            assert secret in text
            assert ("CANARY-BOB" if user == "ada" else "CANARY-ADA") not in text
    # A reset by one person keeps the other's messages.
    api.http.patch(f"/v1/groups/{group}/reset-messages", headers=headers)
    assert api.http.get(f"/v1/groups/{group}/messages", headers=headers).json() == []
    headers = {"Authorization": f"Bearer {service}", "X-Ricordo-User": "ada"}
    assert len(api.http.get(f"/v1/groups/{group}/messages", headers=headers).json()) == 5


def test_what_a_member_learns_about_a_user_is_hidden_from_others(
    tmp_path: Path,
) -> None:
    learned: dict[str, list[str]] = {"ada": [], "bob": []}
    user = "ada"

    def answer(request: ModelRequest) -> Line:
        learned[user].append("\n".join(one.text for one in request.messages))
        if speaker_of(request) == "Ann" and request.messages[-1].role != "tool":
            return call(
                "memory_insert", label="human", new_string=f"CANARY-{user} plays the cello."
            )
        return aloud(f"{speaker_of(request)} heard it.")

    with serving(tmp_path) as server, server.client() as client, server.http() as http:
        server.answers_with(answer)
        api = Api(server, client, http)
        human = {"label": "human", "value": "", "policy": "direct"}
        tools = ["memory_insert"]
        agents = {
            name: new_agent(api, name, memory_blocks=[human], tools=tools)
            for name in ("Ann", "Ben")
        }
        group = new_group(api, "round_robin", list(agents.values()))
        key = server.key(role="service")
        for _ in range(2):
            for user in ("ada", "bob"):
                headers = {"Authorization": f"Bearer {key}", "X-Ricordo-User": user}
                response = http.post(
                    f"/v1/groups/{group}/messages", json={"input": "Remember."}, headers=headers
                )
                assert response.status_code == 200, response.text
        for user, other in (("ada", "bob"), ("bob", "ada")):
            headers = {"Authorization": f"Bearer {key}", "X-Ricordo-User": user}
            blocks = http.get(
                f"/v1/agents/{agents['Ann']}/core-memory/blocks", headers=headers
            ).text
            assert any(f"CANARY-{user}" in prompt for prompt in learned[user])
            assert f"CANARY-{other}" not in "\n".join([blocks, *learned[user]])


def test_a_talk_resumed_in_the_background_belongs_to_its_user(tmp_path: Path) -> None:
    tool = {
        "name": "read_sensor",
        "description": "Read.",
        "parameters": {"type": "object", "properties": {}},
    }

    def answer(request: ModelRequest) -> Line:
        asked = speaker_of(request) == "Ann" and request.messages[-1].role != "tool"
        return call("read_sensor") if asked else "I am here."

    with serving(tmp_path) as server, server.client() as client, server.http() as http:
        server.answers_with(answer)
        api = Api(server, client, http)
        group, agents = panel(api, "Ann", "Ben")
        headers = {"Authorization": f"Bearer {server.key(role='service')}", "X-Ricordo-User": "ada"}
        body = {"messages": [{"role": "user", "content": "Hello."}], "client_tools": [tool]}
        paused = http.post(f"/v1/groups/{group}/messages", json=body, headers=headers).json()
        call_id = paused["messages"][-1]["tool_call"]["tool_call_id"]
        item = {"type": "tool", "tool_call_id": call_id, "tool_return": "21", "status": "success"}
        body = {"messages": [{"type": "approval", "approvals": [item]}], "client_tools": [tool]}
        http.post(f"/v1/agents/{agents['Ann']}/messages", json=body, headers=headers)
        said = wait_for(
            lambda: [one for one in listed(api, group, headers) if one["name"] == "Ben"]
        )
        assert said[0]["content"] == "I am here."
        server.key("bob")  # this creates the user, since reading for an unknown user is refused
        other = headers | {"X-Ricordo-User": "bob"}
        assert listed(api, group, other) == []


def listed(api: Api, group: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = api.http.get(
        f"/v1/groups/{group}/messages", headers=headers
    ).json()
    return messages
