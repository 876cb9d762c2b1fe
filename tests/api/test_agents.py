"""Agents, with the official client: creation, lists, changes, deletion, and context windows."""

import asyncio
from typing import Any

import httpx2
import pytest
from letta_client import NotFoundError
from letta_client.types import AgentState

from ricordo.agents.agent_types import TRAITS
from ricordo.domain.ids import is_id, new_id
from ricordo.domain.scope import LOCAL_USER
from ricordo.storage.engine.store import name_of
from tests.api.conftest import Api
from tests.seams.http import ok, refused
from tests.seams.server import MODEL, Gate, StrictLetta
from tests.seams.stores import count_statements


@pytest.fixture
def block_id(client: StrictLetta) -> str:
    return client.blocks.create(label="project", value="Ricordo").id


@pytest.mark.parametrize(
    ("value", "variables", "filled"),
    [
        ("{{name}} likes {{drink}}.", {"name": "Ada", "drink": "tea"}, "Ada likes tea."),
        ("{{ name }}, {{name}}, {{  name}}", {"name": "Ada"}, "Ada, Ada, Ada"),
        ("{{name}} of {{town}}", {"name": "Ada"}, "Ada of {{town}}"),
        ("{{a}}{{b}}", {"a": "{{b}}", "b": "c"}, "{{b}}c"),
        ("{name} {{{name}}}", {"name": "Ada"}, "{name} {Ada}"),
        (
            "{{user.name}} {{the-town}} {{x_1}}",
            {"user.name": "Ada", "the-town": "Rome", "x_1": "y"},
            "Ada Rome y",
        ),
        ("{{città}}", {"citta\u0300": "Torino"}, "Torino"),
        ("{{name}}", {"name": ""}, ""),
        ("{{name}}", {"name": r"\1 \g<0>"}, r"\1 \g<0>"),
        ("{{Name}} {{name}}", {"Name": "A", "name": "b"}, "A b"),
        ("{{name}}", {}, "{{name}}"),
    ],
)
def test_variables_of_a_new_agent_are_filled_into_its_blocks(
    client: StrictLetta, value: str, variables: dict[str, str], filled: str
) -> None:
    made = client.agents.create(
        model=MODEL, memory_blocks=[{"label": "human", "value": value}], memory_variables=variables
    )
    assert [block.value for block in made.blocks] == [filled]


def test_a_memory_variable_that_no_new_block_has_is_refused(
    http: httpx2.Client, block_id: str
) -> None:
    http.patch(f"/v1/blocks/{block_id}", json={"value": "{{drink}}"})
    count = ok(http.get("/v1/agents/count"))
    body: dict[str, Any] = {
        "model": MODEL,
        "block_ids": [block_id],
        "memory_variables": {"drink": "tea"},
    }
    told = refused(http.post("/v1/agents/", json=body), 400)
    assert (
        told == 'INVALID_ARGUMENT: No new block of the agent has the variable "drink". '
        "The new blocks have the variables: none."
    )
    body["memory_blocks"] = [{"label": "human", "value": "{{name}} {{town}}"}]
    told = refused(http.post("/v1/agents/", json=body), 400)
    assert told.endswith("The new blocks have the variables: name, town.")
    body["memory_blocks"][0] |= {"value": "{{drink}}", "limit": 2}
    assert "would hold 3 characters, but its limit is 2" in refused(
        http.post("/v1/agents/", json=body), 422
    )
    assert ok(http.get("/v1/agents/count")) == count


def test_a_new_agent_has_all_the_fields_it_was_created_with(
    client: StrictLetta, http: httpx2.Client, block_id: str
) -> None:
    rethink = client.tools.list(name="memory_rethink").items[0]
    settings = {"provider_type": "openai", "temperature": 0.25, "max_output_tokens": 512}
    settings |= {"parallel_tool_calls": True, "reasoning": {"reasoning_effort": "low"}}
    plain: dict[str, Any] = {
        "name": "Nina",
        "description": "A companion",
        "system": "Be kind.",
        "model": MODEL,
        "embedding": "scripted/embedder",
        "model_settings": settings,
        "metadata": {"course": "Logic"},
        "timezone": "Europe/Rome",
        "hidden": True,
        "max_files_open": 3,
        "per_file_view_window_char_limit": 1000,
    }
    human = {
        "label": "human",
        "value": "Ada",
        "description": "Whom I talk to",
        "limit": 50,
        "metadata": {"a": [1]},
    }
    made = client.agents.create(
        **plain,
        context_window_limit=8192,
        memory_blocks=[human, {"label": "rules", "value": "Be brief.", "read_only": True}],
        block_ids=[block_id],
        tools=["send_message"],
        tool_ids=[rethink.id],
        tags=["b", "a", "b"],
    )

    shown = http.get(f"/v1/agents/{made.id}").json()
    assert client.agents.retrieve(made.id).to_dict() == made.to_dict()
    assert is_id(made.id, "agent")
    assert shown["model_settings"] == settings | {"strict": False}
    del plain["model_settings"]
    assert {name: shown[name] for name in plain} == plain
    assert (shown["agent_type"], shown["tags"], len(shown["message_ids"])) == (
        "letta_v1_agent",
        ["a", "b"],
        1,
    )
    assert shown["created_by_id"] == shown["last_updated_by_id"] == LOCAL_USER
    assert (made.llm_config.handle, made.llm_config.model, made.llm_config.context_window) == (
        MODEL,
        "model",
        8192,
    )
    assert (made.llm_config.temperature, made.llm_config.max_tokens) == (0.25, 512)
    assert made.llm_config.parallel_tool_calls is True
    assert [(block.label, block.value, block.limit, block.read_only) for block in made.blocks] == [
        ("human", "Ada", 50, False),
        ("rules", "Be brief.", 100_000, True),
        ("project", "Ricordo", 100_000, False),
    ]
    assert {name: shown["blocks"][0][name] for name in human} == human
    assert shown["memory"]["blocks"] == shown["blocks"]
    assert made.blocks[2].id == block_id
    base = TRAITS["letta_v1_agent"].base_tools
    assert [tool.name for tool in made.tools] == [*base, "forget", "send_message", "memory_rethink"]


def test_an_agent_created_without_fields_gets_the_librarian_and_the_base_tools(
    client: StrictLetta,
) -> None:
    made = client.agents.create()

    # No embedding was chosen, so none is shown, as in the retired server; texts are embedded
    # anyway.
    assert (made.model, made.embedding, made.embedding_config) == ("ricordo/librarian", None, None)
    asked = client.agents.create(embedding="ricordo/wordllama-256")
    assert (asked.embedding_config.handle, asked.embedding_config.embedding_dim) == (
        asked.embedding,
        256,
    )
    assert made.name.startswith("agent-")
    assert made.system.startswith("<base_instructions>")
    assert [tool.name for tool in made.tools] == [
        *TRAITS["letta_v1_agent"].base_tools,
        "forget",
    ]
    assert (made.blocks, made.tags, made.tool_rules, made.sources) == ([], [], [], [])
    assert (made.metadata, made.timezone, made.hidden, made.enable_sleeptime) == (
        {},
        "UTC",
        False,
        False,
    )
    assert (made.last_run_completion, made.last_stop_reason, made.pending_approval) == (
        None,
        None,
        None,
    )


def test_legacy_llm_configs_and_provider_specific_settings_are_accepted(
    client: StrictLetta, http: httpx2.Client
) -> None:
    assert client.agents.create(model=MODEL, include_base_tools=False).tools == []
    for config in (
        {"handle": MODEL, "context_window": 8000},
        {"model": "model", "provider_name": "scripted"},
    ):
        assert http.post("/v1/agents/", json={"llm_config": config}).json()["model"] == MODEL
    # Settings that only one provider knows are stored and returned like the others.
    settings = {
        "provider_type": "openai",
        "verbosity": "low",
        "temperature": 0.5,
        "frequency_penalty": None,
    }
    made = http.post("/v1/agents/", json={"model": MODEL, "model_settings": settings}).json()
    assert (
        made["model_settings"].items()
        >= {"provider_type": "openai", "temperature": 0.5, "verbosity": "low"}.items()
    )
    assert client.agents.retrieve(made["id"]).id == made["id"]


def test_an_update_changes_only_the_fields_that_were_sent(
    client: StrictLetta, agent: AgentState
) -> None:
    before = client.agents.retrieve(agent.id).to_dict()

    after = client.agents.update(agent.id, name="Mina", tags=["y", "x", "y"]).to_dict()

    changed = {key for key in after if after[key] != before[key]}
    assert changed == {"name", "tags", "updated_at"}
    assert (after["name"], after["tags"]) == ("Mina", ["x", "y"])
    assert client.agents.retrieve(agent.id).to_dict() == after


def test_every_field_of_an_agent_can_be_changed(api: Api, agent: AgentState, block_id: str) -> None:
    speech = api.client.tools.list(name="send_message").items[0]
    plain: dict[str, Any] = {
        "description": "Older",
        "system": "Be short.",
        "metadata": {"n": 1},
        "timezone": "Asia/Tokyo",
        "hidden": True,
        "model_settings": {"provider_type": "openai", "temperature": 0.5},
        "embedding": "ricordo/wordllama-256",
        "max_files_open": 2,
    }

    api.client.agents.update(
        agent.id, **plain, context_window_limit=9000, block_ids=[block_id], tool_ids=[speech.id]
    )

    now = api.http.get(f"/v1/agents/{agent.id}").json()
    assert now["model_settings"].items() >= plain.pop("model_settings").items()
    assert {name: now[name] for name in plain} == plain
    assert (now["llm_config"]["temperature"], now["llm_config"]["context_window"]) == (0.5, 9000)
    assert [block["id"] for block in now["blocks"]] == [block_id]
    assert [tool["name"] for tool in now["tools"]] == ["send_message"]
    # Null removes the description and keeps the other fields; another model brings its window.
    nulls = {"description": None, "system": None, "metadata": None, "name": None}
    after = api.http.patch(f"/v1/agents/{agent.id}", json=nulls).json()
    assert [after[name] for name in nulls] == [None, "Be short.", {"n": 1}, "Nina"]
    smaller = api.client.agents.update(agent.id, model="scripted/small")
    chosen = api.client.agents.update(agent.id, model=MODEL, context_window_limit=5000)
    assert (smaller.model, smaller.llm_config.context_window) == ("scripted/small", 16_000)
    assert (chosen.model, chosen.llm_config.context_window) == (MODEL, 5000)


def test_a_change_keeps_what_another_request_changed_meanwhile(
    api: Api, agent: AgentState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other request is answered after this one has read, and before it writes."""
    source = 'def add(one: int) -> int:\n    """Add."""\n    return one\n'
    tool = api.client.tools.create(source_code=source).id
    thread = api.client.conversations.create(agent_id=agent.id).id
    two = source.replace("one: int", "one: int, two: int")
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        (f"/v1/agents/{agent.id}", {"name": "Ona"}, {"embedding": "scripted/embedder"}),
        (
            f"/v1/conversations/{thread}",
            {"context_window_limit": None},
            {"model": "scripted/small", "context_window_limit": 9_000},
        ),
        (f"/v1/tools/{tool}", {"description": "Adds."}, {"source_code": two}),
        ("/v1/tools/", {"source_code": two, "tags": ["a"]}, {"source_code": source}),
    ]
    store = api.server.runtime.store
    read = store.read
    waiting: list[tuple[str, dict[str, Any]]] = []

    async def read_and_wait(work: Any) -> Any:
        rows = await read(work)
        if waiting and name_of(work).startswith(("modify", "upsert", "change_conversation")):
            path, other = waiting.pop()
            method = "PUT" if path.endswith("/") else "PATCH"
            ok(await asyncio.to_thread(api.http.request, method, path, json=other))
        return rows

    monkeypatch.setattr(store, "read", read_and_wait)
    answers = []
    for path, change, other in cases:
        waiting.append((path, other))
        method = "PUT" if path.endswith("/") else "PATCH"
        answers.append(ok(api.http.request(method, path, json=change)))
        assert not waiting, path
    changed_agent, changed_thread, changed_tool, stored_tool = answers
    assert (changed_agent["name"], changed_agent["embedding"]) == ("Ona", "scripted/embedder")
    assert changed_thread["model"] == "scripted/small"
    assert changed_tool["description"] == "Adds."
    assert changed_tool["json_schema"]["parameters"]["required"] == ["one", "two"]
    assert stored_tool["source_code"] == two
    assert stored_tool["json_schema"]["parameters"]["required"] == ["one", "two"]
    api.client.tools.delete(tool)


def test_agents_are_counted_and_filtered_by_name_substring_and_tags(api: Api) -> None:
    mark, before = new_id("tag"), api.http.get("/v1/agents/count").json()
    both = api.client.agents.create(model=MODEL, name=f"Anna {mark}", tags=[mark, f"{mark}-2"])
    one = api.client.agents.create(model=MODEL, name=f"Bert {mark}", tags=[mark], hidden=True)

    def ids(**query: Any) -> list[str]:
        return [found.id for found in api.client.agents.list(**query)]

    assert api.http.get("/v1/agents/count").json() == before + 2
    assert ids(name=f"Anna {mark}") == [both.id]
    assert ids(query_text=mark.upper()) == [one.id, both.id]
    assert ids(tags=[mark]) == [one.id, both.id]
    assert ids(tags=[mark, f"{mark}-2"]) == [one.id, both.id]
    assert ids(tags=[mark, f"{mark}-2"], match_all_tags=True) == [both.id]
    assert ids(tags=[mark], extra_query={"hidden": "true"}) == [one.id]
    assert ids(query_text="100%_") == []


def test_agents_are_filtered_by_creator_and_stop_reason_and_sorted_by_last_run(
    api: Api,
) -> None:
    mark = new_id("tag")
    first, second, idle = [api.client.agents.create(model=MODEL, tags=[mark]).id for _ in range(3)]
    for id in (second, first):
        api.client.agents.messages.create(id, input="Hello.")
    api.client.agents.update(second, description="Changed.")

    def ids(**query: Any) -> list[str]:
        return [found.id for found in api.client.agents.list(tags=[mark], **query)]

    assert ids(last_stop_reason="end_turn") == [second, first]
    assert ids(last_stop_reason="error") == []
    assert ids(created_by_id=LOCAL_USER, project_id="here") == [idle, second, first]
    assert ids(created_by_id="user-other") == []
    assert ids(order_by="last_run_completion", limit=1) == [first, second, idle]
    assert ids(sort_by="last_run_completion", order="asc", limit=2) == [idle, second, first]
    assert ids(order_by="updated_at", sort_by="last_run_completion") == [second, idle, first]


def test_a_deleted_agent_is_not_found_and_its_blocks_stay(
    client: StrictLetta, agent: AgentState
) -> None:
    client.agents.messages.create(agent.id, input="Hello.")

    now = client.agents.retrieve(agent.id)
    run = client.runs.list(agent_id=agent.id).items[0]
    assert (now.last_stop_reason, now.last_run_completion) == ("end_turn", run.completed_at)
    assert now.last_run_duration_ms == (run.total_duration_ns or 0) // 1_000_000

    answer = client.agents.delete(agent.id)

    assert answer == {"message": f"Agent id={agent.id} successfully deleted"}
    assert client.blocks.retrieve(agent.blocks[0].id or "").value == "I am Nina."
    for ask in (
        client.agents.retrieve,
        client.agents.delete,
        client.agents.messages.list,
        client.agents.passages.list,
    ):
        with pytest.raises(NotFoundError) as caught:
            ask(agent.id)
        assert caught.value.body == {"detail": f"NOT_FOUND: Agent with ID {agent.id} not found"}
    assert list(client.runs.list(agent_id=agent.id)) == []


def test_an_agent_whose_model_is_gone_can_still_be_read(api: Api, agent: AgentState) -> None:
    forgotten = api.server.runtime.models._added.pop(MODEL)
    try:
        shown = api.client.agents.retrieve(agent.id)
    finally:
        api.server.runtime.models.add(forgotten)

    assert (shown.model, shown.llm_config.handle, shown.llm_config.model) == (MODEL, MODEL, "model")


def test_reading_an_agent_costs_at_most_four_statements(api: Api, agent: AgentState) -> None:
    api.client.agents.messages.create(agent.id, input="Hello.")
    # The first call runs more statements, so it is made before counting.
    api.client.agents.retrieve(agent.id)
    with count_statements(api.server.runtime.store) as counted:  # type: ignore[attr-defined]
        api.client.agents.retrieve(agent.id)

    assert 1 <= len(counted.statements) <= 4, counted.statements
    assert counted.transactions == 1


def test_listing_agents_costs_at_most_four_statements_and_equals_reading_each(
    api: Api, block_id: str
) -> None:
    agents = [
        api.client.agents.create(
            model=MODEL,
            name=f"listed-{number}",
            block_ids=[block_id],
            tags=["zeta", "alpha"] if number % 2 else [],
            tools=["archival_memory_search", "conversation_search"][: number % 3],
            memory_blocks=[{"label": "own", "value": str(number), "tags": ["second", "first"]}],
        )
        for number in range(6)
    ]
    # The first call runs more statements, so it is made before counting.
    api.client.agents.list(limit=50)
    with count_statements(api.server.runtime.store) as counted:  # type: ignore[attr-defined]
        listed = {agent.id: agent for agent in api.client.agents.list(limit=50).items}

    assert len(counted.statements) <= 4, counted.statements
    for agent in agents:
        assert listed[agent.id].to_dict() == api.client.agents.retrieve(agent.id).to_dict()
    assert listed[agents[1].id].tags == ["alpha", "zeta"]
    assert {block.label: block.tags for block in listed[agents[2].id].blocks}["own"] == [
        "first",
        "second",
    ]
    assert len(listed[agents[2].id].blocks) == 2


def test_deleting_a_small_agent_costs_at_most_44_statements_in_4_transactions(api: Api) -> None:
    blocks = [{"label": "human", "value": "Ada."}, {"label": "persona", "value": "Kind."}]
    body = {"model": MODEL, "memory_blocks": blocks}
    for _ in range(2):  # the first deletion in a database creates an organization
        id = api.http.post("/v1/agents/", json=body).json()["id"]
        with count_statements(api.server.runtime.store) as counted:  # type: ignore[attr-defined]
            assert api.http.delete(f"/v1/agents/{id}").status_code == 200
    assert len(counted.statements) <= 44, counted.statements
    assert counted.transactions <= 4


def test_creating_an_agent_costs_at_most_eleven_to_fourteen_statements(
    api: Api, block_id: str
) -> None:
    speech = api.client.tools.list(name="send_message").items[0]
    api.client.agents.create(model=MODEL)  # From here on the server knows its providers.
    for tags, block_ids, most in (([], [], 11), (["person"], [], 12), (["person"], [block_id], 14)):
        human: Any = {"label": "human", "value": "Ada", "tags": tags}
        with count_statements(api.server.runtime.store) as counted:  # type: ignore[attr-defined]
            api.client.agents.create(
                model=MODEL,
                memory_blocks=[{"label": "persona", "value": "I am Nina."}, human],
                block_ids=block_ids,
                tools=["memory_rethink"],
                tool_ids=[speech.id],
                tags=["a", "b"],
            )
        # Two of the statements store the blocks' first versions and their texts.
        assert 5 <= len(counted.statements) <= most, counted.statements
        assert counted.transactions == 1


def test_a_model_setting_can_be_reset_with_null(http: httpx2.Client) -> None:
    settings = {
        "temperature": 0.5,
        "max_output_tokens": 100,
        "response_format": {"type": "json_object"},
    }
    body = {
        "model": MODEL,
        "model_settings": {**settings, "reasoning": {"reasoning_effort": "low"}},
    }
    agent = http.post("/v1/agents/", json=body).json()
    assert agent["response_format"] == {"type": "json_object"}

    taken = {"temperature": None, "response_format": None, "reasoning": None}
    after = http.patch(f"/v1/agents/{agent['id']}", json={"model_settings": taken}).json()[
        "model_settings"
    ]

    # If nothing is set, the default is shown. It changes nothing when it is sent back.
    usual = {"reasoning_effort": "minimal"}
    assert [after.get(name) for name in (*settings, "reasoning")] == [1.0, 100, None, usual]
    again = http.patch(f"/v1/agents/{agent['id']}", json={"model_settings": after}).json()
    assert again["model_settings"] == after
    assert again["llm_config"]["reasoning_effort"] is None


def test_an_agent_created_for_a_user_sees_her_memory_in_all_its_conversations(api: Api) -> None:
    ada = new_id("ada")
    for label, more in (("human", {}), ("maths", {"course": "maths"}), ("law", {"course": "law"})):
        api.http.put(f"/users/{ada}/blocks/{label}", json={"body": f"Ada's {label}.", **more})
    made = api.client.agents.create(
        model=MODEL,
        metadata={"course": "maths"},
        memory_blocks=[{"label": "human", "value": "Nobody yet."}],
        extra_body={"user_id": ada},
    )

    assert [block.value for block in made.blocks] == ["Ada's human.", "Ada's maths."]
    assert api.client.agents.retrieve(made.id).blocks == made.blocks
    assert api.client.agents.blocks.retrieve("maths", agent_id=made.id).value == "Ada's maths."
    (system,) = api.client.agents.messages.list(made.id).items
    assert "Ada's maths." in str(system.content)
    api.client.agents.messages.create(made.id, input="Hello.")
    # The prompt that was stored at the agent's creation was already correct.
    assert api.server.model.requests[-1].messages[0].text == system.content
    thread = api.client.conversations.create(agent_id=made.id)
    assert "Ada's human." in api.client.conversations.recompile(thread.id, dry_run=True)
    bob = api.client.conversations.create(agent_id=made.id, extra_body={"user_id": new_id("bob")})
    assert "Ada's" not in api.client.conversations.recompile(bob.id, dry_run=True)
    api.client.agents.delete(made.id)
    assert len(api.http.get(f"/users/{ada}/blocks").json()) == 3


def test_a_context_window_is_returned_section_by_section(api: Api, agent: AgentState) -> None:
    def shown(agent_id: str = agent.id, **query: str) -> dict[str, Any]:
        answer = api.http.get(f"/v1/agents/{agent_id}/context", params=query)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    api.client.agents.messages.create(agent.id, input="Hello.")
    own = shown()
    assert (own["num_messages"], own["num_recall_memory"], own["num_archival_memory"]) == (3, 3, 0)
    assert own["system_prompt"] == agent.system
    assert {tool["function"]["name"] for tool in own["functions_definitions"]} == {
        tool.name for tool in agent.tools
    }
    assert [message["id"] for message in own["messages"]] == api.client.agents.retrieve(
        agent.id
    ).message_ids

    other = api.client.conversations.create(agent_id=agent.id, context_window_limit=9_000)
    seen = shown(conversation_id=other.id)
    assert [message["id"] for message in seen["messages"]] == other.in_context_message_ids
    assert seen["context_window_size_max"] == 9_000
    assert shown(conversation_id="default") == own
    stranger = api.client.agents.create(model=MODEL)
    assert (
        api.http.get(f"/v1/agents/{stranger.id}/context?conversation_id={other.id}").status_code
        == 404
    )
    assert api.http.get(f"/v1/agents/{new_id('agent')}/context").status_code == 404


def test_a_context_window_shows_pictures_without_their_content(api: Api, agent: AgentState) -> None:
    address = "https://example.org/tea.png"
    sources = [
        {"type": "url", "url": address},
        {"type": "url", "url": f"data:image/png;base64,{'A' * 100_000}"},
        {"type": "url", "url": f"data:{'B' * 100_000}"},
        {"type": "base64", "media_type": "image/png", "data": "C" * 100_000},
    ]
    content = [{"type": "image", "source": source} for source in sources]
    sent = {"messages": [{"role": "user", "content": content}]}
    ok(api.http.post(f"/v1/agents/{agent.id}/messages", json=sent))
    answer = api.http.get(f"/v1/agents/{agent.id}/context")
    (message,) = [one for one in ok(answer)["messages"] if one["role"] == "user"]
    urls = [part["source"].get("url") for part in message["content"]]
    assert urls[:2] == [address, "data:image/png;base64,(100,022 characters)"]
    assert urls[2].endswith(",(100,005 characters)")
    assert not [letter for letter in "ABC" if letter * 3_000 in answer.text]


def test_a_client_can_choose_the_messages_of_the_context_window(
    api: Api, agent: AgentState
) -> None:
    for words in ("One.", "Two.", "Three."):
        api.client.agents.messages.create(agent.id, input=words)
    path = f"/v1/agents/{agent.id}"
    system, *said = ok(api.http.get(path))["message_ids"]
    kept = [system, *said[-2:]]
    assert ok(api.http.patch(path, json={"message_ids": kept}))["message_ids"] == kept
    api.server.says("Four?")
    api.client.agents.messages.create(agent.id, input="Four.")
    shown = [message.text for message in api.server.model.requests[-1].messages]
    assert shown[1:] == ["Three.", "ok", "Four."]
    assert "I am Nina." in shown[0]
    other = api.client.agents.create(model=MODEL)
    api.client.agents.messages.create(other.id, input="Elsewhere.")
    foreign = ok(api.http.get(f"/v1/agents/{other.id}"))["message_ids"][-1]
    before = ok(api.http.get(path))["message_ids"]
    for wrong in ([], said[-2:], [system, system], [system, foreign], [system, "message-1"]):
        assert "begin with the system message" in refused(
            api.http.patch(path, json={"message_ids": wrong}), 400
        )
    gate = Gate(api.server)
    api.server.answers_with(gate)
    api.client.agents.messages.create_async(agent.id, input="Long work.")
    gate.wait()
    refused(api.http.patch(path, json={"message_ids": kept}), 409)
    gate.open()
    assert ok(api.http.get(path))["message_ids"][: len(before)] == before
