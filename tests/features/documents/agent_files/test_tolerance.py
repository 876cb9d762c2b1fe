"""Agent files of other servers and versions.

All are imported, and every repaired or omitted part is named.
"""

import copy
import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from letta_client import BadRequestError
from pydantic import AfterValidator, ValidationInfo, create_model

from ricordo.features.documents.agent_files.decoding import decode
from ricordo.features.documents.agent_files.mending import mend
from ricordo.features.documents.agent_files.tolerance import ImportNotes, fitted
from ricordo.storage.engine.store import SqlStore
from tests.api.conftest import Api
from tests.features.documents.agent_files.test_round_trip import comparable, export, make_agent
from tests.seams.http import Wire, ok
from tests.seams.server import MODEL
from tests.seams.stores import write_twice

CASES = Path(__file__).parent / "cases"
NOTE = (
    'def note(text: str) -> str:\n    """Keep a note.\n\n    Args:\n        text: The note.\n    '
    '"""\n    return text\n'
)
SCHEMA = {
    "name": "note",
    "description": "Keep a note",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    },
}


def import_with_warnings(api: Api, content: bytes, **form: Any) -> tuple[Wire, list[str]]:
    """Import a file; return the agent, and the repaired or omitted parts."""
    sent = {"file": ("agent.af", content)}
    answer = ok(
        api.http.post(
            "/v1/agents/import",
            files=sent,
            data={"model": MODEL, "append_copy_suffix": "false", **form},
        )
    )
    return dict(ok(api.http.get(f"/v1/agents/{answer['agent_ids'][0]}"))), answer["warnings"]


def test_official_files_that_were_once_refused_are_imported(api: Api) -> None:
    effort, warnings = import_with_warnings(api, (CASES / "11-af-effort.af").read_bytes())
    assert (effort["llm_config"]["reasoning_effort"], warnings) == ("medium", [])
    note, warnings = import_with_warnings(api, (CASES / "12-af-source-type-json.af").read_bytes())
    assert [tool["name"] for tool in note["tools"]] == ["note"]
    assert warnings == ['Tools: the source_type "json" of note is unknown; its source is Python.']
    plain, warnings = import_with_warnings(api, (CASES / "13-af-in-a-string.af").read_bytes())
    assert (plain["name"], [block["value"] for block in plain["blocks"]]) == (
        "Sample",
        ["Her name is Ada."],
    )
    assert "JSON string" in warnings[0]
    slash, warnings = import_with_warnings(api, (CASES / "15-af-label-with-slash.af").read_bytes())
    assert [block["label"] for block in slash["blocks"]] == ["note_directory"]
    assert 'became "note_directory"' in warnings[0]


def plain_file() -> Wire:
    return {
        "agents": [
            {
                "id": "agent-0",
                "name": "Sample",
                "agent_type": "letta_v1_agent",
                "system": "You help.",
                "block_ids": ["block-0", "block-1"],
                "tool_ids": ["tool-0"],
                "tool_rules": [{"type": "exit_loop", "tool_name": "note"}],
                "in_context_message_ids": ["message-0", "message-1"],
                "messages": [
                    {
                        "id": "message-0",
                        "role": "user",
                        "content": [{"type": "text", "text": "Hello."}],
                    },
                    {
                        "id": "message-1",
                        "role": "assistant",
                        "content": "Hi.",
                        "created_at": "2026-01-02T03:04:05Z",
                    },
                ],
                "llm_config": {"handle": "openai/gpt-4.1", "context_window": 32_000},
                "embedding_config": None,
            }
        ],
        "groups": [],
        "blocks": [
            {"id": "block-0", "label": "human", "value": "Her name is Ada.", "limit": 5000},
            {"id": "block-1", "label": "persona", "value": "Kind.", "limit": 5000},
        ],
        "files": [],
        "sources": [],
        "tools": [
            {
                "id": "tool-0",
                "name": "note",
                "tool_type": "custom",
                "source_type": "python",
                "source_code": NOTE,
            }
            | {"json_schema": SCHEMA}
        ],
        "mcp_servers": [],
        "metadata": {},
        "created_at": "2026-01-05T00:00:00+00:00",
    }


def file_with(blocks: list[tuple[str, str]], agents: list[list[int]]) -> Wire:
    """Return a file with blocks of these labels and texts, and agents that list these blocks."""
    file = plain_file()
    file["blocks"] = [
        {"id": f"block-{number}", "label": label, "value": value}
        for number, (label, value) in enumerate(blocks)
    ]
    file["agents"] = [
        {**file["agents"][0], "id": f"agent-{number}", "block_ids": [f"block-{i}" for i in listed]}
        for number, listed in enumerate(agents)
    ]
    return file


LABELLED = st.lists(
    st.tuples(st.sampled_from(["human", "human_2", "h" * 255]), st.sampled_from("abcdefgh")),
    min_size=3,
    max_size=5,
)


@settings(max_examples=100)
@given(st.data(), LABELLED)
def test_labels_are_unique_for_each_agent_and_valid(
    data: st.DataObject, blocks: list[tuple[str, str]]
) -> None:
    numbers = st.lists(st.integers(0, len(blocks) - 1), min_size=1, max_size=4, unique=True)
    agents = data.draw(st.lists(numbers, min_size=2, max_size=3))
    content = mend(file_with(blocks, agents), ImportNotes()).content
    by_id = {block["id"]: block for block in content["blocks"]}
    for listed, agent in zip(agents, content["agents"], strict=True):
        linked = [by_id[id] for id in (*agent["block_ids"], *agent["shared_block_ids"])]
        labels = [block["label"] for block in linked]
        assert len(labels) == len(set(labels))
        assert all(len(label) <= 255 for label in labels)
        assert {block["value"] for block in linked} == {blocks[number][1] for number in listed}
    for number, (label, _) in enumerate(blocks):
        others = {other for listed in agents if number in listed for other in listed} - {number}
        if label not in {blocks[other][0] for other in others}:
            assert by_id[f"block-{number}"]["label"] == label


@pytest.mark.parametrize("listed", [[0, 1], [1, 0]])
def test_of_two_blocks_with_one_label_the_one_of_a_single_agent_is_renamed(
    api: Api, listed: list[int]
) -> None:
    file = file_with([("human", "Ada."), ("human", "Bea.")], [[0], listed])
    answer = ok(
        api.http.post(
            "/v1/agents/import",
            files={"file": ("agent.af", json.dumps(file).encode())},
            data={"model": MODEL},
        )
    )
    first, second = (
        {block["label"]: block["value"] for block in ok(api.http.get(f"/v1/agents/{id}"))["blocks"]}
        for id in answer["agent_ids"]
    )
    assert first == {"human": "Ada."}
    assert second == {"human": "Ada.", "human_2": "Bea."}


@dataclass(frozen=True)
class Odd:
    """One unusual thing in a file, with the expected warning and the expected import."""

    words: str
    change: Callable[[Wire, random.Random], Any]
    holds: Callable[[Wire], Any] = bool


def agent_of(file: Wire) -> Wire:
    return file["agents"][0]  # type: ignore[no-any-return]


def word(chance: random.Random) -> str:
    return "x_" + "".join(chance.choices("abcdefghij", k=8))


def odd_value(chance: random.Random) -> Any:
    return chance.choice(["words", 7, 1.5, True, ["a", {"b": 1}], {"deep": {"er": [1, 2]}}])


def unknown(where: Callable[[Wire], Wire]) -> Callable[[Wire, random.Random], None]:
    def change(file: Wire, chance: random.Random) -> None:
        where(file)[word(chance)] = odd_value(chance)

    return change


def replaced(where: Callable[[Wire], Wire], **fields: Any) -> Callable[[Wire, random.Random], None]:
    def change(file: Wire, chance: random.Random) -> None:
        where(file).update(
            {
                name: chance.choice(value) if type(value) is tuple else value
                for name, value in fields.items()
            }
        )

    return change


def has_block(label: str) -> Callable[[Wire], bool]:
    return lambda agent: label in {block["label"] for block in agent["blocks"]}


def has_tool(agent: Wire) -> bool:
    return "note" in {tool["name"] for tool in agent["tools"]}


def second_block(file: Wire) -> Wire:
    return file["blocks"][1]  # type: ignore[no-any-return]


def first_tool(file: Wire) -> Wire:
    return file["tools"][0]  # type: ignore[no-any-return]


def message(number: int) -> Callable[[Wire], Wire]:
    return lambda file: agent_of(file)["messages"][number]  # type: ignore[no-any-return]


def part(file: Wire) -> Wire:
    return message(0)(file)["content"][0]  # type: ignore[no-any-return]


def config(file: Wire) -> Wire:
    return agent_of(file)["llm_config"]  # type: ignore[no-any-return]


LABELS = {
    "/note": "note",
    "//a//b/": "a/b",
    " padded/": "padded",
    "a\nb": "a b",
    "<tag>": "tag",
    "back\\slash": "back/slash",
    "history": "history_",
    ".git": ".git_",
    "..": ".._",
    "x/../y": "x/.._/y",
    "notes.md/more": "notes.md_/more_",
    "l" * 300: "l" * 255,
}

ODDS: tuple[Odd, ...] = (
    Odd("The file: the field", unknown(lambda file: file)),
    Odd("Agent: the field", unknown(agent_of)),
    Odd("Agent llm_config: the field", unknown(config)),
    Odd("Blocks: the field", unknown(second_block), has_block("persona")),
    Odd("Tools: the field", unknown(first_tool), has_tool),
    Odd("Messages: the field", unknown(message(0))),
    Odd("Parts of messages: the field", unknown(part)),
    Odd("Tool rule: the field", unknown(lambda file: agent_of(file)["tool_rules"][0])),
    Odd(
        "",
        replaced(config, effort=("low", "medium", "high")),
        lambda agent: agent["llm_config"]["reasoning_effort"],
    ),
    Odd(
        "source_type",
        replaced(first_tool, source_type=("json", "PYTHON", "py", "wasm", "toml")),
        has_tool,
    ),
    Odd(
        "tool_type",
        replaced(first_tool, tool_type=("client", "function", "external_zapier")),
        has_tool,
    ),
    Odd(
        "note is left out",
        replaced(first_tool, source_code=("function note() {}", "{}", "note(", "# stub")),
    ),
    Odd("note is left out", replaced(first_tool, source_code=("", None, "   "))),
    Odd("limit was raised", replaced(second_block, value="long " * 2000), has_block("persona")),
    Odd("is left out, since", replaced(second_block, limit=("many", -1, [])), has_block("persona")),
    Odd("is not text", replaced(second_block, value=(5, ["a"], {"b": 1})), has_block("persona")),
    Odd("became", replaced(second_block, label="human"), has_block("human_2")),
    Odd("same text", lambda file, _: second_block(file).update(file["blocks"][0], id="block-1")),
    Odd(
        "Groups: one is left out",
        lambda file, _: file["groups"].append({"id": "group-0", "agent_ids": ["agent-9"]}),
    ),
    Odd(
        "cannot be created",
        lambda file, _: file["groups"].append(
            {"agent_ids": [], "manager_config": {"manager_type": "swarm"}}
        ),
    ),
    Odd(
        "Groups",
        lambda file, _: file["groups"].append(
            {"agent_ids": [], "manager_config": {"manager_type": "odd"}}
        ),
    ),
    Odd("groups: left out, since it is not a list", lambda file, _: file.update(groups="many")),
    Odd(
        "is unknown here; it is kept unchanged for exports",
        lambda file, _: file["groups"].append({"agent_ids": [], "mood": "good"}),
    ),
    Odd(
        "mcp_servers: 2 left out",
        lambda file, _: file["mcp_servers"].extend([{"id": "mcp-0"}, {"id": "mcp-1"}]),
    ),
    Odd("skills: 1 left out", replaced(lambda file: file, skills=([{"name": "s"}],))),
    Odd("identity_ids", replaced(agent_of, identity_ids=["identity-0"])),
    Odd(
        "agent_type",
        replaced(agent_of, agent_type=("robot", "voice_9", 7)),
        lambda agent: agent["name"] == "Sample",
    ),
    Odd(
        "time zone",
        replaced(agent_of, timezone=("Mars/Base", "CEST+2", 5)),
        lambda agent: agent["timezone"] == "UTC",
    ),
    Odd(
        "no name",
        lambda file, _: agent_of(file).pop("name"),
        lambda agent: agent["name"] == "Imported agent",
    ),
    Odd(
        "its name was longer",
        replaced(agent_of, name="n" * 400),
        lambda agent: len(agent["name"]) == 256,
    ),
    Odd("description is left out", replaced(agent_of, description=(5, ["a"]))),
    Odd("max_files_open is left out", replaced(agent_of, max_files_open=(0, 1000, "few"))),
    Odd("context_window is left out", replaced(config, context_window=(5, "big", -1))),
    Odd("tags is left out", replaced(agent_of, tags=("a", 5, {"a": 1}))),
    Odd(
        "tool rule is left out",
        lambda file, _: agent_of(file)["tool_rules"].append({"type": "dance", "tool_name": "x"}),
    ),
    Odd(
        "rules about gone are left out",
        lambda file, _: agent_of(file)["tool_rules"].append(
            {"type": "exit_loop", "tool_name": "gone"}
        ),
    ),
    Odd(
        "not in the file",
        lambda file, _: agent_of(file)["block_ids"].append("block-77"),
        has_block("human"),
    ),
    Odd("not in the file", lambda file, _: agent_of(file)["tool_ids"].append(5)),
    Odd("cannot be read is left out", replaced(message(1), role=("king", None, 7))),
    Odd("created_at is left out", replaced(message(1), created_at=("soon", 12, "0001-01-01"))),
    Odd(
        "a part of the type",
        lambda file, _: message(0)(file)["content"].append({"type": "hologram", "data": "x"}),
    ),
    Odd("that are no objects", lambda file, _: agent_of(file)["messages"].append("hello")),
    Odd(
        "earlier message",
        lambda file, _: [one.update(otid="same") for one in agent_of(file)["messages"]],
    ),
    Odd("not a list", replaced(lambda file: file, files=("x", 5, {"a": 1}))),
    Odd(
        "has no text of it",
        lambda file, _: file["files"].append(
            {"id": "file-0", "file_name": "a.pdf", "source_id": "s"}
        ),
    ),
    Odd(
        "its folder is not in the file",
        lambda file, _: file["files"].append({"id": "file-0", "file_name": "a", "content": "x"}),
    ),
    Odd(
        "of version",
        replaced(lambda file: file, ricordo=({"version": 9, "agents": {}}, "x", {"version": "1"})),
    ),
    Odd("cannot be stored", replaced(second_block, value="a\0b"), has_block("persona")),
    Odd(
        "",
        lambda file, _: [
            file.pop(name) for name in ("groups", "files", "sources", "mcp_servers", "metadata")
        ],
    ),
    Odd("", lambda file, _: agent_of(file).pop("block_ids"), has_block("persona")),
    Odd("", lambda file, _: agent_of(file).pop("tool_ids"), has_tool),
    Odd(
        "",
        replaced(agent_of, memory_blocks=[{"label": "inline", "value": "In it."}]),
        has_block("inline"),
    ),
    Odd(
        "has no such tool",
        lambda file, _: [file.update(tools=[]), agent_of(file).update(tool_ids=[])],
    ),
    *(
        Odd(f'became "{mended}"', replaced(second_block, label=label), has_block(mended))
        for label, mended in LABELS.items()
    ),
)

ENCODINGS: tuple[tuple[str, Callable[[str], bytes]], ...] = (
    ("", str.encode),
    ("", lambda text: text.encode("utf-8-sig")),
    ("", lambda text: text.encode("utf-16")),
    ("", lambda text: text.encode("utf-16-le")),
    ("", lambda text: text.encode("utf-32-be")),
    ("JSON string", lambda text: json.dumps(text).encode()),
    ("JSON string", lambda text: json.dumps(json.dumps(text)).encode("utf-16")),
    ("NaN", lambda text: text.replace('"created_at"', '"score": NaN, "created_at"', 1).encode()),
)


def test_each_irregularity_of_a_file_is_imported_with_a_warning(api: Api) -> None:
    chance = random.Random(7)  # noqa: S311
    for odd in ODDS:
        file = plain_file()
        odd.change(file, chance)
        said, encode = chance.choice(ENCODINGS)
        agent, warnings = import_with_warnings(api, encode(json.dumps(file)))
        text = "\n".join(warnings)
        assert odd.words in text, (odd.words, warnings)
        assert said in text, (said, warnings)
        assert odd.holds(agent), (odd.words, agent)


def test_a_note_names_only_the_part_that_cannot_be_read() -> None:
    notes = ImportNotes()
    messages = [
        {"role": "king", "content": "a", "created_at": "2025-01-01T00:00:00Z"},
        {"role": "user", "content": "b", "created_at": "soon"},
    ]
    file = {
        "agents": [{"name": "Ada", "messages": messages}],
        "blocks": [{"id": "block-1", "value": "x"}],
        "tools": [{"id": "tool-1", "name": "long", "source_code": "#" * 200_001}],
    }
    mended = mend(file, notes)
    assert [message["content"] for message in mended.content["agents"][0]["messages"]] == ["b"]
    text = "\n".join(notes.lines())
    assert [text.count("created_at is left out"), text.count('the role "king"')] == [1, 1]
    assert 'without a label is called "block-1"' in text
    assert "long is left out. Its source has more than 200,000 characters." in text
    assert "validation error" not in text


@pytest.mark.parametrize("layers", range(5))
def test_a_file_in_several_json_strings_is_read_like_the_file(layers: int) -> None:
    text = '{"name": "Ame\u0301lie\\u0000"}'
    for _ in range(layers):
        text = json.dumps(text)
    assert decode(text.encode(), ImportNotes()) == {"name": "Am\u00e9lie"}


@pytest.mark.parametrize("files", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_files_with_several_irregularities_are_imported(api: Api, files: int) -> None:
    chance = random.Random(11)  # noqa: S311
    for _ in range(files):
        file = plain_file()
        for odd in chance.sample(ODDS, 5):
            # Another change may have removed this position.
            with suppress(KeyError, IndexError, AttributeError, TypeError):
                odd.change(file, chance)
        agent, warnings = import_with_warnings(api, chance.choice(ENCODINGS)[1](json.dumps(file)))
        assert agent["id"]
        assert warnings


ODD_VALUES: tuple[Any, ...] = (
    *(
        None,
        "",
        0,
        -1,
        10**30,
        1.5,
        True,
        [],
        {},
        "x",
        ["x"],
        {"a": 1},
        "a\0b",
        "\ud800",
        [None],
        [[]],
        [{}],
        "/",
    ),
    *("2026-13-45", -(2**63), 2**53, "agent-0", "block-0", "message-0", {"": {}}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for name, item in inside for place in places(item, (*path, name)))]


def damage(file: Wire, chance: random.Random) -> None:
    """Put a value of another type anywhere into the file, or remove or repeat a value."""
    *parents, last = chance.choice(places(file)[1:])
    holder: Any = file
    for step in parents:
        holder = holder[step]
    how = chance.random()
    if how < 0.7:
        holder[last] = copy.deepcopy(chance.choice(ODD_VALUES))
    elif how < 0.85 and isinstance(holder, dict):
        del holder[last]
    elif isinstance(holder, list):
        holder.append(copy.deepcopy(holder[last]))


@pytest.mark.parametrize("files", [6, pytest.param(200, marks=pytest.mark.soak)])
def test_damaged_values_anywhere_do_not_break_the_import(api: Api, files: int) -> None:
    chance = random.Random(1)  # noqa: S311
    whole = export(api, make_agent(api))
    for number in range(files):
        file = copy.deepcopy(whole if number % 2 else plain_file())
        for _ in range(chance.randrange(1, 8)):
            damage(file, chance)
        sent = {"file": ("agent.af", json.dumps(file).encode())}
        answer = api.http.post(
            "/v1/agents/import", files=sent, data={"model": MODEL, "schedules": "true"}
        )
        assert answer.status_code == 200 or "list of agents" in answer.text, answer.text
        for agent in answer.json().get("agent_ids", ()):
            export(api, agent)


def every_part(api: Api) -> Wire:
    """Return a file with each part that a file can have."""
    agent = make_agent(api)
    member = api.client.agents.create(model=MODEL, name="Member").id
    plan = ok(api.http.post("/v1/blocks/", json={"label": "plan", "value": "Begin."}))["id"]
    group = {
        "agent_ids": [member],
        "description": "Tutors.",
        "manager_config": {"manager_type": "supervisor", "manager_agent_id": agent},
        "shared_block_ids": [plan],
    }
    ok(api.http.post("/v1/groups/", json=group))
    thread = api.client.conversations.list(agent_id=agent)[0].id
    settings = {"temperature": 0.5, "max_output_tokens": 100, "verbosity": "low"}
    ok(api.http.patch(f"/v1/conversations/{thread}", json={"model_settings": settings}))
    return export(api, agent)


def kinds_of_places(file: Wire) -> list[tuple[Any, ...]]:
    """Return one place of each kind: entries of one list are of one kind."""
    by_kind: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for place in places(file)[1:]:
        by_kind.setdefault(tuple(0 if isinstance(step, int) else step for step in place), place)
    return list(by_kind.values())


@pytest.mark.parametrize("files", [8, pytest.param(800, marks=pytest.mark.soak)])
def test_any_value_in_any_field_breaks_neither_the_import_nor_its_conversations(
    api: Api, files: int
) -> None:
    whole = every_part(api)
    cases = list(product(kinds_of_places(whole), ODD_VALUES))
    for (*parents, last), value in random.Random(3).sample(cases, files):  # noqa: S311
        file = copy.deepcopy(whole)
        holder: Any = file
        for step in parents:
            holder = holder[step]
        holder[last] = copy.deepcopy(value)
        sent = {"file": ("agent.af", json.dumps(file).encode())}
        answer = api.http.post(
            "/v1/agents/import", files=sent, data={"model": MODEL, "schedules": "true"}
        )
        assert answer.status_code == 200 or "list of agents" in answer.text, (parents, last, value)
        for agent in answer.json().get("agent_ids", ())[:1]:
            listed = api.http.get("/v1/conversations/", params={"agent_id": agent})
            assert listed.status_code == 200, (parents, last, value)


@pytest.mark.parametrize("value", [{}, {"id": "block-0"}, [], ["block-0"], None, 5])
def test_a_group_whose_ids_are_no_texts_is_left_out_or_mended(api: Api, value: Any) -> None:
    group = {"id": "group-0", "agent_ids": ["agent-0"], "manager_config": {}}
    for change in (
        {"agent_ids": [value]},
        {"manager_config": {"manager_type": "supervisor", "manager_agent_id": value}},
        {"shared_block_ids": [value]},
    ):
        file = plain_file()
        file["groups"] = [group | change]
        agent, _ = import_with_warnings(api, json.dumps(file).encode())
        assert agent["name"] == "Sample"


def test_the_note_on_an_unknown_field_says_that_its_secrets_are_removed(api: Api) -> None:
    file = plain_file()
    agent_of(file)["mood"] = f"good, ghp_{'a1B2' * 9}"
    _, warnings = import_with_warnings(api, json.dumps(file).encode())
    assert 'the field "mood" is unknown here; it is kept for exports without its secrets' in (
        "\n".join(warnings)
    )


def test_a_file_whose_folder_id_is_no_text_is_left_out(api: Api) -> None:
    file = plain_file()
    file["sources"] = [{"id": "5", "name": "Shelf of numbers"}]
    file["files"] = [{"id": "file-0", "file_name": "a.txt", "content": "Tea.", "source_id": 5}]
    _, warnings = import_with_warnings(api, json.dumps(file).encode())
    assert "its folder is not in the file" in "\n".join(warnings)


def test_settings_of_a_conversation_that_cannot_be_are_left_out_and_it_goes_on(api: Api) -> None:
    file = every_part(api)
    (thread,) = file["ricordo"]["agents"]["agent-0"]["conversations"]
    assert thread["model_settings"].keys() >= {"temperature", "max_output_tokens", "extra"}
    agent, warnings = import_with_warnings(api, json.dumps(file).encode(), name="Same")
    (same,) = api.client.conversations.list(agent_id=agent["id"])
    assert not [line for line in warnings if "settings" in line]
    thread["model_settings"] |= {"mood": "good", "temperature": "hot", "extra": None}
    agent, warnings = import_with_warnings(api, json.dumps(file).encode(), name="Other")
    text = "\n".join(warnings)
    assert 'the field "mood" is unknown here; it is kept unchanged for exports' in text
    assert "conversations.model_settings.temperature is left out" in text
    (other,) = api.client.conversations.list(agent_id=agent["id"])
    for conversation, temperature in ((same.id, 0.5), (other.id, 0.3)):
        api.server.says("Hello.")
        sent = {"messages": [{"role": "user", "content": "Hello."}], "streaming": False}
        ok(api.http.post(f"/v1/conversations/{conversation}/messages", json=sent))
        settings = api.server.model.requests[-1].settings
        assert (settings.temperature, settings.max_output_tokens) == (temperature, 100)


def test_a_part_whose_faults_do_not_end_is_left_out_with_a_note() -> None:
    """Each field is refused if the field before it is missing, so each round removes one."""

    def require_previous(value: int, info: ValidationInfo) -> int:
        assert info.field_name
        previous = f"field_{int(info.field_name.removeprefix('field_')) - 1}"
        if info.data.get(previous, 0) is None:
            raise ValueError("the field before it is missing")
        return value

    annotation = Annotated[int | None, AfterValidator(require_previous)]
    fields: dict[str, Any] = {f"field_{number}": (annotation, None) for number in range(60)}
    model = create_model("Chain", **fields)
    wrong = dict.fromkeys(fields, 1) | {"field_0": "x"}
    notes = ImportNotes()
    assert fitted(model, wrong, "Agent", "agent-0", notes) == {}
    assert notes.lines()[-1] == "Agent: left out, since each mended fault made another one."
    fewer = {name: wrong[name] for name in list(fields)[:20]}
    assert fitted(model, fewer, "Agent", "agent-0", ImportNotes()) == {}


def test_an_import_that_runs_again_notes_nothing_twice(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = every_part(api)
    file["tools"].append({"id": "tool-x", "name": "gone", "tool_type": "external_mcp"})
    agent_of(file)["tool_rules"].append({"type": "exit_loop", "tool_name": "gone"})
    file["groups"][0]["manager_config"]["manager_type"] = "odd"
    part = file["ricordo"]["agents"]["agent-0"]
    part["schedules"] = [
        {
            "messages": [{"role": "user", "content": "Hello."}],
            "schedule": {"type": "one-time", "scheduled_at": 1_000_000_000_000},
        }
    ]
    part["memory"]["proposals"] = [
        {"label": "human", "value": "Hm.", "author": "A <a@ricordo>", "created_at": 10**15}
        | {"base": "0" * 40}
    ]
    form = {"schedules": "true"}
    _, once = import_with_warnings(api, json.dumps(file).encode(), **form)
    write_twice(cast(SqlStore, api.server.runtime.store), monkeypatch)
    _, again = import_with_warnings(api, json.dumps(file).encode(), **form)
    assert again == once
    for words in (
        "rules about gone",
        "gone is left out",
        "Groups: one",
        "Schedules: one",
        "a proposal",
    ):
        assert [line for line in once if words in line], (words, once)


def test_unknown_fields_are_kept_and_exported_again(api: Api) -> None:
    file = plain_file()
    agent_of(file)["mood"] = {"today": "good"}
    file["blocks"][0]["colour"] = "blue"
    made, _ = import_with_warnings(api, json.dumps(file).encode())
    out = export(api, made["id"])
    kept = out["ricordo"]["agents"]["agent-0"]["unread"]
    assert (kept["agent-0.mood"], kept["block-0.colour"]) == ({"today": "good"}, "blue")
    again, warnings = import_with_warnings(api, json.dumps(out).encode())
    assert warnings == []
    assert comparable(export(api, again["id"])) == comparable(out)


def test_a_file_of_five_megabytes_is_imported_without_its_invalid_message(api: Api) -> None:
    file = plain_file()
    said = [
        {"id": f"m-{number}", "role": "user", "content": "word " * 2_100} for number in range(500)
    ]
    said[7]["role"] = "king"
    agent_of(file).update(messages=said, in_context_message_ids=["m-498", "m-499"])
    content = json.dumps(file).encode()
    assert len(content) > 5_000_000
    agent, warnings = import_with_warnings(api, content)
    assert warnings == [
        'Messages: one that cannot be read is left out. A message of the file has the role "king". '
        "Roles are system, user, assistant, tool, approval, summary."
    ]
    assert len(agent["message_ids"]) == 3


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_truncated_file_is_refused_with_line_and_column(api: Api, share: float) -> None:
    for text in (
        json.dumps(plain_file()),
        json.dumps(plain_file(), indent=2),
        json.dumps(json.dumps(plain_file())),
    ):
        with pytest.raises(BadRequestError, match=r"not JSON: .* line \d+, column \d+"):
            api.client.agents.import_file(
                file=("agent.af", text[: int(len(text) * share)].encode())
            )


def test_unknown_model_settings_are_accepted_with_a_warning(api: Api) -> None:
    chance = random.Random(1)  # noqa: S311
    for _ in range(3):
        name = word(chance)
        sent = {"model": MODEL, "llm_config": {"handle": MODEL, name: odd_value(chance)}}
        answer = api.http.post("/v1/agents/", json=sent)
        assert f"llm_config.{name}" in answer.headers["x-ricordo-warnings"], answer.text
        changed = api.http.patch(
            f"/v1/agents/{ok(answer)['id']}", json={"model_settings": {"thinking": {name: 1}}}
        )
        assert f"thinking.{name}" in changed.headers["x-ricordo-warnings"]
    name = "x\r\nset-cookie: a=b"
    answer = api.http.post("/v1/agents/", json={"model": MODEL, "llm_config": {name: 1}})
    assert "set-cookie: a=b" in answer.headers["x-ricordo-warnings"]
    assert "set-cookie" not in answer.headers
    for effort in ("low", "max"):
        made = ok(
            api.http.post("/v1/agents/", json={"model": MODEL, "llm_config": {"effort": effort}})
        )
        assert made["llm_config"]["reasoning_effort"] == effort
        made = ok(
            api.http.patch(
                f"/v1/agents/{made['id']}", json={"model_settings": {"effort": f"x{effort}"}}
            )
        )
        assert made["llm_config"]["reasoning_effort"] == f"x{effort}"
    for impossible in (
        {"effort": 7},
        {"temperature": "hot"},
        {"context_window": 1},
        {"max_tokens": -1},
    ):
        assert (
            api.http.post(
                "/v1/agents/", json={"model": MODEL, "llm_config": impossible}
            ).status_code
            == 422
        )


@pytest.mark.parametrize("levels", [90, 200, 500, 900])
def test_deeply_nested_parts_of_a_file_are_cut(api: Api, levels: int) -> None:
    file = plain_file()
    file["agents"][0]["metadata"] = "DEEP"
    nested = '{"a": ' * levels + "7" + "}" * levels

    agent, warnings = import_with_warnings(api, json.dumps(file).replace('"DEEP"', nested).encode())

    assert agent["metadata"]
    assert any("cannot be stored" in warning for warning in warnings) == (levels > 90)
