"""Clients rely on these answers of the retired Letta V1 server 0.16.8.

Some of the answers differ from that server's documentation.

Other tests check the order of lists (tests/api/test_messages.py), repeated approvals
(test_approvals.py) and callbacks (tests/api/test_streams.py).
"""

import base64
import json
import logging
import re

import pytest

from tests.seams.scene import CLAUDE, OPENAI, Scene, Wire, calls, kinds, said, stopped
from tests.support.model_server import claude, claude_stream
from tests.support.model_server import stream as streamed

ODD = b'data: {"choices": [{"index": {}, "delta": {"content": "It is "}}]}\n\n'
PICTURE = base64.b64encode(bytes(range(256)) * 12).decode()


def test_a_model_without_a_handle_is_found_by_its_name_and_provider(scene: Scene) -> None:
    provider, name = CLAUDE.split("/")
    config = {"model": name, "model_endpoint_type": provider, "context_window": 16_000}
    agent = scene.agent(model=None, llm_config=config | {"temperature": 0.3, "max_tokens": 500})
    state = scene.state(agent)
    shown = state["llm_config"]
    assert (state["model"], shown["context_window"]) == (CLAUDE, 16_000)
    assert (shown["temperature"], shown["max_tokens"]) == (0.3, 500)
    provider, name = OPENAI.split("/")
    changed = scene.change(
        agent, llm_config={"model": name, "model_endpoint_type": provider, "context_window": 8_000}
    )
    assert (changed["model"], changed["llm_config"]["context_window"]) == (OPENAI, 8_000)
    refused = scene.http.post(
        "/v1/agents/", json={"llm_config": {"model": "nothing", "model_endpoint_type": provider}}
    )
    assert (refused.status_code, f"{provider}/nothing not found" in refused.text) == (404, True)


def test_thinking_can_be_switched_off_for_claude_and_is_shown_as_off(scene: Scene) -> None:
    off = {"type": "disabled"}
    for body, sent in (
        ({"reasoning": False}, off),
        ({"model_settings": {"provider_type": "anthropic", "thinking": off}}, off),
        ({"max_reasoning_tokens": 2048}, {"type": "enabled", "budget_tokens": 2048}),
    ):
        agent = scene.agent(model=CLAUDE, **body)
        scene.says(claude({"type": "text", "text": "Hello."}))
        scene.send(agent, "Hello.")
        assert scene.asked[-1].get("thinking", off) == sent, body
        assert scene.state(agent)["model_settings"]["thinking"] == sent, body
    back = scene.change(agent, reasoning=False)["model_settings"]
    assert back["thinking"] == off
    assert scene.change(agent, model_settings=back)["model_settings"] == back
    thinks = {"type": "enabled", "budget_tokens": 1500}
    assert (
        scene.change(agent, model_settings={"thinking": thinks})["model_settings"]["thinking"]
        == thinks
    )


def test_a_run_lists_the_message_types_that_its_request_asked_for(scene: Scene) -> None:
    agent = scene.agent("roll")
    scene.says(calls(("roll", {})), "Six.")
    answer = scene.send(agent, "Roll.", include_return_message_types=["assistant_message"])
    assert kinds(answer) == ["assistant"]
    (run,) = scene.http.get("/v1/runs/", params={"agent_id": agent}).json()
    assert kinds(scene.http.get(f"/v1/runs/{run['id']}/messages").json()) == ["assistant"]


@pytest.mark.parametrize("has_tokens", [True, False])
def test_a_signature_is_sent_with_its_thought_before_the_text(
    scene: Scene, has_tokens: bool
) -> None:
    thoughts = [("Hm. What is it?", "proof-1"), ("And now?", "proof-2")]
    blocks = [
        {"type": "thinking", "thinking": text, "signature": proof} for text, proof in thoughts
    ]
    said_after: list[Wire] = [
        {"type": "text", "text": "It is tea."},
        {"type": "tool_use", "id": "call_1", "name": "roll", "input": {"sides": 6}},
    ]
    for after in ([said_after[0]], [said_after[1]], said_after):
        for first in (blocks[:1], blocks):
            agent = scene.agent(
                "roll", model=CLAUDE, tool_rules=[{"type": "exit_loop", "tool_name": "roll"}]
            )
            content = [*first, *after]
            scene.says(claude_stream(*content) if has_tokens else claude(*content))
            events = [
                value
                for _, value in scene.stream(agent, "What is it?", stream_tokens=has_tokens)[:-1]
            ]
            told = [
                one
                for one in events
                if one["message_type"].endswith("_message") and one["message_type"] != "ping"
            ]
            proofs = [place for place, one in enumerate(told) if one.get("signature")]
            assert [told[place]["signature"] for place in proofs] == [
                one["signature"] for one in first
            ]
            words = [
                place
                for place, one in enumerate(told)
                if one["message_type"] != "reasoning_message"
            ]
            assert max(proofs) < min(words)
            spoken = "".join(
                one["reasoning"] for one in told if one["message_type"] == "reasoning_message"
            )
            assert spoken == "".join(one["thinking"] for one in first)


def test_a_tool_return_names_its_tool(scene: Scene) -> None:
    agent = scene.agent("roll", "toss")
    for named in ([("roll", {})], [("toss", {})], [("toss", {}), ("roll", {})]):
        scene.says(calls(*named), "Done.")
        answer = scene.send(agent, "Play.")
        (shown,) = [
            one for one in answer["messages"] if one["message_type"] == "tool_return_message"
        ]
        assert shown["name"] == named[0][0]
    listed = [
        one["name"] for one in scene.history(agent) if one["message_type"] == "tool_return_message"
    ]
    assert listed == ["roll", "toss", "toss"]


def test_of_equal_tool_rules_one_is_kept(scene: Scene) -> None:
    rule = {"type": "exit_loop", "tool_name": "roll"}
    agent = scene.agent("roll", tool_rules=[rule, {**rule}, rule])
    assert [one["tool_name"] for one in scene.state(agent)["tool_rules"]] == ["roll"]
    assert len(scene.change(agent, tool_rules=[rule, rule])["tool_rules"]) == 1


def test_a_small_window_is_accepted_with_a_warning(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        agent = scene.agent(context_window_limit=2_000)
    assert scene.state(agent)["llm_config"]["context_window"] == 2_000
    assert [one.message for one in caplog.records if "context window" in one.message]
    scene.says("Hello.")
    answer = scene.send(agent, "Hello.")
    assert (said(answer), stopped(answer)) == (["Hello."], "end_turn")


def test_a_summary_of_mode_all_says_that_all_earlier_messages_are_hidden(scene: Scene) -> None:
    for mode, words in (
        ("all", "Note: prior messages have been hidden"),
        ("sliding_window", "messages from the beginning"),
    ):
        agent = scene.agent()
        for number in range(4):
            scene.says(f"Answer {number}.")
            scene.send(agent, f"Question {number}.")
        scene.says("They talked.")
        body = {"compaction_settings": {"mode": mode}}
        scene.http.post(f"/v1/agents/{agent}/summarize", json=body).raise_for_status()
        scene.says("Yes.")
        scene.send(agent, "Go on?")
        assert words in str(scene.asked[-1]["messages"]), mode


def test_passages_show_their_embedding_model_and_on_request_their_vector(scene: Scene) -> None:
    agent = scene.agent()
    place = f"/v1/agents/{agent}/archival-memory"
    (made,) = scene.http.post(place, json={"text": "Ada likes tea."}).json()
    assert made["embedding"] is None
    config = made["embedding_config"]
    (plain,) = scene.http.get(place).json()
    assert (plain["embedding_config"], plain["embedding"]) == (config, None)
    (whole,) = scene.http.get(place, params={"include_embeddings": True}).json()
    assert len(whole["embedding"]) == config["embedding_dim"] > 0
    assert sum(number * number for number in whole["embedding"]) == pytest.approx(1, abs=1e-3)


def trace_of(scene: Scene, answered: list[Wire]) -> Wire:
    step = next(one["step_id"] for one in answered if one.get("step_id"))
    return dict(scene.http.get(f"/v1/steps/{step}/trace").json())


def test_a_trace_holds_the_providers_request_and_response(scene: Scene) -> None:
    runtime = scene.server.runtime
    before, runtime.settings = (
        runtime.settings,
        runtime.settings.model_copy(update={"traces": "all"}),
    )
    try:
        agent = scene.agent("roll")
        scene.says(calls(("roll", {"sides": 4})), "Four.")
        first = trace_of(scene, scene.send(agent, "Roll.")["messages"])
        sent, given = scene.models.requests[-2].body, first["response_json"]
        assert first["request_json"] == sent
        assert given["choices"][0]["message"]["tool_calls"][0]["function"] == {
            "name": "roll",
            "arguments": '{"sides": 4}',
        }

        pieces = [
            {
                "tool_calls": [
                    {"index": 0, "id": "call_9", "function": {"name": "roll", "arguments": ""}}
                ]
            }
        ]
        pieces += [
            {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
            for part in ('{"sid', 'es": 6}')
        ]
        scene.says(streamed(*pieces), streamed({"content": "It is "}, {"content": "six."}))
        events = [
            data
            for _, data in scene.stream(agent, "Again.", stream_tokens=True)
            if isinstance(data, dict)
        ]
        streams = trace_of(scene, events)
        (call,) = streams["response_json"]["choices"][0]["message"]["tool_calls"]
        assert (call["id"], call["function"]) == (
            "call_9",
            {"name": "roll", "arguments": '{"sides": 6}'},
        )
        last = trace_of(scene, events[::-1])["response_json"]["choices"][0]
        assert (last["message"]["content"], last["finish_reason"]) == ("It is six.", "stop")

        # One server sends a list of parts before a text, another sends null as an index. A turn
        # must not fail because of its trace.
        part = {"type": "text", "text": "It is "}
        for odd in (
            streamed({"content": [part]}, {"content": "six."}),
            streamed(ODD, {"content": "six."}),
        ):
            scene.says(odd)
            events = [
                data
                for _, data in scene.stream(agent, "Odd.", stream_tokens=True)
                if isinstance(data, dict)
            ]
            assert "six." in str(events)
            assert "six." in str(trace_of(scene, events)["response_json"])

        other = scene.agent(model=CLAUDE, reasoning=False)
        scene.says(claude({"type": "text", "text": "Hello."}))
        picture = {"type": "base64", "media_type": "image/png", "data": PICTURE}
        shown = [{"type": "text", "text": "Look."}, {"type": "image", "source": picture}]
        kept = trace_of(scene, scene.send(other, {"role": "user", "content": shown})["messages"])
        assert kept["request_json"]["system"] == scene.asked[-1]["system"]
        assert kept["response_json"]["content"] == [{"type": "text", "text": "Hello."}]
        assert PICTURE in str(scene.asked[-1])
        assert PICTURE not in str(kept)
        assert "key-" not in str([first, streams, kept])
    finally:
        runtime.settings = before


def test_a_preview_equals_the_later_request_and_stores_nothing(scene: Scene) -> None:
    for model in (OPENAI, CLAUDE):
        agent = scene.agent("roll", model=model, reasoning=False)
        asked, history = len(scene.asked), scene.history(agent)
        preview = scene.post(agent, "Roll.", path="/preview-raw-payload").json()
        assert (len(scene.asked), scene.history(agent)) == (asked, history)
        scene.says("Six." if model == OPENAI else claude({"type": "text", "text": "Six."}))
        scene.send(agent, "Roll.")
        assert without_times(preview) == without_times(scene.asked[-1])
    assert scene.post("agent-" + "0" * 36, "Roll.", path="/preview-raw-payload").status_code in (
        404,
        422,
    )


def without_times(body: Wire) -> str:
    return re.sub(r"\d\d:\d\d(:\d\d)?", "", json.dumps(body, sort_keys=True))


def test_a_window_larger_than_the_models_known_window_is_refused(scene: Scene) -> None:
    models = {
        one["handle"]: one["max_context_window"] for one in scene.http.get("/v1/models/").json()
    }
    known = {handle: window for handle, window in models.items() if window != 128_000}
    for handle, window in known.items():
        for limit, is_taken in ((window, True), (window + 1, False), (window * 2, False)):
            made = scene.http.post(
                "/v1/agents/", json={"model": handle, "context_window_limit": limit}
            )
            told = f"Context window limit ({limit}) is greater than maximum of ({window})"
            assert is_taken or told in made.text, (handle, limit)
            assert made.status_code == (200 if is_taken else 400)
            if is_taken:
                path = f"/v1/agents/{made.json()['id']}"
                assert (
                    scene.http.patch(path, json={"context_window_limit": window + 1}).status_code
                    == 400
                )
    assert known
    # If the window of a model is unknown, the operator can set it.
    assert (
        scene.http.post(
            "/v1/agents/", json={"model": OPENAI, "context_window_limit": 500_000}
        ).status_code
        == 200
    )


def test_small_windows_have_room_for_the_prompt(scene: Scene) -> None:
    for window in (2_000, 3_000, 4_500, 8_000):
        for more in (
            {},
            {"max_tokens": window},
            {"max_tokens": window * 3 // 4},
            {"max_tokens": 100},
        ):
            agent = scene.agent(context_window_limit=window, **more)
            scene.says("Hello.")
            answer = scene.send(agent, "Hello.")
            assert (said(answer), stopped(answer)) == (["Hello."], "end_turn"), (window, more)


def test_a_compaction_that_cannot_help_is_refused_without_a_model_call(scene: Scene) -> None:
    agent = scene.agent()
    for mode in ("all", "sliding_window"):
        answer = scene.http.post(
            f"/v1/agents/{agent}/summarize", json={"compaction_settings": {"mode": mode}}
        )
        assert (answer.status_code, scene.asked) == (400, [])
        assert "Summarization failed to reduce the number of messages" in answer.text
    for _ in range(2):
        scene.says("Hello.")
        scene.send(agent, "Hello.")
    scene.says("They said hello.")
    numbers = scene.http.post(
        f"/v1/agents/{agent}/summarize", json={"compaction_settings": {"mode": "all"}}
    ).json()
    assert numbers["num_messages_after"] < numbers["num_messages_before"]
    # The summary itself cannot be summarized further.
    before = len(scene.asked)
    again = scene.http.post(
        f"/v1/agents/{agent}/summarize", json={"compaction_settings": {"mode": "all"}}
    )
    assert (again.status_code, len(scene.asked)) == (400, before)


def test_runs_traces_prompts_and_conflicts_are_as_on_the_retired_server(scene: Scene) -> None:
    """Open runs can be listed, and a trace has its agent's tags.

    A prompt cannot be blank, and conflicts say `already exists`.
    """
    agent = scene.agent(tags=["b", "a"])
    scene.says("Hello.")
    answer = scene.send(agent, "Hello.")
    assert scene.http.get("/v1/runs/active").json() == []
    assert (
        scene.http.get("/v1/runs/active", params={"agent_id": agent, "background": False}).json()
        == []
    )
    (run,) = {one["run_id"] for one in answer["messages"]}
    traces = scene.http.get(f"/v1/runs/{run}/trace").json()
    assert [one["agent_tags"] for one in traces] in ([["a", "b"]], [])
    for blanks in ("", " ", "\n\t", "\u00a0"):
        assert (
            scene.http.post(f"/v1/agents/{agent}/generate", json={"prompt": blanks}).status_code
            == 422
        ), blanks
    for unknown in (
        "nothing",
        "provider-1",
        "provider-00000000-0000-4000-8000-000000000000",
        "%20",
    ):
        assert scene.http.get(f"/v1/providers/{unknown}").status_code == 404, unknown
    source = "def twice(x: int):\n    'Double.'"
    things = {
        "/v1/tools/": {"source_code": source},
        "/v1/folders/": {"name": "Papers"},
        "/v1/identities/": {"identifier_key": "ada", "name": "Ada", "identity_type": "user"},
    }
    for path, body in things.items():
        assert scene.http.post(path, json=body).status_code == 200, path
        again = scene.http.post(path, json=body)
        assert (again.status_code, "already exists" in again.text) == (409, True), again.text
