"""Code that agents run: its output, the tools that it calls, and what it cannot break."""

from typing import Any

import pytest

from ricordo.features.custom_tools.run_code import tools
from ricordo.llm.scripted import call
from ricordo.sandbox.slots import Slots
from tests.api.conftest import Api
from tests.seams.server import MODEL
from tests.support.sandboxes import bubblewrap

DOUBLE = (
    'def double(number: int, again: bool = False) -> dict:\n    """Double."""\n    return '
    '{"number": number * 2}'
)
FAIL = 'def fail() -> str:\n    """Fail."""\n    raise ValueError("broken")'


@pytest.fixture(autouse=True, scope="session")
def _sandbox() -> None:
    bubblewrap()


def result_of(
    api: Api, name: str, tools: tuple[str, ...] = (), **arguments: Any
) -> tuple[str, Any]:
    """Return the status and result of one call by an agent that has these tools."""
    made = [api.client.tools.upsert(source_code=source) for source in tools]
    listed = api.client.tools.list(name=name).items
    agent = api.client.agents.create(
        model=MODEL, tool_ids=[listed[0].id, *(tool.id for tool in made)]
    )
    api.server.says(call(name, **arguments), "Done.")
    answer = api.client.agents.messages.create(agent.id, input="Go.")
    (returned,) = [each for each in answer.messages if each.message_type == "tool_return_message"]
    return returned.status, returned.tool_return


RUNS: list[tuple[str, str, dict[str, Any]]] = [
    ("python", "x = 2\nprint('hi')\nx * 21", {"status": "success", "stdout": "hi\n42"}),
    ("python", "'a' * 3", {"status": "success", "stdout": "aaa"}),
    ("shell", "echo hi; exit 3", {"status": "error", "stdout": "hi", "exit_code": 3}),
    ("js", "console.log([1, 2].map((x) => x * 2))", {"status": "success", "stdout": "[ 2, 4 ]"}),
    (
        "python",
        "import os; os._exit(0)",
        {"status": "error", "error": "The code ended early."},
    ),
    ("python", "import os; os.write(3, b'junk\\n')", {"status": "success", "stdout": "5"}),
]


@pytest.mark.parametrize(("language", "code", "told"), RUNS, ids=range(len(RUNS)))
def test_run_code_returns_the_result_and_the_output(
    api: Api, language: str, code: str, told: dict[str, Any]
) -> None:
    import json

    status, content = result_of(api, "run_code", code=code, language=language)
    assert status == "success"
    assert json.loads(content) == told


def test_a_code_error_shows_only_the_codes_own_lines(api: Api) -> None:
    _, content = result_of(api, "run_code", code="def f():\n    return {}['a']\nf()")
    assert '"<code>\\", line 2, in f' in content
    assert "KeyError: 'a'" in content
    assert "program" not in content


CALLS: list[tuple[str, str]] = [
    ("double(2)['number'] + double(number=3)['number']", '"stdout":"10"'),
    (
        "try:\n    fail()\nexcept ToolError as e:\n    print('caught', 'broken' in str(e))",
        '"stdout":"caught True"',
    ),
    ("fail()", "ValueError: broken"),
    ("double('x' * 100_000)", "more than 64 kB"),
    ("for i in range(10): double(i)", "more than 5 times"),
    ("import os\nos.write(3, b'[]\\n')\ndouble(1)", "ended early"),
    (
        (
            'import os\nos.write(3, b\'{"tool": "send_message", "arguments": {}}\\n\')\nimport '
            "sys\nprint(sys.stdin.readline())"
        ),
        "no such tool",
    ),
    ("import os\nos.kill(os.getpid(), 9)", "ended early"),
    ("run_code_with_tools('1')", "NameError"),
    ("print('x' * 2_000_000)", "more than 512 kB"),
    (
        (
            'import os\nfor i in range(100_000): os.write(3, b\'{"tool": "double", "arguments": '
            '{"number": 1}}\\n\')'
        ),
        "more than 5 times",
    ),
    (
        (
            'import os\nfor i in range(3): os.write(3, b\'{"tool": "double", "arguments": {"number": '
            "1}}\\n')"
        ),
        "The code ended",
    ),
]


@pytest.mark.parametrize(("code", "words"), CALLS, ids=range(len(CALLS)))
def test_code_that_calls_tools_always_returns_a_result(
    api: Api, code: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_MOST_CALLS", 5)
    status, content = result_of(api, "run_code_with_tools", (DOUBLE, FAIL), code=code)
    assert status == "success"
    assert words in content


def test_code_can_call_tools_with_only_one_sandbox_slot(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.server.runtime.sandbox, "_slots", Slots(1))
    status, content = result_of(
        api, "run_code_with_tools", (DOUBLE,), code="double(2)['number'] + double(3)['number']"
    )
    assert (status, '"stdout":"10"' in content) == ("success", True)


def test_a_tool_that_needs_approval_cannot_be_called_from_code(api: Api) -> None:
    tool = api.client.tools.upsert(
        source_code=DOUBLE.replace("double", "spend"), default_requires_approval=True
    )
    runs = api.client.tools.list(name="run_code_with_tools").items[0]
    agent = api.client.agents.create(model=MODEL, tool_ids=[runs.id])
    api.client.agents.tools.attach(tool.id, agent_id=agent.id)
    api.server.says(call("run_code_with_tools", code="spend(1)"), "Done.")
    answer = api.client.agents.messages.create(agent.id, input="Go.")
    (returned,) = [each for each in answer.messages if each.message_type == "tool_return_message"]
    assert "approv" in returned.tool_return
    assert '"status":"error"' in returned.tool_return


def test_new_agents_have_no_code_or_web_tools(api: Api) -> None:
    agent = api.client.agents.create(model=MODEL)
    assert not {"run_code", "run_code_with_tools", "web_search", "fetch_webpage"} & {
        tool.name for tool in agent.tools
    }
