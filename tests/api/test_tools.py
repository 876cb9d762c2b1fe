from typing import Any

import httpx2
from letta_client.types import AgentState

from ricordo.domain.ids import is_id
from ricordo.domain.tool import MULTI_AGENT_TOOLS
from tests.api.conftest import Api
from tests.seams.server import StrictLetta

CORE = "send_message conversation_search archival_memory_insert archival_memory_search"
MEMORY = """core_memory_append core_memory_replace memory_insert memory_replace memory memory_apply_patch list_memory_blocks
    read_memory_block edit_memory_block propose_memory_edit"""
BUILT_IN = """run_code run_code_with_tools web_search fetch_webpage query_student list_workspace search_workspace
    read_workspace_file write_workspace_file edit_workspace_file run_in_workspace render_notes forget
    note_evidence propose_mastery propose_grade open_skill run_skill_script propose_skill"""
FILES = "open_files grep_files semantic_search_files"
TYPES = {
    "letta_builtin": BUILT_IN,
    "letta_core": CORE,
    "letta_files_core": FILES,
    "letta_memory_core": MEMORY,
    "letta_multi_agent_core": " ".join(MULTI_AGENT_TOOLS),
    "letta_sleeptime_core": "memory_rethink memory_finish_edits",
    "letta_voice_sleeptime_core": "search_memory store_memories rethink_user_memory finish_rethinking_memory",
}
TOOLS = {name: type for type, names in TYPES.items() for name in names.split()}


def test_every_tool_of_the_server_is_listed_with_its_schema(api: Api) -> None:
    found = list(api.client.tools.list())

    assert {tool.name: tool.tool_type for tool in found} == TOOLS
    assert api.http.get("/v1/tools/count").json() == len(TOOLS)
    tool = next(tool for tool in found if tool.name == "memory_replace")
    assert api.client.tools.retrieve(tool.id).to_dict() == tool.to_dict()
    assert is_id(tool.id, "tool")
    assert (tool.source_type, tool.return_char_limit, tool.default_requires_approval) == (
        "python",
        50_000,
        False,
    )
    assert tool.tags == ["letta_memory_core"]
    assert (tool.json_schema["name"], tool.json_schema["description"]) == (
        tool.name,
        tool.description,
    )
    parameters: Any = tool.json_schema["parameters"]
    assert parameters["required"] == ["label", "old_string", "new_string"]


def test_tools_are_filtered_by_name_substring_id_and_type(client: StrictLetta) -> None:
    by_name = {tool.name: tool.id for tool in client.tools.list()}

    def names(**query: Any) -> set[str | None]:
        return {tool.name for tool in client.tools.list(**query)}

    assert names(names=["memory_insert", "send_message"]) == {"memory_insert", "send_message"}
    assert names(search="CORE_") == {"core_memory_append", "core_memory_replace"}
    assert names(search="%") == set()
    assert names(tool_ids=[by_name["memory_insert"]]) == {"memory_insert"}
    assert names(tool_types=["letta_sleeptime_core"]) == {"memory_rethink", "memory_finish_edits"}
    assert names(exclude_tool_types=[type for type in TYPES if type != "letta_sleeptime_core"]) == {
        "memory_rethink",
        "memory_finish_edits",
    }


def test_tools_are_counted_with_the_filters_of_the_list(http: httpx2.Client) -> None:
    ids = [tool["id"] for tool in http.get("/v1/tools/", params={"search": "core_"}).json()]
    for query, count in (
        ({}, len(TOOLS)),
        ({"name": "memory_insert", "names": "send_message"}, 2),
        ({"search": "CORE_"}, 2),
        ({"tool_ids": ids}, 2),
        ({"tool_types": "letta_sleeptime_core"}, 2),
        ({"exclude_tool_types": [type for type in TYPES if type != "letta_sleeptime_core"]}, 2),
        ({"names": "none"}, 0),
    ):
        assert http.get("/v1/tools/count", params=query).json() == count, query


def test_attaching_and_detaching_a_tool_twice_changes_nothing_more(
    client: StrictLetta, agent: AgentState
) -> None:
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


def test_the_model_is_offered_the_attached_tools(api: Api, agent: AgentState) -> None:
    # Searches are offered once there is something to find.
    kept = next(tool for tool in agent.tools if not str(tool.name).endswith("_search"))
    for tool in agent.tools:
        if tool.id != kept.id:
            api.client.agents.tools.detach(tool.id, agent_id=agent.id)

    api.client.agents.messages.create(agent.id, input="Hello.")

    assert [tool.name for tool in api.server.model.requests[-1].tools] == [kept.name]
