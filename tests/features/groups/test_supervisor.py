"""Supervisors ask all members at once by a tool, and answer the user themselves."""

import ast
from typing import Any

import orjson

from ricordo.domain.message import ReasoningPart, TextPart
from ricordo.domain.model import ModelRequest
from ricordo.errors import ModelError
from ricordo.llm.scripted import Line, call
from tests.api.conftest import Api
from tests.features.groups.talking import aloud, group_messages, new_agent, new_group, say

ASK = "send_message_to_all_agents_in_group"


def supervised(api: Api, *names: str, **agents: Any) -> tuple[str, str, list[str]]:
    """Make a supervised group; return its id, the supervisor's and the members'."""
    manager = new_agent(api, "Sofia", **agents)
    members = [new_agent(api, name, system=f"I am {name}.") for name in names]
    return new_group(api, "supervisor", members, manager_agent_id=manager), manager, members


def answers(request: ModelRequest) -> Line:
    system = request.messages[0].text
    if "You lead a group" in system:
        if request.messages[-1].role == "tool":
            return aloud("All agree.")
        assert [tool.name for tool in request.tools] == [ASK]
        return (ReasoningPart("I ask."), call(ASK, message="What do you think?"))
    name = system.split(".")[0].removeprefix("I am ")
    if name == "Ben":
        return ModelError("llm_error", "Ben cannot.")
    assert "What do you think?" in request.messages[-1].text
    return (TextPart(f"{name} agrees."),)


def test_a_supervisor_answer_contains_each_members_text_in_order(api: Api) -> None:
    api.server.answers_with(answers)
    group, manager, members = supervised(api, "Ann", "Ben", "Cleo", include_base_tools=False)
    answer = say(api, group)
    kinds = [
        "reasoning_message",
        "tool_call_message",
        "tool_return_message",
        "reasoning_message",
        "assistant_message",
    ]
    assert [one["message_type"] for one in answer["messages"]] == kinds
    assert {
        one["name"] for one in answer["messages"] if one["message_type"] != "tool_return_message"
    } == {"Sofia"}
    assert answer["messages"][1]["tool_call"]["name"] == ASK
    assert answer["usage"]["step_count"] == 2
    texts = [orjson.loads(text) for text in ast.literal_eval(answer["messages"][2]["tool_return"])]
    assert [one["agent_id"] for one in texts] == members
    assert texts[0]["response"] == ["Ann agrees."]
    assert texts[1]["response"][0].startswith("<error: ")
    (asked, _) = group_messages(api, members[0], group)
    assert (asked["message_type"], asked["name"], asked["sender_id"]) == (
        "system_message",
        "Sofia",
        manager,
    )
    # The manager has the tool only in this turn.
    assert ASK not in [tool.name for tool in api.client.agents.tools.list(manager)]


def test_the_supervisor_tool_is_not_offered_outside_a_group(api: Api) -> None:
    api.server.answers_with(answers)
    _, manager, _ = supervised(api, "Ann", include_base_tools=False)
    api.server.answers_with(lambda request: aloud(str([tool.name for tool in request.tools])))
    answer = api.client.agents.messages.create(manager, input="What can you do?")
    assert answer.messages[-1].content == "[]"  # type: ignore[union-attr]
