"""Agents that act only by tools and continue on a heartbeat request (v2)."""

import json
from typing import Any

import pytest

from tests.seams.scene import Scene, Wire, calls, kinds, roles, said, speech, stopped, tools_of

TYPES = pytest.mark.parametrize("agent_type", ["memgpt_v2_agent", "memgpt_agent"])
MORE = {"request_heartbeat": True}


# A model that must call a tool and does not is reminded once inside the provider's adapter, before
# the agent loop sees the reply.
IGNORED = 2


def user_texts(body: Wire) -> list[Any]:
    return [
        json.loads(message["content"]) for message in body["messages"] if message["role"] == "user"
    ]


@TYPES
def test_a_chain_of_two_tools_ends_with_the_agents_message(scene: Scene, agent_type: str) -> None:
    agent = scene.agent("send_message", "roll", "toss", agent_type=agent_type)
    scene.says(
        calls(("roll", MORE | {"sides": 8})), calls(("toss", MORE)), speech("Eight, and heads.")
    )

    answer = scene.send(agent, "Play!")

    assert kinds(answer) == ["tool_call", "tool_return", "tool_call", "tool_return", "assistant"]
    assert said(answer) == ["Eight, and heads."]
    assert stopped(answer) == "end_turn"
    assert answer["usage"]["step_count"] == 3
    assert scene.games.played == [("roll", 8), ("toss", None)]
    assert all(body["tool_choice"] == "required" for body in scene.asked)
    heartbeats = [
        text["reason"] for text in user_texts(scene.asked[-1]) if text["type"] == "heartbeat"
    ]
    assert len(heartbeats) == 2
    assert all(
        reason.endswith("request_heartbeat=true, returning control") for reason in heartbeats
    )


@TYPES
def test_a_heartbeat_agent_is_offered_its_tools_and_reads_messages_as_events(
    scene: Scene, agent_type: str
) -> None:
    agent = scene.agent(agent_type=agent_type, include_base_tools=True, system=None)
    scene.says(speech("Hello."))

    scene.send(agent, "Good morning.")

    (body,) = scene.asked
    offered = {
        tool["function"]["name"]: tool["function"]["parameters"]["properties"]
        for tool in body["tools"]
    }
    assert {
        "send_message",
        "conversation_search",
        "archival_memory_insert",
        "archival_memory_search",
    } < set(offered)
    assert ("core_memory_append" in offered) == (agent_type == "memgpt_agent")
    assert ("memory_insert" in offered) == (agent_type == "memgpt_v2_agent")
    # A tool that ends the turn requests no further step.
    assert [
        name for name, arguments in offered.items() if "request_heartbeat" not in arguments
    ] == ["send_message"]
    login, spoken = user_texts(body)
    assert (login["type"], spoken["type"], spoken["message"]) == (
        "login",
        "user_message",
        "Good morning.",
    )
    assert roles(body) == "system assistant tool user user"
    assert scene.history(agent)[-2]["content"] == "Good morning."  # stored unchanged


def test_an_exit_rule_is_the_stop_reason_only_if_a_heartbeat_was_requested(scene: Scene) -> None:
    """A turn that would have ended anyway has `end_turn`, as on the retired server.

    The second call of a reply does not run if the first one ends the turn.
    """
    rules = [{"type": "exit_loop", "tool_name": "roll"}]
    agent = scene.agent("send_message", "roll", agent_type="memgpt_v2_agent", tool_rules=rules)
    for more, stop in ((True, "tool_rule"), (False, "end_turn")):
        scene.says(calls(("roll", {"request_heartbeat": more})))
        assert stopped(scene.send(agent, "Roll.")) == stop
    scene.says(calls(("send_message", {"words": "Six."})), speech("Six."))
    answer = scene.send(agent, "Say it.")
    assert kinds(answer) == ["tool_call", "tool_return", "assistant"]
    listed = scene.client.agents.messages.list(agent, use_assistant_message=False).items
    assert [one.message_type for one in listed][-2:] == ["tool_call_message", "tool_return_message"]
    assert scene.client.agents.messages.list(agent).items[-1].message_type == "assistant_message"


def test_without_a_heartbeat_a_call_ends_the_turn(scene: Scene) -> None:
    agent = scene.agent("send_message", "roll", agent_type="memgpt_v2_agent")
    scene.says(calls(("roll", {"request_heartbeat": False})))

    answer = scene.send(agent, "Roll.")

    assert (kinds(answer), stopped(answer)) == (["tool_call", "tool_return"], "end_turn")


def test_plain_text_gets_a_reminder_and_the_message_still_comes(scene: Scene) -> None:
    agent = scene.agent("send_message", agent_type="memgpt_v2_agent")
    scene.says(*["Hello there."] * IGNORED, speech("Hello there!"))

    answer = scene.send(agent, "Hello.")

    assert "Your reply called no tool" in user_texts(scene.asked[-1])[-1]["reason"]
    assert stopped(answer) == "end_turn"
    assert said(answer)[-1] == "Hello there!"


def test_the_reminder_is_repeated_after_a_call(scene: Scene) -> None:
    agent = scene.agent("send_message", "roll", agent_type="memgpt_v2_agent")
    scene.says(*["Hm."] * IGNORED, calls(("roll", MORE)), *["Six."] * IGNORED, speech("Six!"))

    answer = scene.send(agent, "Roll.")

    assert stopped(answer) == "end_turn"
    assert said(answer)[-1] == "Six!"


def test_a_workflow_agent_starts_every_turn_with_an_empty_window_and_keeps_its_history(
    scene: Scene,
) -> None:
    agent = scene.agent("send_message", agent_type="workflow_agent")
    scene.says(speech("One."), speech("Two."))

    scene.send(agent, "First.")
    assert len(scene.state(agent)["message_ids"]) == 1
    scene.send(agent, "Second.")

    assert roles(scene.asked[-1]) == "system user"
    spoken = [m["content"] for m in scene.history(agent) if m["message_type"] == "user_message"]
    assert [text for text in spoken if "login" not in text] == ["First.", "Second."]


def test_given_first_messages_replace_the_default_ones(scene: Scene) -> None:
    sequence = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Welcome back."},
    ]
    agent = scene.agent(
        "send_message", agent_type="memgpt_v2_agent", initial_message_sequence=sequence
    )
    scene.says(speech("Fine."))

    scene.send(agent, "How are you?")

    assert roles(scene.asked[0]) == "system user assistant tool user"
    assert scene.asked[0]["messages"][2]["tool_calls"][0]["function"]["name"] == "send_message"


def test_thoughts_in_arguments_become_reasoning_and_are_sent_back_in_place(scene: Scene) -> None:
    settings = {"provider_type": "openai", "put_inner_thoughts_in_kwargs": True}
    agent = scene.agent(
        "send_message", "roll", agent_type="memgpt_v2_agent", model_settings=settings
    )
    scene.says(
        calls(("roll", {"thinking": "A die, then.", "sides": 4} | MORE)),
        speech("Four.", thinking="Done."),
    )

    answer = scene.send(agent, "Roll.")

    assert kinds(answer) == ["reasoning", "tool_call", "tool_return", "reasoning", "assistant"]
    thought = answer["messages"][0]
    assert (thought["reasoning"], thought["source"]) == ("A die, then.", "non_reasoner_model")
    assert "thinking" not in answer["messages"][1]["tool_call"]["arguments"]
    assert scene.games.played == [("roll", 4)]
    offered = scene.asked[0]["tools"][0]["function"]["parameters"]
    assert offered["required"][0] == next(iter(offered["properties"])) == "thinking"
    sent_back = [message for message in scene.asked[1]["messages"] if message.get("tool_calls")][-1]
    assert (
        json.loads(sent_back["tool_calls"][0]["function"]["arguments"])["thinking"]
        == "A die, then."
    )


def test_an_older_client_enables_thoughts_in_arguments_by_llm_config(scene: Scene) -> None:
    config = {"handle": "openai/scripted-1", "put_inner_thoughts_in_kwargs": True}
    agent = scene.agent("send_message", agent_type="memgpt_agent", llm_config=config)
    scene.says(speech("Yes.", thinking="Hm."))
    assert kinds(scene.send(agent, "Do you think?")) == ["reasoning", "assistant"]


def test_a_response_format_sets_the_schema_of_send_message(scene: Scene) -> None:
    schema = {"type": "object", "properties": {"mood": {"type": "string"}}, "required": ["mood"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "mood", "schema": schema}}
    agent = scene.agent("send_message", agent_type="memgpt_v2_agent", response_format=wanted)
    scene.says(calls(("send_message", {"message": {"mood": "calm"}})))

    answer = scene.send(agent, "How are you?")

    (body,) = scene.asked
    assert "response_format" not in body
    offered = body["tools"][0]["function"]["parameters"]["properties"]["message"]
    assert (offered["type"], offered["required"]) == ("object", ["mood"])
    assert json.loads(said(answer)[0]) == {"mood": "calm"}


def test_a_sleeptime_agent_works_with_its_own_tools_until_it_finishes(scene: Scene) -> None:
    blocks = [{"label": "human", "value": "Ada."}]
    agent = scene.agent(agent_type="sleeptime_agent", include_base_tools=True, memory_blocks=blocks)
    scene.says(
        calls(("memory_insert", {"label": "human", "new_string": "Likes tea."})),
        calls(("memory_finish_edits", {})),
    )

    answer = scene.send(agent, "Go through what was said.")

    assert stopped(answer) == "tool_rule"
    assert tools_of(scene.asked[0]) == [
        "memory_replace",
        "memory_insert",
        "memory_rethink",
        "memory_finish_edits",
    ]
    block = scene.http.get(f"/v1/agents/{agent}/core-memory/blocks/human").json()
    assert block["value"] == "Ada.\nLikes tea."
