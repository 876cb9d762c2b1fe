"""Tools in JavaScript and TypeScript."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ricordo.errors import Unavailable
from ricordo.features.custom_tools.source import javascript
from ricordo.features.custom_tools.source.javascript import javascript_call
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.features.custom_tools.source.test_tools import trial
from tests.seams.http import refused
from tests.seams.server import MODEL

needs_node = pytest.mark.skipif(not shutil.which("node"), reason="there is no Node on this machine")
ADD = """
export async function add(one, two = 1) {
  console.log("adding");
  if (one < 0) {
    throw new RangeError("too small");
  }
  return {sum: one + two};
}
"""
SCHEMA = {
    "name": "add",
    "description": "Add.",
    "parameters": {
        "type": "object",
        "properties": {"one": {"type": "integer"}, "two": {"type": "integer"}},
        "required": ["one"],
    },
}


@pytest.fixture(autouse=True)
def _node_anew() -> Iterator[None]:
    javascript._node.cache_clear()
    yield
    javascript._node.cache_clear()


@pytest.mark.parametrize("name", ["my-add", "1add", "class", "await", "-"])
def test_a_name_that_no_function_can_have_is_refused(api: Api, name: str) -> None:
    body = {
        "source_code": ADD,
        "source_type": "javascript",
        "json_schema": {**SCHEMA, "name": name},
    }
    for method in ("POST", "PUT"):
        answer = api.http.request(method, "/v1/tools/", json=body)
        assert "no function in JavaScript can have this name" in refused(answer, 400)
    tool = api.client.tools.create(source_code=ADD, source_type="javascript", json_schema=SCHEMA)
    body = {"source_code": ADD, "json_schema": {**SCHEMA, "name": name}}
    answer = api.http.patch(f"/v1/tools/{tool.id}", json=body)
    assert "no function in JavaScript can have this name" in refused(answer, 400)
    api.client.tools.delete(tool.id)


@needs_node
def test_a_tool_with_another_name_than_its_function_keeps_calling_it(api: Api) -> None:
    tool = api.client.tools.create(source_code=ADD, source_type="javascript", json_schema=SCHEMA)
    renamed = api.client.tools.update(tool.id, json_schema={**SCHEMA, "name": "my-add"})
    assert renamed.name == "my-add"
    agent = api.client.agents.create(model=MODEL, tool_ids=[tool.id])
    for source in (ADD, ADD.replace("one + two", "one + two + 10")):
        changed = api.client.tools.update(tool.id, source_code=source)
        assert changed.name == "my-add"
        api.server.says(call("my-add", one=2, two=3), "Done.")
        answer = api.client.agents.messages.create(agent.id, input="Add.")
        (result,) = (
            message for message in answer.messages if message.message_type == "tool_return_message"
        )
        total = 15 if "10" in source else 5
        assert (result.tool_return or "").replace(" ", "") == f'{{"sum":{total}}}'
    api.client.agents.delete(agent.id)
    api.client.tools.delete(tool.id)


@needs_node
def test_a_javascript_tool_returns_its_result_or_the_line_of_its_error(api: Api) -> None:
    tool = api.client.tools.create(source_code=ADD, source_type="javascript", json_schema=SCHEMA)
    agent = api.client.agents.create(model=MODEL, tool_ids=[tool.id])
    api.server.says(call("add", two=3, one=2), call("add", one=-1), "Done.")
    changed = api.client.tools.update(tool.id, source_code=ADD.replace("adding", "adds"))
    assert changed.json_schema == tool.json_schema
    answer = api.client.agents.messages.create(agent.id, input="Add.")
    good, bad = (
        message for message in answer.messages if message.message_type == "tool_return_message"
    )
    assert ((good.tool_return or "").replace(" ", ""), good.stdout) == ('{"sum":5}', ["adds"])
    assert (bad.status, bad.tool_return) == (
        "error",
        "Error executing function add: RangeError: too small\n    at add (<add>, line 5)\n      "
        'throw new RangeError("too small");',
    )


@needs_node
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("return", "success", "None"),
        ("return 10n", "success", "10"),
        ("const a = {}; a.a = a; return a", "success", "[object Object]"),
        ("return 'x'.repeat(1e6)", "success", "[cut: the tool returned 1000000 characters]"),
        ("throw null", "error", "null"),
        ("return (", "error", "SyntaxError"),
        ("process.exit(4)", "error", "exit code 4"),
        ("require('fs')", "error", "require is not defined"),
        ("return process.env.TOKEN", "success", "t"),
        ("setInterval(() => 1, 10); return 'ends'", "success", "ends"),
        (
            "return Object.keys(process.env).filter(name => name.startsWith('RICORDO')).length",
            "success",
            "0",
        ),
        (
            "const parts = []; for (;;) parts.push(Buffer.alloc(1e7, 1))",
            "error",
            "allocation failed",
        ),
    ],
)
def test_a_javascript_tool_always_returns_a_result(
    api: Api, body: str, status: str, words: str
) -> None:
    schema = {"name": "f", "description": "x"}
    source = f"function f() {{ {body} }}"
    result = trial(
        api, source, source_type="javascript", json_schema=schema, env_vars={"TOKEN": "t"}
    )
    assert (result["status"], words in str(result["func_return"])) == (status, True), result


def test_without_a_suitable_node_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="apt-get install nodejs"):
        javascript_call("", "javascript", "f")
    program = tmp_path / "node"
    program.write_text("#!/bin/sh\necho v20.20.2\n")
    program.chmod(0o755)
    with pytest.raises(Unavailable, match=r"needs Node 22\.6 or newer, but this server has 20\.20"):
        javascript_call("", "typescript", "f")
    javascript._node.cache_clear()
    program.write_text("#!/bin/sh\necho v22.6.0\n")
    made = javascript_call("const f = (x: number) => x", "typescript", "f")
    assert "'--experimental-strip-types', 'program.mjs', 'tool.mts'" in made.program
    assert made.readable == (tmp_path.parent,)
