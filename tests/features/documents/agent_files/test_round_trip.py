"""Export and import of an agent: the copy is equal, and other servers can read the file."""

import copy
import json
import re
from typing import Any

import pytest
from letta_client import BadRequestError, NotFoundError

from ricordo.domain.message import ReasoningPart, TextPart
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.http import Wire, ok, refused
from tests.seams.server import MODEL

ADD = '''
def add_up(one: int, two: int) -> int:
    """Add two numbers.

    Args:
        one: The first.
        two: The second.
    """
    return one + two
'''


def make_agent(api: Api) -> str:
    """Make an agent with everything that a file can hold."""
    tool = api.client.tools.upsert(source_code=ADD)
    base = api.client.tools.list(name="memory_insert").items[0]
    made = api.client.agents.create(
        model=MODEL,
        name="Tutor",
        description="Teaches.",
        system="You teach.",
        tags=["school"],
        metadata={"year": 1},
        timezone="Europe/Rome",
        memory_blocks=[
            {"label": "human", "value": "Ada."},
            {"label": "rules", "value": "Be kind.", "read_only": True},
        ],
        tool_ids=[tool.id, base.id],
        tool_rules=[{"type": "exit_loop", "tool_name": "add_up"}],
        include_base_tools=False,
        secrets={"SHOP_KEY": "hush"},
        model_settings={"provider_type": "openai", "temperature": 0.3},
        context_window_limit=9_000,
    )
    api.server.says(
        (
            ReasoningPart("Hm."),
            TextPart("I note it."),
            call("memory_insert", label="human", new_string="x"),
        ),
        "Done.",
    )
    api.client.agents.messages.create(made.id, input="I like tea.")
    api.server.says("A thread.")
    thread = api.client.conversations.create(agent_id=made.id, summary="Second")
    list(
        api.client.conversations.messages.create(
            thread.id, messages=[{"role": "user", "content": "Hello there."}]
        )
    )
    api.client.agents.passages.create(
        made.id, text="Tea grows in Darjeeling.", tags=["tea"], created_at="2024-05-01T10:00:00Z"
    )
    api.client.agents.passages.create(made.id, text="Coffee grows in Ethiopia.")
    folder = api.client.folders.create(name=f"Shelf of {made.id}")
    api.client.agents.folders.attach(folder.id, agent_id=made.id)
    api.client.folders.files.upload(folder.id, file=("plan.txt", b"Lesson one.\nLesson two.\n"))
    wait_for_files(api, made.id)
    return made.id


def wait_for_files(api: Api, agent_id: str) -> None:
    for folder in api.client.agents.folders.list(agent_id).items:
        while ok(api.http.get(f"/v1/folders/{folder.id}/files"))[0]["processing_status"] not in (
            "completed",
            "error",
        ):
            pass


def export(api: Api, agent_id: str, **query: Any) -> Wire:
    return dict(ok(api.http.get(f"/v1/agents/{agent_id}/export", params=query)))


def import_agent(api: Api, file: Any, **form: Any) -> str:
    content = file if isinstance(file, bytes) else json.dumps(file).encode()
    (made,) = api.client.agents.import_file(file=("agent.af", content), **form).agent_ids
    return made


def comparable(file: Wire) -> str:
    """Return the file without the parts that always differ.

    These are names, creation times, and the prompt, which has the agent's id.
    """
    file = copy.deepcopy(file)
    for message in (
        *file["agents"][0]["messages"],
        *file["ricordo"]["agents"]["agent-0"]["messages"],
    ):
        if message["role"] == "system":
            message.clear()
    text = json.dumps({**file, "created_at": ""}, sort_keys=True)
    text = re.sub(r'"Tutor(_copy)?"', '"Tutor"', text)
    return re.sub(r"Shelf of [^\" ]+( \(\d\))?", "Shelf", text)


def test_an_agent_is_imported_as_exported(api: Api) -> None:
    agent = make_agent(api)
    file = export(api, agent)
    assert json.loads(api.client.agents.export_file(agent)) | {"created_at": ""} == file | {
        "created_at": ""
    }
    made = import_agent(api, file)
    wait_for_files(api, made)
    assert comparable(export(api, made)) == comparable(file)
    state = api.client.agents.retrieve(made)
    assert (state.name, state.description, state.system, state.timezone) == (
        "Tutor_copy",
        "Teaches.",
        "You teach.",
        "Europe/Rome",
    )
    assert {block.label: (block.value, block.read_only) for block in state.blocks} == {
        "human": ("Ada.\nx", False),
        "rules": ("Be kind.", True),
    }
    assert {tool.name for tool in state.tools} >= {"add_up", "memory_insert", "grep_files"}
    # The copy continues where the original was: its messages are in the window, and search finds
    # them.
    api.server.says("You like tea.")
    api.client.agents.messages.create(made, input="What do I like?")
    asked = api.server.model.requests[-1].messages
    assert [message.text for message in asked if message.role == "user"] == [
        "I like tea.",
        "What do I like?",
    ]
    assert "x" in asked[0].text
    found = api.client.agents.passages.search(made, query="Darjeeling").results
    assert [(one.content, one.tags) for one in found][:1] == [("Tea grows in Darjeeling.", ["tea"])]
    threads = api.client.conversations.list(agent_id=made)
    assert [one.summary for one in threads] == ["Second"]
    said = [
        one.content
        for one in api.client.conversations.messages.list(threads[0].id)
        if one.message_type == "user_message"
    ]
    assert said == ["Hello there."]
    # The original is unchanged.
    assert comparable(export(api, agent)) == comparable(file)


def test_an_export_omits_secret_values_and_an_import_accepts_new_ones(api: Api) -> None:
    agent = make_agent(api)
    file = export(api, agent)
    assert file["agents"][0]["secrets"] == {"SHOP_KEY": ""}
    assert "hush" not in json.dumps(file)
    made = import_agent(api, file, secrets='{"SHOP_KEY": "new"}', name="Shop", model=MODEL)
    state = api.client.agents.retrieve(made)
    assert (state.name, [one.key for one in state.secrets or ()]) == ("Shop", ["SHOP_KEY"])


def test_messages_can_be_left_out_of_export_and_import(api: Api) -> None:
    agent = make_agent(api)
    assert "I like tea." not in json.dumps(export(api, agent, scrub_messages=True))
    made = import_agent(api, export(api, agent), strip_messages=True, append_copy_suffix=False)
    assert api.client.agents.retrieve(made).name == "Tutor"
    assert [one.message_type for one in api.client.agents.messages.list(made)] == ["system_message"]
    assert api.client.conversations.list(agent_id=made) == []
    thread = api.client.conversations.list(agent_id=agent)[0]
    file = export(api, agent, conversation_id=thread.id)
    assert [one["role"] for one in file["agents"][0]["messages"]] == ["system", "user", "assistant"]


def test_an_imported_tool_replaces_an_existing_one_only_when_requested(api: Api) -> None:
    agent = make_agent(api)
    file = export(api, agent)
    api.client.tools.upsert(source_code=ADD.replace("one + two", "one - two"))
    import_agent(api, file, override_existing_tools=False)
    assert "one - two" in (api.client.tools.list(name="add_up").items[0].source_code or "")
    import_agent(api, file)
    assert "one + two" in (api.client.tools.list(name="add_up").items[0].source_code or "")


OTHERS: Wire = {
    "agents": [
        {
            "id": "agent-0",
            "name": "Sam",
            "agent_type": "memgpt_agent",
            "system": "You are Sam.",
            "llm_config": {
                "model": "model",
                "model_endpoint_type": "scripted",
                "context_window": 32_000,
            },
            "embedding_config": {
                "embedding_model": "x",
                "embedding_endpoint_type": "openai",
                "embedding_dim": 9,
            },
            "block_ids": ["block-0"],
            "tool_ids": ["tool-0", "tool-1"],
            "tool_rules": [
                {"type": "exit_loop", "tool_name": "send_message"},
                {"type": "exit_loop", "tool_name": "gone"},
            ],
            "in_context_message_ids": ["message-0", "message-1", "message-2", "message-3"],
            "messages": [
                {
                    "id": "message-0",
                    "role": "system",
                    "content": [{"type": "text", "text": "You are Sam."}],
                },
                {
                    "id": "message-1",
                    "role": "user",
                    "content": [
                        {
                            "type": "text",
                            "text": '{"type": "user_message", "message": "Hi Sam.", "time": "now"}',
                        }
                    ],
                    "created_at": "2025-01-02T03:04:05+00:00",
                },
                {
                    "id": "message-2",
                    "role": "assistant",
                    "content": [{"type": "text", "text": "She greets me."}],
                    "tool_calls": [
                        {
                            "id": "call-1",
                            "type": "function",
                            "function": {"name": "send_message", "arguments": '{"message": "Hi!"}'},
                        }
                    ],
                },
                {
                    "id": "message-3",
                    "role": "tool",
                    "name": "send_message",
                    "tool_call_id": "call-1",
                    "content": [
                        {
                            "type": "text",
                            "text": '{"status": "OK", "message": "None", "time": "now"}',
                        }
                    ],
                },
            ],
        }
    ],
    "groups": [],
    "blocks": [
        {"id": "block-0", "label": "human", "value": "Ada.", "limit": 5000, "is_template": False}
    ],
    "files": [],
    "sources": [],
    "tools": [
        {
            "id": "tool-0",
            "name": "send_message",
            "tool_type": "letta_core",
            "source_code": "def send_message(): ...",
        },
        {"id": "tool-1", "name": "gone", "tool_type": "external_mcp", "json_schema": {}},
    ],
    "mcp_servers": [],
    "metadata": {"revision_id": "495f3f474131"},
    "created_at": "2025-01-02T03:04:05Z",
}


def test_a_file_from_a_letta_server_is_imported(api: Api) -> None:
    made = import_agent(api, OTHERS)
    state = api.client.agents.retrieve(made)
    assert (state.name, state.model, state.llm_config.context_window) == ("Sam_copy", MODEL, 32_000)
    assert [tool.name for tool in state.tools] == ["send_message"]
    assert [rule.tool_name for rule in state.tool_rules or ()] == ["send_message"]
    shown = api.client.agents.messages.list(made, use_assistant_message=False).items
    kinds = [one.message_type.removesuffix("_message") for one in shown]
    assert kinds == ["system", "user", "assistant", "tool_call", "tool_return"]
    assert (shown[1].content, shown[4].tool_return) == ("Hi Sam.", "None")  # type: ignore[union-attr]
    assert shown[1].date.year == 2025


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"no json", "is not JSON"),
        (b"", "is empty"),
        (b"[]", "it has no list of agents"),
        ({"agents": []}, "its list of agents is empty"),
        ({"agents": "many"}, "it has no list of agents"),
        (json.dumps(OTHERS).encode()[:-300], "It seems to be cut off"),
        (json.dumps(OTHERS, indent=1).encode()[:1500], "cut off"),
        (json.dumps(OTHERS).replace('"groups":', "groups:").encode(), "at line 1, column"),
        (json.dumps(OTHERS).encode() + b"}", "Extra data at line 1, column"),
        (json.dumps(OTHERS).encode()[:-1] + b",}", "near '}'"),
        (b'{"agents": [1, 2', "16 characters, at line 1, column 17. It seems to be cut off"),
    ],
    ids=range(11),
)
def test_invalid_agent_files_are_refused_with_the_position_and_store_nothing(
    api: Api, file: Any, words: str
) -> None:
    rows = api.server.rows()
    with pytest.raises(BadRequestError) as caught:
        import_agent(api, file)
    assert words in str(caught.value)
    assert api.server.rows() == rows


def test_an_unknown_model_is_reported_and_can_be_overridden(api: Api) -> None:
    file = {
        **OTHERS,
        "agents": [
            {
                **OTHERS["agents"][0],
                "llm_config": {"handle": "scripted/gone", "context_window": 9_000},
            }
        ],
    }
    with pytest.raises(NotFoundError, match="scripted/none not found"):
        import_agent(api, file, model="scripted/none")
    content = json.dumps(file).encode()
    answer = api.client.agents.import_file(file=("agent.af", content))
    (warning,) = [one for one in getattr(answer, "warnings", []) if "scripted/gone" in one]
    assert "cannot be used here" in warning
    assert f"so it has {api.client.agents.retrieve(answer.agent_ids[0]).model}" in warning
    assert (
        api.client.agents.retrieve(import_agent(api, file, override_model_handle=MODEL)).model
        == MODEL
    )
    agent = import_agent(api, OTHERS)
    assert "Legacy format is not supported" in refused(
        api.http.get(f"/v1/agents/{agent}/export", params={"use_legacy_format": True}), 400
    )
    assert ok(api.http.post(f"/v1/agents/{agent}/export"))["agents"][0]["name"] == "Sam_copy"


def test_an_export_contains_no_other_users_memory_or_messages(api: Api) -> None:
    for user in ("ada", "bea"):
        api.http.post("/v1/users/", json={"name": user})
    agent = api.client.agents.create(
        model=MODEL, memory_blocks=[{"label": "rules", "value": "Be kind."}]
    )
    for user, secret in (("ada", "zebra"), ("bea", "quagga")):
        headers = {"x-ricordo-user": user}
        ok(api.http.put(f"/users/{user}/blocks/notes", json={"body": f"A {secret}."}))
        api.server.says("Yes.")
        body = {"input": f"My {secret} is ill."}
        ok(api.http.post(f"/v1/agents/{agent.id}/messages", json=body, headers=headers))
        ok(
            api.http.post(
                f"/v1/agents/{agent.id}/archival-memory",
                json={"text": f"The {secret} again."},
                headers=headers,
            )
        )
    text = json.dumps(export(api, agent.id))
    assert ("zebra" in text, "quagga" in text, "Be kind." in text) == (False, False, True)
    hers = api.http.get(f"/v1/agents/{agent.id}/export", headers={"x-ricordo-user": "ada"}).text
    # Her export contains her conversation, with the prompt that shows her blocks.
    assert ("zebra is ill" in hers, "quagga" in hers) == (True, False)


def test_an_export_of_another_conversation_keeps_the_agents_tags_and_settings(api: Api) -> None:
    agent = make_agent(api)
    thread = api.client.conversations.create(agent_id=agent)
    of_default = export(api, agent)["agents"][0]
    of_thread = export(api, agent, conversation_id=thread.id)["agents"][0]
    threads = ("messages", "in_context_message_ids")
    assert of_thread["tags"] == ["school"]
    assert {name: field for name, field in of_thread.items() if name not in threads} == {
        name: field for name, field in of_default.items() if name not in threads
    }
