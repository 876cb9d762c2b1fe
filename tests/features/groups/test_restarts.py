"""A talk that was cut off by the end of a server, and is sent again."""

from pathlib import Path
from typing import Any

from ricordo.domain.model import ModelRequest
from tests.features.groups.talking import Api, held, panel, speaker_of
from tests.seams.server import Gate, serving


def test_a_talk_that_a_shutdown_cut_off_goes_on_where_it_stopped(tmp_path: Path) -> None:
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
        assert [len(held(api, agents[name], group)) for name in agents] == [4, 4, 4]
