"""A member that waits for approval pauses the talk; any answer continues it."""

from typing import Any

import pytest

from ricordo.domain.model import ModelRequest
from ricordo.llm.scripted import Line, call
from tests.api.conftest import Api
from tests.features.groups.talking import (
    group_messages,
    names_of,
    new_agent,
    new_group,
    panel,
    say,
    speaker_of,
)
from tests.seams.waiting import wait_for

TOOL = {
    "name": "read_sensor",
    "description": "Read a sensor.",
    "parameters": {"type": "object", "properties": {}},
}


def gated_once(request: ModelRequest) -> Line:
    """Let Ben call the client's tool, and say its result."""
    name = speaker_of(request)
    last = request.messages[-1]
    if (
        name == "Ben"
        and last.role != "tool"
        and not any(one.tool_calls for one in request.messages)
    ):
        return call("read_sensor")
    return (
        f"{name} read {last.tool_returns[0].content[:200]}"
        if last.role == "tool"
        else f"I am {name}."
    )


def paused(api: Api, **more: Any) -> tuple[str, dict[str, str], str]:
    """Begin a talk in which Ben waits; return the group, its agents, and the call."""
    api.server.answers_with(gated_once)
    group, agents = panel(api, "Ann", "Ben", "Cleo")
    answer = say(api, group, client_tools=[TOOL], **more)
    assert answer["stop_reason"]["stop_reason"] == "requires_approval"
    assert answer["messages"][-1]["message_type"] == "approval_request_message"
    assert answer["messages"][-1]["name"] == "Ben"
    return group, agents, answer["messages"][-1]["tool_call"]["tool_call_id"]


def result(call_id: str, **more: Any) -> dict[str, Any]:
    item = {
        "type": "tool",
        "tool_call_id": call_id,
        "tool_return": "21 degrees",
        "status": "success",
    }
    return {"messages": [{"type": "approval", "approvals": [item], **more}], "client_tools": [TOOL]}


def test_a_tool_result_sent_to_the_group_continues_the_turn_and_the_talk(api: Api) -> None:
    group, agents, call_id = paused(api)
    assert len(group_messages(api, agents["Cleo"], group)) == 0
    refused = api.http.post(f"/v1/groups/{group}/messages", json={"input": "Hurry."})
    assert refused.status_code == 409
    response = api.http.post(f"/v1/groups/{group}/messages", json=result(call_id))
    assert response.status_code == 200, response.text
    answer = response.json()
    assert names_of(answer) == ["Ben", "Cleo"]
    assert "21 degrees" in next(
        one["content"] for one in answer["messages"] if one["message_type"] == "assistant_message"
    )
    assert answer["stop_reason"]["stop_reason"] == "end_turn"
    again = api.http.post(f"/v1/groups/{group}/messages", json=result(call_id)).json()
    assert [one["id"] for one in again["messages"]] == [one["id"] for one in answer["messages"]]
    texts = [
        one["content"] for one in group_messages(api, agents["Ann"], group) if "content" in one
    ]
    assert texts[:2] == ["Hello all.", "I am Ann."]
    assert texts[2].startswith("Ben read ")
    assert texts[3] == "I am Cleo."
    listed = api.http.get(f"/v1/groups/{group}/messages", params={"order": "asc"}).json()
    assert [
        one["content"]
        for one in listed
        if one["message_type"] in ("user_message", "assistant_message")
    ] == texts


def test_a_tool_result_sent_to_the_member_continues_the_talk(api: Api) -> None:
    group, agents, call_id = paused(api)
    response = api.http.post(f"/v1/agents/{agents['Ben']}/messages", json=result(call_id))
    assert response.status_code == 200, response.text
    wait_for(
        lambda: any(
            one.get("content") == "I am Cleo." for one in group_messages(api, agents["Ann"], group)
        )
    )
    wait_for(lambda: not api.server.runtime.live)
    texts = [
        one["content"] for one in group_messages(api, agents["Cleo"], group) if "content" in one
    ]
    assert texts[:2] == ["Hello all.", "I am Ann."]
    assert "21 degrees" in texts[2]
    assert texts[3] == "I am Cleo."


def test_a_message_sent_with_a_tool_result_reaches_all_members(api: Api) -> None:
    group, agents, call_id = paused(api)
    body = result(call_id)
    body["messages"].append({"role": "user", "content": "And now?"})
    assert names_of(api.http.post(f"/v1/groups/{group}/messages", json=body).json())[-1] == "Cleo"
    for name in agents:
        texts = [
            one["content"]
            for one in group_messages(api, agents[name], group)
            if one["message_type"] == "user_message"
        ]
        assert texts == ["Hello all.", "And now?"]


def test_a_tool_result_without_a_pending_call_is_refused(api: Api) -> None:
    group, _ = panel(api, "Ann")
    response = api.http.post(f"/v1/groups/{group}/messages", json=result("call-1"))
    assert response.status_code == 400
    assert "No tool call is currently awaiting approval" in response.json()["detail"]


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_cancelled_or_reset_talk_does_not_block_the_next_one(api: Api, is_reset: bool) -> None:
    group, agents, _ = paused(api)
    if is_reset:
        api.http.patch(f"/v1/groups/{group}/reset-messages")
    else:
        api.http.post(f"/v1/agents/{agents['Ben']}/messages/cancel")
    api.server.answers_with(lambda request: f"I am {speaker_of(request)}.")
    assert names_of(say(api, group)) == ["Ann", "Ben", "Cleo"]
    if not is_reset:
        assert [one["content"] for one in group_messages(api, agents["Cleo"], group)][:2] == [
            "Hello all.",
            "I am Ann.",
        ]


def test_a_paused_manager_chooses_the_speaker_after_its_tool_result(api: Api) -> None:
    def answer(request: ModelRequest) -> Line:
        if name := speaker_of(request):
            return f"I am {name}."
        last = request.messages[-1]
        is_first = not any(one.tool_calls for one in request.messages)
        return call("read_sensor") if is_first else "Ben" if last.role == "tool" else "Ann"

    api.server.answers_with(answer)
    members = [new_agent(api, name) for name in ("Ann", "Ben")]
    group = new_group(api, "dynamic", members, manager_agent_id=new_agent(api, "Maria"))
    waiting = say(api, group, client_tools=[TOOL])
    call_id = waiting["messages"][-1]["tool_call"]["tool_call_id"]
    answer_json = api.http.post(f"/v1/groups/{group}/messages", json=result(call_id)).json()
    assert names_of(answer_json) == ["Maria", "Ben", "Maria", "Ann"]


def test_a_member_with_a_pending_call_blocks_the_groups_talk(api: Api) -> None:
    group, agents = panel(api, "Ann")
    api.server.says(call("read_sensor"))
    body = {"messages": [{"role": "user", "content": "Read it."}], "client_tools": [TOOL]}
    assert api.http.post(f"/v1/agents/{agents['Ann']}/messages", json=body).status_code == 200
    response = api.http.post(f"/v1/groups/{group}/messages", json={"input": "Hello."})
    assert response.status_code == 409
    assert "waiting for approval" in response.json()["detail"]
