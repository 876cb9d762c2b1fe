"""Events that a reader gets during a turn, and their order."""

import threading
from typing import Any

import pytest

from tests.seams.scene import BROKEN, CLAUDE, Scene, Wire, calls, roles, said, speech
from tests.support.model_server import Answer, claude, claude_stream, event, stream

END = ["stop_reason", "usage_statistics", "[DONE]"]
USAGE = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}


def event_types(events: list[tuple[str | None, Any]]) -> list[str]:
    types = [
        value if value == "[DONE]" else value["message_type"].removesuffix("_message")
        for _, value in events
    ]
    return [kind for place, kind in enumerate(types) if not place or types[place - 1] != kind]


def values(events: list[tuple[str | None, Any]], kind: str) -> list[Wire]:
    return [value for _, value in events if value != "[DONE]" and value["message_type"] == kind]


def joined_field(events: list[tuple[str | None, Any]], kind: str, field: str) -> str:
    return "".join(value[field] for value in values(events, kind))


def streamed_call(name: str, *pieces: str, call_id: str = "call_s") -> Answer:
    first = {
        "index": 0,
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": ""},
    }
    rest = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
    return stream(
        {"tool_calls": [first]},
        *({"tool_calls": [one]} for one in rest),
        finish="tool_calls",
        usage=USAGE,
    )


def test_whole_messages_are_streamed_step_by_step(scene: Scene) -> None:
    agent = scene.agent("roll")
    scene.says(calls(("roll", {}), text="Let me see."), "Six.")

    events = scene.stream(agent, "Roll.")

    assert event_types(events) == [
        "ping",
        "assistant",
        "tool_call",
        "tool_return",
        "assistant",
        *END,
    ]
    usage = events[-2][1]
    assert usage["prompt_tokens"] == 22
    # The final size of the window is the last call's count, and not the sum of all calls.
    assert usage["context_tokens"] == USAGE["total_tokens"]
    # The provider is asked for a stream only if a reader wants tokens.
    assert not any(body.get("stream") for body in scene.asked)


def test_tokens_of_text_and_arguments_are_streamed(scene: Scene) -> None:
    agent = scene.agent("roll")
    scene.says(
        streamed_call("roll", '{"sid', 'es": 8}'),
        stream({"content": "Eig"}, {"content": "ht."}, usage=USAGE),
    )

    events = scene.stream(agent, "Roll.", stream_tokens=True)

    assert event_types(events) == ["ping", "tool_call", "tool_return", "assistant", *END]
    pieces = [value["tool_call"] for value in values(events, "tool_call_message")]
    assert pieces[0] == {"name": "roll", "tool_call_id": "call_s"} | (
        {"arguments": pieces[0]["arguments"]} if "arguments" in pieces[0] else {}
    )
    assert all(
        isinstance(value["tool_calls"], dict) for value in values(events, "tool_call_message")
    )
    assert "".join(piece.get("arguments", "") for piece in pieces) == '{"sides": 8}'
    words = values(events, "assistant_message")
    assert [value["content"] for value in words] == ["Eig", "ht."]
    assert len({(value["id"], value["otid"]) for value in words}) == 1
    # The ids are those of the stored messages.
    kept = {message["id"] for message in scene.history(agent)}
    assert {value["id"] for _, value in events[1:-3]} <= kept
    assert scene.games.played == [("roll", 8)]


def test_thoughts_in_arguments_are_streamed_as_reasoning_before_their_call(scene: Scene) -> None:
    settings = {"provider_type": "openai", "put_inner_thoughts_in_kwargs": True}
    agent = scene.agent("send_message", agent_type="memgpt_v2_agent", model_settings=settings)
    scene.says(
        streamed_call("send_message", '{"thinking": "A gre', 'eting.", "message": "Hel', 'lo."}')
    )

    events = scene.stream(agent, "Hello.", stream_tokens=True)

    assert event_types(events) == ["ping", "reasoning", "assistant", *END]
    assert joined_field(events, "reasoning_message", "reasoning") == "A greeting."
    assert joined_field(events, "assistant_message", "content") == "Hello."


def test_claudes_thoughts_are_streamed_first_with_their_signature(scene: Scene) -> None:
    thinking = {"type": "thinking", "thinking": "A die, then.", "signature": "sig-1"}
    roll = {"type": "tool_use", "id": "toolu_a", "name": "roll", "input": {"sides": 8}}
    agent = scene.agent("roll", model=CLAUDE)
    scene.says(
        claude_stream(thinking, roll, stop="tool_use"),
        claude_stream({"type": "text", "text": "Eight."}),
    )

    events = scene.stream(agent, "Roll.", stream_tokens=True)

    others = [kind for kind in event_types(events) if kind != "reasoning"]
    assert others == ["ping", "tool_call", "tool_return", "assistant", *END]
    assert event_types(events)[1] == "reasoning"
    assert joined_field(events, "reasoning_message", "reasoning") == "A die, then."
    assert [
        one["signature"] for one in values(events, "reasoning_message") if one["signature"]
    ] == ["sig-1"]
    assert joined_field(events, "assistant_message", "content") == "Eight."
    assert scene.asked[1]["messages"][1]["content"][0] == thinking


@pytest.mark.parametrize("has_tokens", [False, True])
def test_a_heartbeat_agents_chain_is_streamed_without_heartbeats(
    scene: Scene, has_tokens: bool
) -> None:
    agent = scene.agent("send_message", "roll", agent_type="memgpt_v2_agent")
    if has_tokens:
        scene.says(
            streamed_call("roll", '{"request_heartbeat": true}', call_id="call_1"),
            streamed_call("send_message", '{"message": "Six."}', call_id="call_2"),
        )
    else:
        scene.says(calls(("roll", {"request_heartbeat": True})), speech("Six."))

    events = scene.stream(agent, "Roll.", stream_tokens=has_tokens)

    assert event_types(events) == ["ping", "tool_call", "tool_return", "assistant", *END]


# Errors.


@pytest.mark.parametrize("has_tokens", [False, True])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "llm_bad_request"),
        (401, "llm_authentication"),
        (429, "llm_rate_limit"),
        (500, "llm_error"),
    ],
)
def test_an_error_is_streamed_between_the_stop_reason_and_done(
    scene: Scene, status: int, kind: str, has_tokens: bool
) -> None:
    agent = scene.agent()
    # No other form of the request would avoid this error.
    scene.says(
        Answer({"error": {"message": "no: the account's billing is inactive"}}, status=status)
    )

    events = scene.stream(agent, "Hello.", stream_tokens=has_tokens)

    assert event_types(events) == ["ping", "stop_reason", "error", "[DONE]"]
    assert events[1][1]["stop_reason"] == "llm_api_error"
    name, error = events[2]
    assert (name, error["error_type"], error["run_id"]) == ("error", kind, events[0][1]["run_id"])
    scene.says("Still here.")
    assert said(scene.send(agent, "Are you there?")) == ["Still here."]


def test_steps_before_a_failure_are_streamed_and_kept(scene: Scene) -> None:
    agent = scene.agent("roll")
    scene.says(calls(("roll", {})), BROKEN)
    events = scene.stream(agent, "Roll.")
    assert event_types(events) == [
        "ping",
        "tool_call",
        "tool_return",
        "stop_reason",
        "error",
        "[DONE]",
    ]
    scene.says("Six.")
    scene.send(agent, "What was it?")
    assert roles(scene.asked[-1]).startswith("system user assistant tool")


@pytest.mark.parametrize("model", ["openai/scripted-1", CLAUDE])
def test_a_provider_that_breaks_off_fails_the_turn_and_the_agent_answers_again(
    scene: Scene, model: str
) -> None:
    agent = scene.agent(model=model)
    if model == CLAUDE:
        cut = claude_stream({"type": "text", "text": "Once upon a"}, stop=None)
        answer: str | Answer = claude({"type": "text", "text": "Still here."})
    else:
        cut, answer = stream({"content": "Once upon a"}, finish=None, done=False), "Still here."
    scene.says(Answer(pieces=cut.pieces, headers=cut.headers, breaks_off=True))

    events = scene.stream(agent, "Tell me a story.", stream_tokens=True)

    assert event_types(events)[-3:] == ["stop_reason", "error", "[DONE]"]
    assert "assistant_message" not in [message["message_type"] for message in scene.history(agent)]
    scene.says(answer)
    assert said(scene.send(agent, "Are you there?")) == ["Still here."]


def test_an_error_inside_a_providers_stream_keeps_its_kind(scene: Scene) -> None:
    agent = scene.agent()
    broken = event({"error": {"message": "slow down", "code": 429}})
    scene.says(stream({"content": "Once"}, broken, finish=None, done=False))
    events = scene.stream(agent, "Tell me a story.", stream_tokens=True)
    assert events[-2][1]["error_type"] == "llm_rate_limit"


# Cancelling and leaving.


@pytest.mark.parametrize("has_tokens", [False, True])
def test_a_cancelled_turn_ends_its_stream_with_that_stop_reason(
    scene: Scene, has_tokens: bool
) -> None:
    agent = scene.agent()
    scene.says(Answer({}, delay=5))
    read: list[list[tuple[str | None, Any]]] = []
    reader = threading.Thread(
        target=lambda: read.append(scene.stream(agent, "Hello.", stream_tokens=has_tokens))
    )
    reader.start()
    scene.wait_until_asked()

    assert scene.http.post(f"/v1/agents/{agent}/messages/cancel").status_code == 200
    reader.join()

    assert event_types(read[0]) == ["ping", "stop_reason", "[DONE]"]
    assert read[0][-2][1]["stop_reason"] == "cancelled"
    scene.says("Still here.")
    assert said(scene.send(agent, "Are you there?")) == ["Still here."]
    assert roles(scene.asked[-1]) == "system user user"
