"""Compaction of windows that become too full.

The tests cover each way of making a window smaller, each way this can fail, and what always stays
true.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.seams.scene import (
    BROKEN,
    OPENAI,
    TOO_LONG,
    Scene,
    Wire,
    calls,
    kinds,
    returns,
    roles,
    said,
    speech,
)
from tests.seams.stage import prompt_text as text
from tests.support.model_server import Answer, Seen, completion, stream

WINDOW = 4096
WORDS = "Ada grows tea on the third terrace and counts the leaves. " * 25  # about 360 tokens
MODES = ("sliding_window", "all", "self_compact_sliding_window", "self_compact_all")
_BEGINNINGS = {mode: text(name)[:110] for mode, name in zip(
    MODES, ("summary_sliding", "summary_all", "summary_self_sliding", "summary_self_all"), strict=True
)}  # fmt: skip


def mode_of(body: Wire) -> str | None:
    last = str(body["messages"][-1]["content"])
    return next((mode for mode, beginning in _BEGINNINGS.items() if beginning in last), None)


class Script:
    """A model that answers turns with numbers, and summary requests as the test says."""

    def __init__(self) -> None:
        self.summary: Callable[[Wire], Answer] = lambda _: completion("Ada grows tea.")
        self.turn: Callable[[Wire], Answer | None] = lambda _: None
        self.asked: list[str] = []
        self.turns = 0

    def __call__(self, seen: Seen) -> Answer:
        if mode := mode_of(seen.body):
            self.asked.append(mode)
            return self.summary(seen.body)
        if answer := self.turn(seen.body):
            return answer
        self.turns += 1
        words = f"Answer {self.turns}."
        return stream({"content": words}) if seen.body.get("stream") else completion(words)


@pytest.fixture
def script(scene: Scene) -> Iterator[Script]:
    made, before = Script(), scene.models.otherwise
    scene.models.otherwise = made
    yield made
    scene.models.otherwise = before


def talk(scene: Scene, agent: str, turns: int, **body: Any) -> Wire:
    return [scene.send(agent, f"Part {number}: {WORDS}", **body) for number in range(turns)][-1]


def agent_with(
    scene: Scene, mode: str = "sliding_window", window: int = WINDOW, **settings: Any
) -> str:
    return scene.agent(context_window_limit=window, compaction_settings={"mode": mode, **settings})


def summaries(scene: Scene, agent: str) -> list[Wire]:
    return [
        message for message in scene.history(agent) if message["message_type"] == "summary_message"
    ]


def evicted_by(scene: Scene, agent: str) -> list[str]:
    events = [
        message for message in scene.history(agent) if message["message_type"] == "event_message"
    ]
    return [one for event in events for one in event["event_data"]["evicted_message_ids"]]


def require_fits(scene: Scene, window: int = WINDOW) -> None:
    """Check that every request fits the window, at four characters a token."""
    for body in scene.asked:
        assert len(json.dumps(body["messages"])) // 4 <= window


@pytest.mark.parametrize("mode", MODES)
def test_a_window_is_compacted_before_a_request_that_would_not_fit(
    scene: Scene, script: Script, mode: str
) -> None:
    agent = agent_with(scene, mode)

    answer = talk(scene, agent, 12)

    assert said(answer) == ["Answer 12."]
    assert script.asked
    assert set(script.asked) == {mode}
    require_fits(scene)
    ids = scene.state(agent)["message_ids"]
    told = summaries(scene, agent)
    assert ids[1] == told[-1]["id"]
    assert told[-1]["summary"] == "Ada grows tea."
    last = scene.asked[-1]["messages"]
    assert (last[0]["role"], last[1]["role"]) == ("system", "user")
    alert = json.loads(last[1]["content"])
    assert alert["type"] == "system_alert"
    assert "Ada grows tea." in alert["message"]
    # Messages of the running turn never leave the window.
    assert last[-1]["content"].startswith("Part 11:")
    asked = next(body for body in scene.asked if mode_of(body))
    if mode.startswith("self_"):
        # The provider's cache still holds the prefix.
        assert asked["messages"][0] == scene.asked[0]["messages"][0]
        assert asked["messages"][1]["content"].startswith("Part 0:")
    else:
        assert asked["messages"][0]["content"] == text("summary_system_prompt")
        assert "<conversation>" in asked["messages"][-1]["content"]
    assert "Part 0:" in json.dumps(asked)


def test_sliding_keeps_the_newest_messages_and_all_keeps_only_the_turn(
    scene: Scene, script: Script
) -> None:
    for mode, least, most in (("sliding_window", 6, 40), ("all", 3, 3)):
        agent = agent_with(scene, mode)
        script.asked.clear()
        number = 0
        while not script.asked:
            scene.send(agent, f"Part {number}: {WORDS}")
            number += 1
        assert least <= len(scene.asked[-1]["messages"]) <= most, mode


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "failure", [BROKEN, completion(""), Answer({"error": {"message": "down"}}, status=503)]
)
def test_a_failed_summary_is_replaced_by_an_outline(
    scene: Scene, script: Script, mode: str, failure: Answer
) -> None:
    agent = agent_with(scene, mode)
    script.summary = lambda _: failure

    answer = talk(scene, agent, 10)

    assert said(answer) == ["Answer 10."]
    assert set(script.asked) == {mode}
    require_fits(scene)
    # The summary is an outline of the removed messages, made without a model.
    assert "Part 0" in summaries(scene, agent)[0]["summary"]


def test_a_summary_model_that_never_answers_times_out(
    scene: Scene, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricordo.agents.context_limit.timeout_for", lambda _expected: 0.05)
    agent = agent_with(scene)
    script.summary = lambda _: Answer({}, delay=30)
    answer = talk(scene, agent, 10)
    assert said(answer) == ["Answer 10."]
    assert "Part 0" in summaries(scene, agent)[0]["summary"]


def test_a_long_summary_is_cut_to_its_share_of_the_window_or_to_the_setting(
    scene: Scene, script: Script
) -> None:
    agent = agent_with(scene)
    script.summary = lambda _: completion("Tea! " * 20_000)
    talk(scene, agent, 12)
    # The length is in characters, so the summary takes a quarter of the window's tokens.
    assert len(summaries(scene, agent)[0]["summary"]) < WINDOW
    # One compaction makes room for several turns.
    assert len(summaries(scene, agent)) <= 5
    require_fits(scene)
    agent = agent_with(scene, clip_chars=20)
    script.summary = lambda _: completion("Ada grows tea on the third terrace.")
    talk(scene, agent, 10)
    assert summaries(scene, agent)[0]["summary"] == "Ada grows tea on ..."


def test_a_configured_model_and_prompt_write_the_summary(scene: Scene, script: Script) -> None:
    agent = agent_with(scene, model="scripted/model", prompt="Sum up in one line.")
    scene.server.forget()
    scene.server.says(*["A line."] * 5)
    talk(scene, agent, 10)
    assert summaries(scene, agent)[0]["summary"] == "A line."
    assert script.asked == []
    assert "Sum up in one line." in scene.server.model.requests[0].messages[-1].text


def test_a_missing_summary_model_is_replaced_by_the_agents_model(
    scene: Scene, script: Script
) -> None:
    agent = agent_with(scene, model="nobody/model")
    talk(scene, agent, 10)
    assert summaries(scene, agent)[0]["summary"] == "Ada grows tea."


@pytest.mark.parametrize("mode", MODES)
def test_a_request_refused_as_too_long_is_compacted_in_the_same_turn(
    scene: Scene, script: Script, mode: str
) -> None:
    agent = agent_with(scene, mode, window=32_000)
    script.turn = lambda body: TOO_LONG if len(json.dumps(body["messages"])) > 12_000 else None

    answers = [scene.send(agent, f"Part {number}: {WORDS}") for number in range(12)]

    assert [said(answer) for answer in answers] == [
        [f"Answer {number}."] for number in range(1, 13)
    ]
    assert summaries(scene, agent)
    assert summaries(scene, agent)[0]["compaction_stats"]["trigger"] == "provider"


def test_a_learned_limit_is_remembered_in_the_next_turn(scene: Scene, script: Script) -> None:
    agent = agent_with(scene, window=32_000)
    refused: list[int] = []

    def turn(body: Wire) -> Answer | None:
        if len(json.dumps(body["messages"])) <= 12_000:
            return None
        refused.append(script.turns)
        return TOO_LONG

    script.turn = turn
    talk(scene, agent, 24)
    # Once the limit is known, the window is compacted before the provider refuses it.
    assert len(set(refused)) <= 2


def test_one_message_larger_than_the_window_is_still_answered(scene: Scene, script: Script) -> None:
    agent = agent_with(scene)
    huge = scene.send(agent, "Part 0: " + "tea " * 20_000)
    assert said(huge) == ["Answer 1."]
    require_fits(scene)
    assert said(scene.send(agent, "And now?")) == ["Answer 2."]
    kept = next(one for one in scene.history(agent) if one["message_type"] == "user_message")
    assert len(kept["content"]) > 80_000  # the user's message is kept whole


def test_large_tool_results_are_made_to_fit_within_the_turn(scene: Scene, script: Script) -> None:
    agent = scene.agent("conversation_search", "roll", context_window_limit=WINDOW)
    for number in range(3):
        scene.send(agent, f"Part {number}: {WORDS}")
    count = 0

    def turn(body: Wire) -> Answer | None:
        nonlocal count
        count += 1
        words = ("tea", "terrace", "tea terrace", "leaves", "Ada", "grows tea")[count - 1 : count]
        return calls(("conversation_search", {"query": words[0], "limit": 20})) if words else None

    script.turn = turn
    answer = scene.send(agent, "What do you remember?")
    assert said(answer) == ["Answer 4."]
    require_fits(scene)


def test_a_system_prompt_larger_than_the_window_is_reported_as_such(
    scene: Scene, script: Script
) -> None:
    agent = scene.agent(context_window_limit=WINDOW, system="Remember tea. " * 2_000)
    answer = scene.post(agent, "Hello.")
    assert answer.status_code == 400
    run = scene.http.get("/v1/runs/", params={"agent_id": agent}).json()[0]
    assert (run["status"], run["stop_reason"]) == (
        "failed",
        "context_window_overflow_in_system_prompt",
    )
    scene.change(agent, system="Remember tea.")
    assert said(scene.send(agent, "Hello again.")) == ["Answer 1."]


def test_evicted_messages_are_listed_kept_and_found(scene: Scene, script: Script) -> None:
    agent = scene.agent("conversation_search", context_window_limit=WINDOW)
    scene.send(agent, f"The password is heliotrope. {WORDS}")
    first = scene.history(agent)[1]
    talk(scene, agent, 10)

    gone = evicted_by(scene, agent)
    state = scene.state(agent)
    shown = {message["id"] for message in scene.history(agent)}
    assert first["id"] in gone
    assert not set(gone) & set(state["message_ids"])
    assert set(gone) | set(state["message_ids"]) <= shown
    assert len(shown) == len(set(gone) | set(state["message_ids"]))

    asked = False

    def turn(_: Wire) -> Answer | None:
        nonlocal asked
        asked, before = True, asked
        return None if before else calls(("conversation_search", {"query": "heliotrope password"}))

    script.turn = turn
    answer = scene.send(agent, "What was the password?")
    assert "heliotrope" in returns(answer)[0][1]


def test_a_summary_is_returned_on_request_and_listed(scene: Scene, script: Script) -> None:
    agent = agent_with(scene)
    plain = [scene.send(agent, f"Part {number}: {WORDS}") for number in range(10)]
    assert {kind for answer in plain for kind in kinds(answer)} == {"assistant"}

    told = [
        scene.send(agent, f"More {number}: {WORDS}", include_compaction_messages=True)
        for number in range(10)
    ]
    with_summary = next(answer for answer in told if len(answer["messages"]) > 1)
    assert kinds(with_summary) == ["summary", "event", "assistant"]
    summary, event, _ = with_summary["messages"]
    stats = summary["compaction_stats"]
    assert (stats["trigger"], stats["context_window"]) == ("window", WINDOW)
    assert stats["context_tokens_after"] < stats["context_tokens_before"]
    assert stats["messages_count_after"] < stats["messages_count_before"]
    assert event["event_type"] == "compaction"
    assert event["event_data"]["evicted_message_ids"]
    assert {"summary", "event"} < set(kinds(scene.history(agent)))
    fitting = list(scene.client.agents.messages.list(agent, order="asc", limit=1000))
    assert any(message.message_type == "summary_message" for message in fitting)


def test_a_window_can_be_compacted_on_demand(scene: Scene, script: Script) -> None:
    agent = scene.agent()
    talk(scene, agent, 6)
    before = len(scene.state(agent)["message_ids"])

    done = scene.client.agents.messages.compact(
        agent, compaction_settings={"mode": "all", "model": OPENAI}
    )

    assert (done.summary, done.num_messages_before) == ("Ada grows tea.", before)
    assert done.num_messages_after == len(scene.state(agent)["message_ids"]) < before
    assert summaries(scene, agent)[0]["compaction_stats"]["trigger"] == "request"
    assert said(scene.send(agent, "Still there?")) == ["Answer 7."]
    assert roles(scene.asked[-1]) == "system user user"


def test_after_a_compaction_the_prompt_counts_the_messages_in_recall(
    scene: Scene, script: Script
) -> None:
    def in_recall(system: str) -> int:
        return int(re.search(r"(\d+) previous messages .* are stored in recall memory", system)[1])  # type: ignore[index]

    agent = agent_with(scene)
    talk(scene, agent, 12)
    evicted = evicted_by(scene, agent)
    # This holds for the step that compacted, and for the stored window.
    assert in_recall(str(scene.asked[-1]["messages"][0]["content"])) == len(evicted) > 0
    assert in_recall(scene.history(agent)[0]["content"]) == len(evicted)
    # After a compaction on request, no step follows.
    other = scene.agent()
    talk(scene, other, 6)
    scene.client.agents.messages.compact(
        other, compaction_settings={"mode": "all", "model": OPENAI}
    )
    assert in_recall(scene.history(other)[0]["content"]) == len(evicted_by(scene, other)) > 0


def test_a_compaction_that_can_evict_nothing_is_refused_and_the_agent_still_answers(
    scene: Scene, script: Script
) -> None:
    agent = scene.agent()
    refused = scene.http.post(f"/v1/agents/{agent}/summarize", json={})
    assert refused.status_code == 400
    assert "Summarization failed to reduce the number of messages" in refused.text
    assert said(scene.send(agent, "Hello.")) == ["Answer 1."]


def test_a_call_that_waits_for_approval_never_leaves_the_window(
    scene: Scene, script: Script
) -> None:
    rules = [{"type": "requires_approval", "tool_name": "roll"}]
    agent = scene.agent("roll", context_window_limit=WINDOW, tool_rules=rules)
    talk(scene, agent, 5)
    asks = iter([calls(("roll", {}))])
    script.turn = lambda _: next(asks, None)
    scene.send(agent, "Roll.")
    scene.http.post(f"/v1/agents/{agent}/summarize", json={"compaction_settings": {"mode": "all"}})

    pending = scene.state(agent)["pending_approval"]
    assert pending["id"] == scene.state(agent)["message_ids"][-1]
    call_id = pending["tool_calls"][0]["tool_call_id"]
    approval = {
        "type": "approval",
        "approvals": [{"type": "approval", "tool_call_id": call_id, "approve": True}],
    }
    assert said(scene.send(agent, approval)) == ["Answer 6."]


def test_a_heartbeat_agent_continues_after_a_compaction(scene: Scene, script: Script) -> None:
    agent = scene.agent(
        "send_message", "roll", agent_type="memgpt_v2_agent", context_window_limit=WINDOW
    )

    def turn(body: Wire) -> Answer:
        last = body["messages"][-1]
        is_asked = last["role"] == "user" and "heartbeat" not in last["content"]
        return speech("Yes." if is_asked else "Going on.")

    script.turn = turn
    for number in range(12):
        answer = scene.send(agent, f"Part {number}: {WORDS}")
        assert said(answer) == ["Yes."]
    assert summaries(scene, agent)
    require_fits(scene)
