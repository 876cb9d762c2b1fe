"""A talk that the end of a server interrupted, and that is sent again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ricordo.domain.job import Job
from ricordo.domain.model import ModelRequest
from ricordo.features.groups import talk_resume
from tests.api.conftest import Api
from tests.features.groups.talking import group_messages, panel, speaker_of
from tests.features.groups.test_pauses import gated_once, paused, result
from tests.seams.server import Gate, serving
from tests.seams.waiting import wait_for


def test_a_talk_cut_off_by_a_shutdown_continues_where_it_stopped(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "Hello.", "otid": "one"}]}
    with (
        serving(tmp_path, shutdown_grace=0) as server,
        server.client() as client,
        server.http() as http,
    ):
        group, agents = panel(Api(server, client, http), "Ann", "Ben", "Cleo")
        gate = Gate(server)

        def answer(request: ModelRequest) -> Any:
            return gate(request) if speaker_of(request) == "Ben" else "I spoke first."

        server.answers_with(answer)
        http.post(f"/v1/groups/{group}/messages/async", json=body)
        gate.wait()
    with serving(tmp_path) as server, server.client() as client, server.http() as http:
        server.answers_with(lambda _request: "I spoke after the restart.")
        api = Api(server, client, http)
        response = http.post(f"/v1/groups/{group}/messages", json=body)
        assert response.status_code == 200, response.text
        texts = [one["content"] for one in response.json()["messages"]]
        assert texts == [
            "I spoke first.",
            "I spoke after the restart.",
            "I spoke after the restart.",
        ]
        assert [len(group_messages(api, agents[name], group)) for name in agents] == [4, 4, 4]


@contextmanager
def api_on(folder: Path, **settings: Any) -> Iterator[Api]:
    with serving(folder, **settings) as server, server.client() as client, server.http() as http:
        yield Api(server, client, http)


def resume(api: Api) -> None:
    """Resume interrupted talks, as a server does once a minute."""
    job = Job(talk_resume.KIND, "")
    api.server.run(talk_resume.resume_talks(api.server.runtime, job, lambda _done, _all: None))


def texts_of(api: Api, agent_id: str, group: str) -> list[str]:
    return [one["content"] for one in group_messages(api, agent_id, group) if "content" in one]


@pytest.mark.parametrize("stops_at", ["the resumed talk", "the end of the member's turn"])
def test_a_talk_resumed_in_the_background_continues_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: str
) -> None:
    async def nothing(_runtime: Any, _run: Any) -> None:
        """Replaces the next step, as if the server was killed right after the member's turn."""

    with api_on(tmp_path, shutdown_grace=0) as api:
        group, agents, call_id = paused(api)
        gate = Gate(api.server)

        def answer(request: ModelRequest) -> Any:
            return gate(request) if speaker_of(request) == "Cleo" else gated_once(request)

        api.server.answers_with(answer)
        if stops_at == "the end of the member's turn":
            monkeypatch.setattr(talk_resume, "resume_after_answer", nothing)
        api.http.post(f"/v1/agents/{agents['Ben']}/messages", json=result(call_id))
        if stops_at == "the resumed talk":
            gate.wait()
    monkeypatch.undo()
    with api_on(tmp_path) as api:
        api.server.answers_with(gated_once)
        resume(api)
        for name in agents:
            texts = texts_of(api, agents[name], group)
            assert texts[:2] == ["Hello all.", "I am Ann."]
            assert "21 degrees" in texts[2]
            assert texts[3:] == ["I am Cleo."]
        resume(api)
        assert [len(texts_of(api, agents[name], group)) for name in agents] == [4, 4, 4]


def test_a_repeated_tool_result_continues_the_talk_after_a_restart(tmp_path: Path) -> None:
    with api_on(tmp_path, shutdown_grace=0) as api:
        group, agents, call_id = paused(api)
        gate = Gate(api.server)
        api.server.answers_with(gate)
        body = result(call_id)
        api.http.post(f"/v1/agents/{agents['Ben']}/messages/async", json=body)
        gate.wait()
    with api_on(tmp_path) as api:
        api.server.answers_with(gated_once)
        resume(api)
        assert texts_of(api, agents["Cleo"], group) == []
        response = api.http.post(f"/v1/agents/{agents['Ben']}/messages", json=body)
        assert response.status_code == 200, response.text
        wait_for(lambda: "I am Cleo." in texts_of(api, agents["Ann"], group))
        assert "21 degrees" in texts_of(api, agents["Ann"], group)[2]


def test_a_talk_with_a_pending_call_is_not_resumed(tmp_path: Path) -> None:
    with api_on(tmp_path) as api:
        group, agents, _ = paused(api)
        resume(api)
        assert texts_of(api, agents["Cleo"], group) == []
