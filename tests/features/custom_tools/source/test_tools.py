"""Tools from source code: made, changed, found, deleted by the real client, and run by agents."""

from typing import Any

import pytest
from letta_client import APIStatusError, ConflictError, NotFoundError
from letta_client.types import ToolReturnMessage

from ricordo.domain.message import ToolCallPart
from ricordo.domain.scope import Scope
from ricordo.features.custom_tools.source import service
from ricordo.features.custom_tools.source.runner import call_of
from ricordo.features.custom_tools.source.surroundings import Caller
from ricordo.llm.scripted import call
from ricordo.storage import agents, tools
from tests.api.conftest import Api
from tests.seams.http import ok, refused
from tests.seams.server import MODEL

ADD = '''
def add(one: int, two: int = 1) -> int:
    """Add two numbers.

    Args:
        one: The first.
    """
    print("adding")
    return one + two
'''
FAILS = '''
def divide(one: int, two: int) -> float:
    """Divide."""
    def inner():
        return one / two
    return inner()
'''


KEPT: dict[str, Any] = {
    "tags": ["sums"],
    "description": "Adds, and says so.",
    "return_char_limit": 100,
    "default_requires_approval": True,
    "enable_parallel_execution": True,
    "args_json_schema": {"properties": {"one": {"type": "number"}}},
    "pip_requirements": [{"name": "six"}],
}


def test_an_upsert_keeps_the_fields_that_were_not_sent(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Create a tool with all fields; then send each field alone, also with another source."""
    monkeypatch.setattr(service, "add_build", lambda *_: None)  # no packages are fetched for it
    source = ADD.replace("add(", "keep(")
    made = ok(api.http.put("/v1/tools/", json={"source_code": source, **KEPT}))
    shown = {name: made[name] for name in KEPT}
    assert shown == KEPT
    others: dict[str, Any] = {
        "tags": [],
        "description": "Other.",
        "return_char_limit": 200,
        "default_requires_approval": False,
        "enable_parallel_execution": False,
        "args_json_schema": {"properties": {"two": {"type": "string"}}},
        "pip_requirements": [{"name": "idna"}],
    }
    for name, value in others.items():
        changed = ok(api.http.put("/v1/tools/", json={"source_code": source, name: value}))
        assert {one: changed[one] for one in KEPT} == {**KEPT, name: value}, name
        again = ok(api.http.put("/v1/tools/", json={"source_code": source, name: KEPT[name]}))
        assert {one: again[one] for one in KEPT} == KEPT, name
    for other in (
        source,
        source.replace("Add two numbers.", "Sum up."),
        source.replace("one + two", "two + one"),
    ):
        after = ok(api.http.put("/v1/tools/", json={"source_code": other}))
        assert (after["id"], {name: after[name] for name in KEPT}) == (made["id"], KEPT)
    api.client.tools.delete(made["id"])


def test_a_description_from_the_source_changes_with_the_source(api: Api) -> None:
    source = ADD.replace("add(", "follow(")
    made = ok(api.http.put("/v1/tools/", json={"source_code": source}))
    assert made["description"] == "Add two numbers."
    changed = ok(
        api.http.put(
            "/v1/tools/", json={"source_code": source.replace("Add two numbers.", "Sum up.")}
        )
    )
    assert (changed["id"], changed["description"]) == (made["id"], "Sum up.")
    assert changed["json_schema"]["description"] == "Sum up."
    api.client.tools.delete(made["id"])


def test_a_schema_with_another_name_renames_the_tool_but_calls_the_same_function(api: Api) -> None:
    source = ADD.replace("add(", "first(") + "\n\ndef last(one: int) -> int:\n    return 0\n"
    schema = {
        "name": "first",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"one": {}}},
    }
    made = ok(api.http.post("/v1/tools/", json={"source_code": source, "json_schema": schema}))
    for name in ("plus", "sum_up", "last_of_all", "first"):
        renamed = ok(
            api.http.patch(
                f"/v1/tools/{made['id']}", json={"json_schema": {**schema, "name": name}}
            )
        )
        assert (renamed["id"], renamed["name"], renamed["json_schema"]["name"]) == (
            made["id"],
            name,
            name,
        )
        assert renamed["source_code"] == source
        tool = api.server.read(lambda tx: tools.get(tx, Scope(), made["id"]))
        assert call_of(tool, {}, Caller(Scope())).function == "first"
    api.client.tools.delete(made["id"])


def test_a_tool_can_be_created_changed_and_deleted(api: Api) -> None:
    made = api.client.tools.create(
        source_code=ADD, tags=["sums"], return_char_limit=100, default_requires_approval=True
    )
    assert (made.name, made.description, made.tool_type) == ("add", "Add two numbers.", "custom")
    assert (made.source_code, made.tags, made.return_char_limit) == (ADD, ["sums"], 100)
    assert made.default_requires_approval
    assert made.json_schema == {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "one": {"type": "integer", "description": "The first."},
                "two": {"type": "integer", "default": 1},
            },
            "required": ["one"],
        },
    }
    with pytest.raises(ConflictError, match="A tool named add already exists"):
        api.client.tools.create(source_code=ADD)

    subtract = ADD.replace("add(", "subtract(")
    changed = api.client.tools.update(
        made.id, source_code=subtract, description="Take away.", enable_parallel_execution=True
    )
    assert (changed.id, changed.name, changed.description) == (made.id, "subtract", "Take away.")
    assert changed.json_schema is not None
    assert changed.json_schema["description"] == "Take away."
    assert (changed.tags, changed.enable_parallel_execution) == (["sums"], True)

    upserted = api.client.tools.upsert(
        source_code=subtract, args_json_schema={"properties": {"one": {"type": "number"}}}
    )
    assert upserted.id == made.id
    assert upserted.args_json_schema == {"properties": {"one": {"type": "number"}}}
    assert upserted.json_schema is not None
    assert upserted.json_schema["parameters"] == {
        "type": "object",
        "properties": {"one": {"type": "number"}},
    }

    api.client.tools.delete(made.id)
    with pytest.raises(NotFoundError):
        api.client.tools.retrieve(made.id)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ({"source_code": "def f(x): 'Do.'"}, "has no type"),
        ({"source_code": "def f(: "}, "not valid Python"),
        (
            {"source_code": ADD, "json_schema": {"name": "other", "parameters": {}}},
            "no function of this name",
        ),
        ({"source_code": ADD, "json_schema": {"parameters": []}}, "an object with name"),
        ({"source_code": "function f() {}", "source_type": "javascript"}, "Send a json_schema"),
        (
            {"source_code": ADD, "json_schema": {"name": "add", "parameters": {"type": "array"}}},
            "of the type object",
        ),
        ({"source_code": ADD, "return_char_limit": 0}, "return_char_limit"),
        ({"source_code": "x" * 200_001}, "source_code"),
        (
            {
                "source_code": ADD,
                "args_json_schema": {"properties": {"x": {"description": "x" * 100_000}}},
            },
            "100,000 bytes",
        ),
    ],
)
def test_invalid_tools_are_refused_with_a_reason(api: Api, sent: dict[str, Any], why: str) -> None:
    answer = api.http.post("/v1/tools/", json=sent)
    assert answer.status_code in (400, 422)
    assert why in answer.text
    assert "add" not in [tool.name for tool in api.client.tools.list()]


def test_a_schema_with_a_null_description_has_none(api: Api) -> None:
    source = ADD.replace("add(", "undescribed(")
    schema = {"name": "undescribed", "description": None}
    tool = ok(api.http.post("/v1/tools/", json={"source_code": source, "json_schema": schema}))
    assert tool["description"] in (None, "")
    assert tool["json_schema"]["description"] == ""
    api.client.tools.delete(tool["id"])


def test_built_in_tools_keep_their_source_and_allow_a_few_settings(api: Api) -> None:
    own = next(tool for tool in api.client.tools.list() if tool.name == "memory_insert")
    changed = api.client.tools.update(own.id, return_char_limit=77)
    assert changed.return_char_limit == 77
    for body in ({"source_code": ADD}, {"description": "Mine."}, {"tags": ["x"]}):
        assert api.http.patch(f"/v1/tools/{own.id}", json=body).status_code == 422
    nulls = {"args_json_schema": None, "source_code": ADD}
    assert "so source_code" in refused(api.http.patch(f"/v1/tools/{own.id}", json=nulls), 422)
    detail = refused(api.http.delete(f"/v1/tools/{own.id}"), 422)
    assert detail.endswith("or a plugin, so it cannot be changed or deleted.")
    memory_insert = ADD.replace("add(", "memory_insert(")
    assert api.http.put("/v1/tools/", json={"source_code": memory_insert}).status_code == 422
    assert api.http.post("/v1/tools/", json={"source_code": memory_insert}).status_code == 409
    api.client.tools.update(own.id, return_char_limit=own.return_char_limit or 50_000)


def test_tools_are_found_by_words_and_meaning(api: Api) -> None:
    for name, words in (
        ("rain_tomorrow", "Tell whether umbrellas are needed."),
        ("book_train", "Buy a ticket."),
    ):
        api.client.tools.upsert(
            source_code=f'def {name}(town: str):\n    """{words}"""', tags=[name[:4]]
        )
    found = api.client.tools.search(query="umbrella for the town")
    assert next(each.tool.name for each in found) == "rain_tomorrow"
    assert found[0].fts_rank == 1
    assert found[0].combined_score > found[-1].combined_score
    assert api.client.tools.search(query="qwertz", search_mode="fts") == []
    assert [each.tool.name for each in api.client.tools.search(query="ticket", tags=["book"])] == [
        "book_train"
    ]
    assert [each.tool.name for each in api.client.tools.search(tool_types=["custom"], limit=1)] == [
        "book_train"
    ]
    for each in ("rain_tomorrow", "book_train"):
        (tool,) = api.client.tools.list(name=each)
        api.client.tools.delete(tool.id)


def test_an_agent_reads_a_tools_traceback_and_calls_it_again(api: Api) -> None:
    tool = api.client.tools.create(source_code=FAILS)
    agent = api.client.agents.create(model=MODEL, tool_ids=[tool.id])
    api.server.says(call("divide", one=1, two=0), call("divide", one="1", two=4), "A quarter.")
    answer = api.client.agents.messages.create(agent.id, input="What is a quarter?")
    returns = [
        message for message in answer.messages if message.message_type == "tool_return_message"
    ]
    assert [each.status for each in returns] == ["error", "success"]
    assert returns[0].tool_return == (
        "Error executing function divide: ZeroDivisionError: division by zero\n"
        'Traceback (most recent call last):\n  File "<divide>", line 6, in divide\n    return inner()\n           ^^^^^^^\n'
        '  File "<divide>", line 5, in inner\n    return one / two\n           ~~~~^~~~~\nZeroDivisionError: division by zero'
    )
    assert returns[1].tool_return == "0.25"
    assert api.server.model.requests[-1].messages[-1].is_untrusted
    api.client.agents.update(agent.id, tool_rules=[{"type": "exit_loop", "tool_name": "divide"}])
    with pytest.raises(ConflictError, match="has a rule about divide"):
        api.client.tools.delete(tool.id)
    api.client.agents.update(agent.id, tool_rules=[])
    api.client.tools.delete(tool.id)
    assert "divide" not in [tool.name for tool in api.client.agents.tools.list(agent.id)]


def test_rules_about_tools_with_longer_names_do_not_hide_a_rule(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "_MAX_NAMED", 2)
    made = [
        api.client.tools.create(source_code=ADD.replace("add(", f"{name}("))
        for name in ("sum", "sum_up")
    ]
    ids = [tool.id for tool in made]
    for name in ("sum", "sum_up", "sum_up"):
        rule = {"type": "exit_loop", "tool_name": name}
        api.client.agents.create(model=MODEL, tool_ids=ids, tool_rules=[rule])
    with pytest.raises(ConflictError, match="has a rule about sum"):
        api.client.tools.delete(ids[0])


MODELS = '''
from dataclasses import dataclass
from enum import Enum
from typing import Optional
from pydantic import BaseModel

class Colour(Enum):
    RED = "red"

@dataclass
class Size:
    wide: int

class Place(BaseModel):
    town: str

async def visit(
    place: Place, others: list[Place], colour: Colour | None, size: Size, ready: bool, share: float, more: Optional[Place] = None
):
    """Go there."""
    return [place, [one.town for one in others], colour.name, size, ready, share, more, {1, }, float("nan")]
'''


def trial(api: Api, source: str, **sent: Any) -> dict[str, Any]:
    answer = api.http.post("/v1/tools/run", json={"source_code": source, **sent})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


# letta-client 1.12.0's create_from_function sends the function without the lines above it, and its
# schema separately.
ALONE = '''
def manage(data: Entry, others: List[str], change: Optional[int] = None) -> str:
    """Change a stock.

    Args:
        data: The entry.
    """
    seen: List[str] = [*others]
    return f"{data.name} {data['count'] + change} {sorted(data.model_dump())} {seen}"
'''


def test_a_function_sent_without_its_types_runs_with_their_fields(api: Api) -> None:
    entry = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
    }
    schema = {"properties": {"data": {"$ref": "#/$defs/Entry"}}, "$defs": {"Entry": entry}}
    made = api.client.tools.create(source_code=ALONE, args_json_schema=schema)
    assert made.description == "Change a stock."
    agent = api.client.agents.create(model=MODEL, tool_ids=[made.id])
    args = {"data": {"name": "pears", "count": 2}, "others": ["x"], "change": "3"}
    result = api.client.agents.tools.run("manage", agent_id=agent.id, args=args)
    assert result.func_return == "pears 5 ['count', 'name'] ['x']"
    api.client.tools.delete(made.id)


def test_arguments_are_converted_to_the_annotated_types_and_results_to_json(api: Api) -> None:
    ready = {"ready": "true", "share": 1, "size": {"wide": 2}, "colour": "red"}
    result = trial(
        api, MODELS, args={"place": {"town": "Rome"}, "others": [{"town": "Bari"}], **ready}
    )
    assert result["status"] == "success", result
    # NaN is not JSON, so the whole result is sent as text.
    assert "Place(town='Rome')" in result["func_return"]
    result = trial(
        api,
        MODELS.replace(', float("nan")', ""),
        args={"place": {"town": "Rome"}, "others": [], **ready},
    )
    assert result["func_return"] == [{"town": "Rome"}, [], "RED", {"wide": 2}, True, 1.0, None, [1]]
    wrong = trial(api, MODELS, args={"place": {"city": "Rome"}, "others": [], **ready})
    assert (wrong["status"], "The argument place is not valid: 1 " in wrong["func_return"]) == (
        "error",
        True,
    )
    missing = trial(api, ADD, args={"three": 3})
    told = "The arguments do not fit: missing a required argument: 'one'."
    assert missing["func_return"] == f"Error executing function add: {told}"


HOSTILE = {
    "import os\ndef f():\n    'x'\n    os.write(3, b'{\"value\": 1}')\n    os._exit(0)": (
        "success",
        "1",
    ),
    "import os\ndef f():\n    'x'\n    os.write(3, b'not json')\n    os._exit(5)": (
        "error",
        "exit code 5",
    ),
    "import os\ndef f():\n    'x'\n    os.write(3, b'[1]')\n    os._exit(0)": (
        "error",
        "without a result",
    ),
    "import os\ndef f():\n    'x'\n    os.write(3, b'{\"error\": {}}')\n    os._exit(0)": (
        "error",
        "without a result",
    ),
    "import os\ndef f():\n    'x'\n    os.close(3)": ("error", "without a result"),
    "def f():\n    'x'\n    exit(3)": ("error", "called exit(3)"),
    "def f():\n    'x'\n    return f()": ("error", "RecursionError"),
    "def f():\n    'x'\n    return '\\ud800'": ("success", ""),
    "def f():\n    'x'\n    return 'x' * 1_000_000": (
        "success",
        "[cut: the tool returned 1000000 characters]",
    ),
    "def f():\n    'x'\n    print('y' * 10_000_000)": ("error", "more than 2048 kB of output"),
    "class E(Exception):\n    def __str__(self): raise E\ndef f():\n    'x'\n    raise E": (
        "error",
        "E",
    ),
    "def f():\n    'x'\n    a = {}\n    a['a'] = a\n    return a": ("success", "{'a': {...}}"),
    "def f():\n    'x'\n    a = []\n    for _ in range(500):\n        a = [a]\n    return a": (
        "success",
        "[[[[",
    ),
    "import os\ndef f():\n    'x'\n    os.write(3, b'{\"value\": ' +b'[' * 1000 + b']' * 1000 + "
    "b'}')\n    os._exit(0)": (
        "success",
        "nested too deeply",
    ),
    "def f():\n    'x'\n    raise ValueError('y' * 100_000)": ("error", "line 3, in f\n"),
    "def f():\n    'x'\n    return 10 ** 400": ("success", "1000"),
    "def f():\n    'x'\n    return {1: 2, None: 3, (1, 2): 4}": ("success", "(1, 2)"),
    "import os\ndef f():\n    'x'\n    os.write(3, b'{\"value\": 1e400}')\n    os._exit(0)": (
        "error",
        "without a result",
    ),
    "import os\ndef f():\n    'x'\n    os.write(3, b'{\"value\": \"\\\\ud800\"}')\n    os._exit(0)": (
        "error",
        "without",
    ),
    "raise SystemExit\ndef f(): 'x'": ("error", "called exit(None)"),
    "import nosuchthing\ndef f(): 'x'": ("error", "No module named 'nosuchthing'"),
}


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
def test_a_tool_always_returns_a_result(api: Api, source: str) -> None:
    status, words = HOSTILE[source]
    result = trial(api, source)
    assert result["status"] == status
    assert words in str(result["func_return"])


def test_a_trial_run_returns_a_tool_return_message(api: Api) -> None:
    for value, text in (
        ("'pears'", "pears"),
        ("{'a': [1, None]}", '{"a":[1,null]}'),
        ("3", "3"),
        ("None", "null"),
    ):
        result = trial(api, f"def fetch():\n    'x'\n    print('out')\n    return {value}")
        assert (result["message_type"], result["status"], result["name"]) == (
            "tool_return_message",
            "success",
            "fetch",
        )
        assert (result["tool_return"], result["stdout"]) == (text, ["out"])
        assert ToolReturnMessage.model_validate(result).tool_return == text


WITHOUT_NETWORK = {
    "urllib": "import urllib.request\ndef f():\n    'x'\n    "
    "urllib.request.urlopen('http://example.com')",
    "socket": "import socket\ndef f():\n    'x'\n    socket.create_connection(('93.184.216.34', 80), "
    "timeout=5)",
    "http": "import http.client\ndef f():\n    'x'\n    "
    "http.client.HTTPConnection('example.com').request('GET', '/')",
    "asyncio": "import asyncio\nasync def f():\n    'x'\n    await "
    "asyncio.open_connection('example.com', 80)",
    "wrapped": (
        "import urllib.request\ndef f():\n    'x'\n    try:\n        "
        "urllib.request.urlopen('https://example.com')\n    except OSError as error:\n        "
        "raise RuntimeError('no weather') from error"
    ),
}


def test_a_tool_without_network_gets_advice_in_its_error(api: Api) -> None:
    for name, source in WITHOUT_NETWORK.items():
        result = trial(api, source)
        assert result["status"] == "error"
        assert "This tool runs without network: tag it `network`" in str(result["func_return"]), (
            name
        )
    others = ("open('/nowhere')", "{}['x']", "1 / 0", "open('/etc/shadow', 'w')")
    for line in others:
        assert "without network" not in str(
            trial(api, f"def f():\n    'x'\n    {line}")["func_return"]
        ), line


def test_an_agents_tool_can_be_run_outside_a_turn_with_its_output(api: Api) -> None:
    tool = api.client.tools.create(source_code=ADD)
    agent = api.client.agents.create(model=MODEL, tool_ids=[tool.id])
    result = api.client.agents.tools.run("add", agent_id=agent.id, args={"one": 2})
    assert (result.status, result.func_return, result.stdout, result.stderr) == (
        "success",
        3,
        ["adding"],
        [],
    )
    with pytest.raises(NotFoundError, match="no tool named subtract"):
        api.client.agents.tools.run("subtract", agent_id=agent.id, args={})
    with pytest.raises(APIStatusError, match="only within a turn"):
        api.client.agents.tools.run("memory_insert", agent_id=agent.id, args={})
    api.client.tools.delete(tool.id)


def test_a_trial_runs_variables_exist_only_in_its_process(api: Api) -> None:
    reads = "import os\ndef f():\n    'x'\n    return sorted(os.environ), os.environ.get('TOKEN')"
    names, value = trial(api, reads, env_vars={"TOKEN": "t"})["func_return"]
    assert value == "t"
    assert not [name for name in names if name.startswith("RICORDO")]
    assert trial(api, reads)["func_return"][1] is None


def test_arguments_that_are_nested_too_deeply_are_refused(api: Api) -> None:
    lists = "[" * 300 + "]" * 300
    deep = '{"source_code": "def f(x: list):\\n    \'x\'", "args": {"x": ' + lists + "}}"
    answer = api.http.post(
        "/v1/tools/run", content=deep, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    tool = api.client.tools.create(source_code="def f(x: list):\n    'x'")
    agent = api.client.agents.create(model=MODEL, tool_ids=[tool.id])
    api.server.says(ToolCallPart("call-deep", "f", f'{{"x": {lists}}}'), "Hm.")
    told = api.client.agents.messages.create(agent.id, input="Do it.").messages
    assert "nested too deeply" in str(
        [one for one in told if one.message_type == "tool_return_message"]
    )
    api.client.tools.delete(tool.id)
