"""Talks as runs: streamed, in the background, sent again, cancelled, listed and reset.

People are kept apart.
"""

from collections.abc import Callable
from typing import Any

import pytest
from letta_client.types.agents import Run

from ricordo.agents.run_end import heal
from ricordo.domain.message import ReasoningPart
from ricordo.domain.model import ModelReply, ModelRequest
from ricordo.errors import ModelError
from ricordo.llm.scripted import Line
from ricordo.storage import runs
from tests.api.conftest import Api
from tests.features.groups.talking import (
    group_messages,
    names_of,
    new_agent,
    new_group,
    panel,
    say,
    speaker_of,
    speaking,
)
from tests.seams.server import Gate, events_of
from tests.seams.waiting import wait_for


def listed(api: Api, group: str, **params: Any) -> list[dict[str, Any]]:
    response = api.http.get(f"/v1/groups/{group}/messages", params=params)
    assert response.status_code == 200, response.text
    messages: list[dict[str, Any]] = response.json()
    return messages


def test_streamed_pieces_name_their_speaker_and_the_talks_run(api: Api) -> None:
    api.server.answers_with(speaking())
    group, _ = panel(api, "Ann", "Ben")
    body = {"messages": [{"role": "user", "content": "Hello."}], "stream_tokens": True}
    events = [
        event
        for _, event in events_of(
            api.http.post(f"/v1/groups/{group}/messages/stream", json=body).text
        )
    ]
    said = [
        event
        for event in events
        if event != "[DONE]" and event["message_type"] == "assistant_message"
    ]
    assert len(said) > 4
    assert "".join(event["content"] for event in said if event["name"] == "Ann").startswith(
        "Ann says"
    )
    assert "".join(event["content"] for event in said if event["name"] == "Ben").startswith(
        "Ben says"
    )
    assert {event["name"] for event in said} == {"Ann", "Ben"}
    (run_id,) = {event["run_id"] for event in said}
    run = api.client.runs.retrieve(run_id)
    assert (run.status, run.stop_reason) == ("completed", "end_turn")
    usage = next(
        event
        for event in events
        if event != "[DONE]" and event["message_type"] == "usage_statistics"
    )
    assert usage["step_count"] == 2
    assert (
        usage["total_tokens"] == api.http.get(f"/v1/runs/{run_id}/usage").json()["total_tokens"] > 0
    )
    assert len(api.http.get(f"/v1/runs/{run_id}/steps").json()) == 2


def test_a_background_talk_can_be_streamed_again_from_any_event(api: Api) -> None:
    api.server.answers_with(speaking())
    group, _ = panel(api, "Ann", "Ben")
    run = api.http.post(f"/v1/groups/{group}/messages/async", json={"input": "Hello."}).json()
    stream = api.http.post(f"/v1/runs/{run['id']}/stream", json={"starting_after": 0}).text
    events = [event for _, event in events_of(stream)]
    assert [event["name"] for event in events if "content" in event] == ["Ann", "Ben"]
    again = events_of(
        api.http.post(f"/v1/runs/{run['id']}/stream", json={"starting_after": 2}).text
    )
    numbers = [
        event["seq_id"]
        for _, event in again
        if event != "[DONE]" and event["message_type"] != "ping"
    ]
    assert numbers[0] == 3
    messages = api.http.get(f"/v1/runs/{run['id']}/messages").json()
    assert [one["message_type"] for one in messages] == [
        "user_message",
        *["reasoning_message", "assistant_message"] * 2,
    ]


def test_the_tokens_of_a_talk_are_counted_once(api: Api) -> None:
    api.server.answers_with(speaking())
    group, _ = panel(api, "Ann", "Ben")
    before = ledger(api)
    answer = say(api, group)
    assert ledger(api) - before == answer["usage"]["total_tokens"]


def ledger(api: Api) -> int:
    return api.server.read(
        lambda tx: runs.used_since(tx, "org-00000000-0000-4000-8000-000000000000", 0)
    )


def test_a_repeated_message_returns_the_first_talk(api: Api) -> None:
    api.server.answers_with(speaking())
    group, agents = panel(api, "Ann", "Ben")
    first = say(api, group, message={"otid": "one"})
    again = say(api, group, message={"otid": "one"})
    assert [one["id"] for one in again["messages"]] == [one["id"] for one in first["messages"]]
    assert again["usage"] == first["usage"]
    assert len(group_messages(api, agents["Ann"], group)) == 4
    response = api.http.post(
        f"/v1/groups/{group}/messages",
        json={"messages": [{"role": "user", "content": "Other.", "otid": "one"}]},
    )
    assert response.status_code == 409


def test_simultaneous_identical_messages_start_one_talk(api: Api) -> None:
    gate = Gate(api.server, "Here.")
    api.server.answers_with(gate)
    group, agents = panel(api, "Ann")
    body = {"messages": [{"role": "user", "content": "Hello.", "otid": "twice"}]}
    first = api.http.post(f"/v1/groups/{group}/messages/async", json=body).json()
    gate.wait()
    second = api.http.post(f"/v1/groups/{group}/messages/async", json=body).json()
    other = api.http.post(f"/v1/groups/{group}/messages", json={"input": "Me too."})
    assert other.status_code == 409
    gate.open()
    assert first["id"] == second["id"]
    wait_for(lambda: api.client.runs.retrieve(first["id"]).status == "completed")
    assert len(group_messages(api, agents["Ann"], group)) == 2


def test_cancelling_a_talk_cancels_the_members_turn_and_keeps_messages(api: Api) -> None:
    gate = Gate(api.server)

    def answer(request: ModelRequest) -> Any:
        return gate(request) if speaker_of(request) == "Ben" else "I am Ann."

    api.server.answers_with(answer)
    group, agents = panel(api, "Ann", "Ben", "Cleo")
    run = api.http.post(f"/v1/groups/{group}/messages/async", json={"input": "Hello."}).json()
    gate.wait()
    assert api.http.post(
        f"/v1/agents/{agents['Ann']}/messages/cancel", json={"run_ids": [run["id"]]}
    ).json() == {run["id"]: "cancelled"}
    assert api.client.runs.retrieve(run["id"]).status == "cancelled"
    assert not api.server.runtime.live
    statuses = {one.status for one in api.client.runs.list(agent_id=agents["Ben"])}
    assert statuses == {"cancelled"}
    assert [one["content"] for one in group_messages(api, agents["Cleo"], group)] == [
        "Hello.",
        "I am Ann.",
    ]


def failing(*names: str, line: Line | None = None) -> Callable[[ModelRequest], Line]:
    """Return a model that fails for these members, and for the manager as ""."""

    def answer(request: ModelRequest) -> Line:
        name = speaker_of(request)
        return (line or ModelError("llm_error", "No.")) if name in names else f"I am {name}."

    return answer


def talk_of(api: Api, agent_id: str) -> Run:
    """Return the newest talk that is led by this agent."""
    rows = api.client.runs.list(agent_id=agent_id, order="desc")
    return next(run for run in rows if (run.metadata or {}).get("plan"))


@pytest.mark.parametrize(
    "line",
    [
        ModelError("llm_error", "No."),
        ModelError("llm_bad_request", "Not like this."),
        ModelReply((ReasoningPart("Let me see."),), finish="length"),
    ],
)
@pytest.mark.parametrize("name", ["Ann", "Ben", "Cleo"])
def test_the_others_go_on_if_a_member_fails(api: Api, name: str, line: Line) -> None:
    api.server.answers_with(failing(name, line=line))
    group, agents = panel(api, "Ann", "Ben", "Cleo")
    others = [other for other in agents if other != name]
    answer = say(api, group)
    words = [one for one in answer["messages"] if one["message_type"] == "assistant_message"]
    assert [one["content"] for one in words] == [f"I am {other}." for other in others]
    heard = [one["content"] for one in group_messages(api, agents[others[-1]], group)]
    assert heard[-2:] == [f"I am {other}." for other in others]
    run = talk_of(api, agents["Ann"])
    assert (run.status, run.stop_reason) == ("completed", "end_turn")
    (note,) = (run.metadata or {})["notes"]
    assert note.startswith(f"{name} did not answer: ")
    (failed,) = [
        one for one in api.client.runs.list(agent_id=agents[name]) if one.status == "failed"
    ]
    assert any(failed.id in turn["run_ids"] for turn in (run.metadata or {})["turns"])
    api.server.answers_with(speaking())
    assert names_of(say(api, group)) == ["Ann", "Ben", "Cleo"]


@pytest.mark.parametrize("background", [False, True])
def test_a_member_that_fails_is_named_in_the_stream_which_continues(
    api: Api, background: bool
) -> None:
    api.server.answers_with(failing("Ann"))
    group, _ = panel(api, "Ann", "Ben")
    body = {"input": "Hello.", "include_pings": False, "background": background}
    events = [
        event
        for _, event in events_of(
            api.http.post(f"/v1/groups/{group}/messages/stream", json=body).text
        )
    ]
    (failure,) = [one for one in events if one != "[DONE]" and "speaker" in one]
    assert (
        failure["message_type"],
        failure["speaker"],
        failure["error_type"],
        failure["message"],
    ) == (
        "ping",
        "Ann",
        "llm_error",
        "No.",
    )
    kinds = [one if one == "[DONE]" else one["message_type"] for one in events]
    assert kinds == ["ping", "assistant_message", "stop_reason", "usage_statistics", "[DONE]"]


def test_a_talk_in_which_every_member_fails_has_failed(api: Api) -> None:
    api.server.answers_with(failing("Ann", "Ben"))
    group, agents = panel(api, "Ann", "Ben")
    response = api.http.post(f"/v1/groups/{group}/messages", json={"input": "Hello."})
    assert (response.status_code, response.json()["error"]["type"]) == (500, "llm_error")
    run = talk_of(api, agents["Ann"])
    assert (run.status, run.stop_reason) == ("failed", "llm_api_error")
    assert len((run.metadata or {})["notes"]) == 2
    api.server.answers_with(speaking())
    assert names_of(say(api, group)) == ["Ann", "Ben"]


def test_a_member_whose_turn_cannot_begin_is_skipped_and_hears_the_talk(api: Api) -> None:
    api.server.answers_with(failing())
    group, agents = panel(api, "Ann", "Ben", "Cleo", max_turns=4)
    limit = {"daily_tokens": 1}
    assert api.http.patch(f"/v1/agents/{agents['Ben']}/budget", json=limit).status_code == 200
    api.client.agents.messages.create(agents["Ben"], input="Spend it.")
    answer = say(api, group)
    assert names_of(answer) == ["Ann", "Cleo", "Ann"]
    assert answer["usage"]["step_count"] == 3
    heard = [one["content"] for one in group_messages(api, agents["Ben"], group)]
    assert heard == ["Hello all.", "I am Ann.", "I am Cleo.", "I am Ann."]
    run = talk_of(api, agents["Ann"])
    turns = [(turn["agent_id"], len(turn["run_ids"])) for turn in (run.metadata or {})["turns"]]
    assert turns == [
        (agents[name], runs_of_turn)
        for name, runs_of_turn in (("Ann", 1), ("Ben", 0), ("Cleo", 1), ("Ann", 1))
    ]
    assert "budget" in (run.metadata or {})["notes"][0]


def test_members_speak_by_their_order_if_the_manager_fails(api: Api) -> None:
    api.server.answers_with(failing(""))
    manager = new_agent(api, "Maria")
    members = [new_agent(api, name) for name in ("Ann", "Ben", "Cleo")]
    group = new_group(api, "dynamic", members, manager_agent_id=manager)
    assert names_of(say(api, group)) == ["Ann", "Ben", "Cleo"]
    # Its failure would be repeated before each turn.
    assert len([one for one in api.server.model.requests if not speaker_of(one)]) == 1
    (lead,) = [one for one in (members[0], manager) if _has_talk(api, one)]
    assert (talk_of(api, lead).metadata or {})["notes"][0] == "Maria did not answer: No."


def _has_talk(api: Api, agent_id: str) -> bool:
    return any((run.metadata or {}).get("plan") for run in api.client.runs.list(agent_id=agent_id))


def test_the_manager_chooses_again_after_a_member_failed(api: Api) -> None:
    def answer(request: ModelRequest) -> Line:
        name = speaker_of(request)
        if name == "Ann":
            return ModelError("llm_error", "No.")
        return f"I am {name}." if name else next(choices)

    choices = iter(["Ann", "Ben"])
    api.server.answers_with(answer)
    manager = new_agent(api, "Maria")
    members = [new_agent(api, name) for name in ("Ann", "Ben")]
    group = new_group(api, "dynamic", members, manager_agent_id=manager)
    assert names_of(say(api, group)) == ["Maria", "Maria", "Ben"]


def test_the_groups_message_list_shows_each_message_once_and_pages(api: Api) -> None:
    api.server.answers_with(lambda request: f"I am {speaker_of(request)}.")
    group, _ = panel(api, "Ann", "Ben", "Cleo")
    for text in ("One.", "Two."):
        say(api, group, text)
    whole = listed(api, group, order="asc")
    turn = ["I am Ann.", "I am Ben.", "I am Cleo."]
    assert [one["content"] for one in whole] == ["One.", *turn, "Two.", *turn]
    assert [one["id"] for one in listed(api, group)] == [one["id"] for one in whole][::-1]
    ids = [one["id"] for one in whole]
    for order, all_ids in (("asc", ids), ("desc", ids[::-1])):
        assert page_ids(api, group, order, after=all_ids[2]) == all_ids[3:6]
        assert page_ids(api, group, order, before=all_ids[5]) == all_ids[2:5]
    assert listed(api, group, include_return_message_types="user_message", order="asc") == [
        whole[0],
        whole[4],
    ]


def page_ids(api: Api, group: str, order: str, **cursor: str) -> list[str]:
    return [one["id"] for one in listed(api, group, order=order, limit=3, **cursor)]


def test_a_reset_deletes_all_group_messages_also_from_windows(api: Api) -> None:
    api.server.answers_with(speaking())
    group, agents = panel(api, "Ann", "Ben")
    api.client.agents.messages.create(agents["Ann"], input="Between us.")
    say(api, group, message={"otid": "again"})
    assert api.http.patch(f"/v1/groups/{group}/reset-messages").json() is None
    assert listed(api, group) == []
    for name, expected in (("Ann", 3), ("Ben", 1)):
        assert group_messages(api, agents[name], group) == []
        state = api.http.get(f"/v1/agents/{agents[name]}").json()
        assert len(state["message_ids"]) == expected
    assert names_of(say(api, group, message={"otid": "again"})) == ["Ann", "Ben"]


def test_a_group_message_cannot_be_changed(api: Api) -> None:
    group, _ = panel(api, "Ann")
    other, _ = panel(api, "Ben")
    said = say(api, group)["messages"][-1]["id"]
    path, body = f"/messages/{said}", {"message_type": "assistant_message", "content": "No."}
    assert api.http.patch(f"/v1/groups/{group}{path}", json=body).status_code == 405
    assert api.http.patch(f"/v1/groups/{other}{path}", json=body).status_code == 404


@pytest.mark.parametrize(
    ("kind", "words"), [("round_robin", "no agents"), ("sleeptime", "takes no messages")]
)
def test_a_group_in_which_nobody_can_speak_refuses_messages(
    api: Api, kind: str, words: str
) -> None:
    group = new_group(api, kind, [] if kind == "round_robin" else [new_agent(api, "Ann")])
    response = api.http.post(f"/v1/groups/{group}/messages", json={"input": "Hello."})
    assert response.status_code == 400
    assert words in response.json()["detail"]


def test_a_talk_never_exceeds_the_configured_number_of_turns(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_GROUP_TURNS", "5")
    api.server.answers_with(speaking())
    group, agents = panel(api, "Ann", "Ben", max_turns=1000)
    answer = say(api, group)
    assert len(names_of(answer)) == 5
    assert answer["stop_reason"]["stop_reason"] == "max_steps"
    assert [len(group_messages(api, agents[name], group)) for name in ("Ann", "Ben")] == [9, 8]


def test_a_single_member_takes_all_turns(api: Api) -> None:
    api.server.answers_with(speaking())
    group, _ = panel(api, "Ann", max_turns=3)
    assert names_of(say(api, group)) == ["Ann"] * 3


def test_cancelling_a_talk_of_another_process_cancels_its_turn(api: Api) -> None:
    gate = Gate(api.server)
    api.server.answers_with(gate)
    group, agents = panel(api, "Ann", "Ben")
    run = api.http.post(f"/v1/groups/{group}/messages/async", json={"input": "Hello."}).json()
    gate.wait()
    elsewhere = api.server.runtime.live.pop(run["id"])
    api.http.post(f"/v1/agents/{agents['Ann']}/messages/cancel", json={"run_ids": [run["id"]]})
    assert {one.status for one in api.client.runs.list(agent_id=agents["Ann"])} == {"cancelled"}
    gate.open()
    api.server.run(elsewhere.wait())
    assert {one.status for one in api.client.runs.list(agent_id=agents["Ann"])} == {"cancelled"}
    assert api.client.runs.list(agent_id=agents["Ben"]).items == []


def test_a_client_retry_without_an_otid_returns_the_first_talk(api: Api) -> None:
    api.server.answers_with(speaking())
    group, agents = panel(api, "Ann", "Ben")
    first = api.http.post(f"/v1/groups/{group}/messages", json={"input": "Hello."}).json()
    retry = {"x-stainless-retry-count": "1"}
    again = api.http.post(
        f"/v1/groups/{group}/messages", json={"input": "Hello."}, headers=retry
    ).json()
    assert [one["id"] for one in again["messages"]] == [one["id"] for one in first["messages"]]
    assert len(group_messages(api, agents["Ann"], group)) == 4


def test_a_busy_member_gets_the_talk_after_its_turn(api: Api) -> None:
    gate = Gate(api.server)
    group, agents = panel(api, "Ann", "Ben", max_turns=1)
    api.server.answers_with(
        lambda request: "I am Ann." if speaker_of(request) == "Ann" else gate(request)
    )  # type: ignore[arg-type, return-value]
    run = api.client.agents.messages.create_async(agents["Ben"], input="Are you there?")
    gate.wait()
    assert names_of(say(api, group)) == ["Ann"]
    assert group_messages(api, agents["Ben"], group) == []
    gate.open()
    wait_for(lambda: len(group_messages(api, agents["Ben"], group)) == 2)
    assert api.client.runs.retrieve(run.id).status == "completed"
    window = api.http.get(f"/v1/agents/{agents['Ben']}").json()["message_ids"]
    assert [one["id"] for one in group_messages(api, agents["Ben"], group)] == window[-2:]


def test_members_get_the_messages_missed_in_an_interrupted_talk(api: Api) -> None:
    """The server stops after Ann has spoken, and nobody sends the message again."""
    gate = Gate(api.server)
    group, agents = panel(api, "Ann", "Ben")
    api.server.answers_with(
        lambda request: "I am Ann." if speaker_of(request) == "Ann" else gate(request)
    )  # type: ignore[arg-type, return-value]
    run = api.http.post(f"/v1/groups/{group}/messages/async", json={"input": "One."}).json()
    gate.wait()
    talk = api.server.runtime.live[run["id"]]
    api.server.write(lambda tx: [heal(tx, one, is_gone=True) for one in runs.open_runs(tx)])
    gate.open()
    api.server.run(talk.wait())
    api.server.answers_with(lambda request: f"I am {speaker_of(request)}.")
    say(api, group, "Two.")
    said = [one["content"] for one in group_messages(api, agents["Ben"], group)]
    assert sorted(said) == sorted(["One.", "I am Ann.", "Two.", "I am Ann.", "I am Ben."])
