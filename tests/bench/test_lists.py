"""The bench of lists requests every list of the OpenAPI document, also of routes added later."""

from pathlib import Path

import pytest

from bench import lists
from bench.servers import Server
from tests.seams.http import propose, put
from tests.seams.server import serving


@pytest.mark.soak
def test_every_list_of_the_document_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_PAGE", 2), ("_ROUNDS", 1), ("_SETTLES", 0)):
        monkeypatch.setattr(lists, name, value)
    with serving(tmp_path) as server, server.http() as http:
        agents = [server.client().agents.create(model="scripted/model").id for _ in range(3)]
        for agent in agents:
            server.says("Hello.")
            server.client().agents.messages.create(agent, input="Hello.")
        put(http, "person 0", "notes", "one")
        propose(http, "person 0", "notes", "one", "two", agent_id="tutor")
        measured = list(lists.measure(Server(server.url, None, 0.0)))  # type: ignore[arg-type]
    assert len(measured) > 60
