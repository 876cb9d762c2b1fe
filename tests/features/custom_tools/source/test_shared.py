"""Tools belong to an organization.

Everybody in it may use them, callers who may write tools change them, and the cost of many tools is
bounded.
"""

import pytest

from tests.api.conftest import Api
from tests.seams.server import MODEL, serving
from tests.seams.stores import count_statements


def source(number: int) -> str:
    return f'def tool_{number}(word: str) -> str:\n    """Say the word."""\n    return word'


def test_a_turn_with_twenty_tools_runs_no_more_statements(api: Api) -> None:
    ids = [api.client.tools.create(source_code=source(number)).id for number in range(20)]
    statements = []
    for tool_ids in ([], ids):
        agent = api.client.agents.create(model=MODEL, tool_ids=tool_ids, include_base_tools=False)
        api.client.agents.messages.create(agent.id, input="Hello.")
        with count_statements(api.server.runtime.store) as counted:
            api.client.agents.messages.create(agent.id, input="Hello again.")
        statements.append(len(counted.statements))
    assert statements[1] == statements[0]
    for id in ids:
        api.client.tools.delete(id)


def test_the_network_needs_a_tag_and_the_operators_permission(api: Api) -> None:
    sent = {"source_code": source(1), "args": {"word": "x"}, "tags": ["network"]}
    answer = api.http.post("/v1/tools/run", json=sent)
    assert answer.status_code == 403
    assert "RICORDO_SANDBOX_NETWORK=true" in answer.text
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RICORDO_SANDBOX_NETWORK", "true")
        sees = (
            'import os\ndef sees() -> bool:\n    """See."""\n    return "HTTPS_PROXY" in os.environ'
        )
        with serving(api.server.settings.data_dir.parent / "open") as server, server.http() as http:
            for tags, has_network in ((["network"], True), ([], False)):
                answer = http.post("/v1/tools/run", json={"source_code": sees, "tags": tags})
                assert answer.json()["func_return"] is has_network
