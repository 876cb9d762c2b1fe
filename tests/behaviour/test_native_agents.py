"""Native agents answer in plain text and continue after tools, in two wire formats."""

import json

from tests.seams.scene import CLAUDE, Scene, calls, kinds, returns, roles, said, stopped
from tests.support.model_server import Answer, claude

THINKING = {"type": "thinking", "thinking": "A die, then.", "signature": "sig-1"}
REDACTED = {"type": "redacted_thinking", "data": "secret-1"}


def roll(call_id: str = "toolu_a", **arguments: int) -> dict[str, object]:
    return {"type": "tool_use", "id": call_id, "name": "roll", "input": arguments}


def test_parallel_calls_each_get_their_result_and_the_turn_continues(scene: Scene) -> None:
    agent = scene.agent("roll", "toss", "stumble")
    scene.says(
        calls(
            ("roll", {"sides": 4}),
            ("toss", {}),
            ("stumble", {}),
            ("roll", {"sides": 8}),
            text="All!",
        ),
        "Done.",
    )

    answer = scene.send(agent, "Play.")

    assert kinds(answer) == ["assistant", "tool_call", "tool_return", "assistant"]
    assert stopped(answer) == "end_turn"
    assert len(answer["messages"][1]["tool_calls"]) == 4
    asked = [call["tool_call_id"] for call in answer["messages"][1]["tool_calls"]]
    assert [one["tool_call_id"] for one in answer["messages"][2]["tool_returns"]] == asked
    assert [status for status, _ in returns(answer)] == ["success", "success", "error", "success"]
    assert sorted(scene.played) == ["roll", "roll", "stumble", "toss"]
    assert roles(scene.asked[1]) == "system user assistant tool tool tool tool"
    assert scene.asked[0].get("tool_choice", "auto") == "auto"
    # A native agent's text is sent unchanged.
    assert scene.asked[0]["messages"][1]["content"] == "Play."


def test_claudes_thoughts_are_sent_back_with_their_signatures_after_parallel_calls(
    scene: Scene,
) -> None:
    agent = scene.agent("roll", "toss", model=CLAUDE)
    toss = {"type": "tool_use", "id": "toolu_b", "name": "toss", "input": {}}
    scene.says(
        claude(THINKING, REDACTED, roll(sides=4), toss, stop="tool_use"),
        claude({"type": "text", "text": "Four, heads."}),
    )

    answer = scene.send(agent, "Play.")

    assert kinds(answer) == [
        "reasoning",
        "hidden_reasoning",
        "tool_call",
        "tool_return",
        "assistant",
    ]
    assert answer["messages"][0]["signature"] == "sig-1"
    assert answer["messages"][1]["hidden_reasoning"] == "secret-1"
    assert said(answer) == ["Four, heads."]
    before = scene.asked[1]["messages"][1]["content"]
    assert before[0] == THINKING
    assert before[1] == REDACTED
    assert [block["id"] for block in before[2:]] == ["toolu_a", "toolu_b"]


def test_an_agent_continues_after_a_change_of_provider(scene: Scene) -> None:
    agent = scene.agent("roll", model=CLAUDE)
    scene.says(
        claude(THINKING, roll(), stop="tool_use"),
        claude({"type": "text", "text": "Six."}),
        "Six, I said.",
    )
    scene.send(agent, "Roll.")

    scene.change(agent, model="openai/scripted-1")
    answer = scene.send(agent, "What was it?")

    assert said(answer) == ["Six, I said."]
    assert roles(scene.asked[-1]) == "system user assistant tool assistant user"


def test_a_response_format_is_sent_to_the_provider(
    scene: Scene,
) -> None:
    agent = scene.agent(response_format={"type": "json_object"})
    scene.says('{"mood": "calm"}')
    assert json.loads(said(scene.send(agent, "How are you?"))[0]) == {"mood": "calm"}
    assert scene.asked[0]["response_format"] == {"type": "json_object"}


def test_a_model_and_a_system_prompt_can_be_overridden_for_one_turn(scene: Scene) -> None:
    agent = scene.agent()
    scene.says(claude({"type": "text", "text": "Arr."}), "Hello.")

    pirate = scene.send(agent, "Hello.", override_model=CLAUDE, override_system="Be a pirate.")
    plain = scene.send(agent, "Hello.")

    assert said(pirate) == ["Arr."]
    assert scene.asked[0]["system"][0]["text"] == "Be a pirate."
    assert said(plain) == ["Hello."]
    assert scene.asked[1]["messages"][0]["content"].startswith("You play.")
    assert scene.state(agent)["model"] == "openai/scripted-1"


def test_the_system_prompt_keeps_every_byte_over_twenty_turns(scene: Scene) -> None:
    agent = scene.agent("roll", memory_blocks=[{"label": "human", "value": "Her name is Ada."}])
    for number in range(20):
        turn: tuple[str | Answer, ...] = (
            (calls(("roll", {})), "Six.") if number % 10 == 3 else (f"Answer {number}.",)
        )
        scene.says(*turn)
        scene.send(agent, f"Message {number}.")

    prompts = {body["messages"][0]["content"] for body in scene.asked}
    assert len(scene.asked) == 22
    assert len(prompts) == 1
    # A provider's cache needs this: each request begins with the whole previous request.
    for before, after in zip(scene.asked, scene.asked[1:], strict=False):
        assert after["messages"][: len(before["messages"])] == before["messages"]
        assert after["tools"] == before["tools"]
