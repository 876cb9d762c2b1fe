from typing import Any

import httpx2
from letta_client.types import AgentState

from ricordo.domain.ids import is_id
from tests.seams.server import ServerInThread, StrictLetta

TOOLS = {
    "send_message": "letta_core",
    "conversation_search": "letta_core",
    "archival_memory_insert": "letta_core",
    "archival_memory_search": "letta_core",
    "core_memory_append": "letta_memory_core",
    "core_memory_replace": "letta_memory_core",
    "memory_insert": "letta_memory_core",
    "memory_replace": "letta_memory_core",
    "memory": "letta_memory_core",
    "memory_apply_patch": "letta_memory_core",
    "memory_rethink": "letta_sleeptime_core",
    "memory_finish_edits": "letta_sleeptime_core",
    "list_memory_blocks": "letta_memory_core",
    "read_memory_block": "letta_memory_core",
    "edit_memory_block": "letta_memory_core",
    "propose_memory_edit": "letta_memory_core",
}


def test_every_tool_of_the_server_is_listed(client: StrictLetta, http: httpx2.Client) -> None:
    found = list(client.tools.list())

    assert {tool.name: tool.tool_type for tool in found} == TOOLS
    assert http.get("/v1/tools/count").json() == len(TOOLS)


def test_a_tool_shows_how_it_is_called(client: StrictLetta) -> None:
    listed = client.tools.list(name="memory_replace").items[0]

    tool = client.tools.retrieve(listed.id)

    assert tool.to_dict() == listed.to_dict()
    assert is_id(tool.id, "tool")
    assert (tool.name, tool.tool_type, tool.source_type) == ("memory_replace", "letta_memory_core", "python")
    assert tool.json_schema is not None
    assert tool.json_schema["name"] == "memory_replace"
    parameters: Any = tool.json_schema["parameters"]
    assert parameters["required"] == ["label", "old_string", "new_string"]
    assert tool.description == tool.json_schema["description"]
    assert (tool.return_char_limit, tool.default_requires_approval, tool.tags) == (50_000, False, ["letta_memory_core"])


def test_tools_are_found_by_name_piece_id_and_type(client: StrictLetta) -> None:
    by_name = {tool.name: tool.id for tool in client.tools.list()}

    def names(**query: Any) -> set[str | None]:
        return {tool.name for tool in client.tools.list(**query)}

    assert names(names=["memory_insert", "send_message"]) == {"memory_insert", "send_message"}
    assert names(search="CORE_") == {"core_memory_append", "core_memory_replace"}
    assert names(search="%") == set()
    assert names(tool_ids=[by_name["memory_insert"]]) == {"memory_insert"}
    assert names(tool_types=["letta_sleeptime_core"]) == {"memory_rethink", "memory_finish_edits"}
    assert names(exclude_tool_types=["letta_core", "letta_memory_core"]) == {"memory_rethink", "memory_finish_edits"}


def test_a_tool_is_attached_once_and_detached(client: StrictLetta, agent: AgentState) -> None:
    speech = client.tools.list(name="send_message").items[0]
    had = [tool.name for tool in agent.tools]

    once = client.agents.tools.attach(speech.id, agent_id=agent.id)
    twice = client.agents.tools.attach(speech.id, agent_id=agent.id)
    assert [tool.name for tool in once.tools] == [*had, "send_message"]
    assert twice.to_dict() == once.to_dict()
    assert {tool.name for tool in client.agents.tools.list(agent.id)} == {*had, "send_message"}

    detached = client.agents.tools.detach(speech.id, agent_id=agent.id)
    assert [tool.name for tool in detached.tools] == had
    assert client.agents.tools.detach(speech.id, agent_id=agent.id).to_dict() == detached.to_dict()


def test_what_is_attached_is_what_the_model_is_offered(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    for tool in agent.tools[1:]:
        client.agents.tools.detach(tool.id, agent_id=agent.id)

    client.agents.messages.create(agent.id, input="Hello.")

    assert [tool.name for tool in server.model.requests[-1].tools] == [agent.tools[0].name]
