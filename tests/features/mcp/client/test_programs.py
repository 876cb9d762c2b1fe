"""MCP servers that are programs: they run in the sandbox, and only if the operator allows them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from letta_client import APIStatusError

from ricordo.features.mcp.client import sessions, tools
from ricordo.features.mcp.client.commands import over_stdio
from ricordo.features.mcp.client.options import McpSettings
from ricordo.llm.scripted import call
from ricordo.sandbox.options import SandboxSettings
from ricordo.sandbox.service import Sandbox, SandboxLimits
from ricordo.settings import Settings
from tests.api.conftest import Api
from tests.seams.server import MODEL
from tests.support.sandboxes import bubblewrap

VENV = Path(sys.executable).parent.parent
TOOLS = '''
import json, os, sys, time

print("a log line on standard output", flush=True)

def look(path: str) -> str:
    """Look at a file, and at the variables."""
    try:
        return open(path).read()
    except OSError as error:
        return f"{type(error).__name__} {sorted(name for name in os.environ if name.startswith(('RICORDO', 'KEY')))}"

def end(how: str) -> str:
    """End."""
    os._exit(3) if how == "exit" else time.sleep(60)
    return "ended"
'''
# The protocol is written by hand, since the SDK takes a second to start.
BARE = """
def answer(method, params):
    if method == "initialize":
        info = {"name": "notes", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schemas = {"look": "path", "end": "how"}
        return {"tools": [
            {"name": name, "inputSchema": {"type": "object", "properties": {argument: {"type": "string"}}}}
            for name, argument in schemas.items()
        ]}
    told = {"look": look, "end": end}[params["name"]](**params["arguments"])
    return {"content": [{"type": "text", "text": told}]}

for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = answer(asked["method"], asked.get("params"))
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
SDK = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")
server.tool()(look)
server.tool()(end)
server.run()
"""


@pytest.fixture(autouse=True)
def folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, api: Api
) -> Iterator[Path]:
    """A folder with the program, from which programs may be started."""
    bubblewrap()
    made = tmp_path_factory.mktemp("programs")
    made.chmod(0o755)  # The sandbox runs as the user "nobody".
    (made / "bare.py").write_text(TOOLS + BARE)
    (made / "sdk.py").write_text(TOOLS + SDK)
    monkeypatch.setenv("RICORDO_MCP_COMMANDS", f"{VENV}:{made}")
    monkeypatch.setattr(sessions, "DOWN_SECONDS", 0.0)
    monkeypatch.setattr(tools, "FIRST_LOOK_SECONDS", sessions.START_SECONDS)
    yield made
    for server in api.client.mcp_servers.list():
        api.client.mcp_servers.delete(str(server.id))


def config(folder: Path, **more: Any) -> dict[str, Any]:
    made = {
        "mcp_server_type": "stdio",
        "command": sys.executable,
        "args": ["-I", str(folder / "bare.py")],
    }
    return {"server_name": "notes", "config": {**made, "env": {"KEY": "k-123"}, **more}}


def result(api: Api, agent_id: str, name: str, **arguments: Any) -> tuple[str, str]:
    api.server.says([call(name, **arguments)], "Done.")
    answer = api.client.agents.messages.create(agent_id, input="Go.")
    (returned,) = [each for each in answer.messages if each.message_type == "tool_return_message"]
    return returned.status, returned.tool_return


@pytest.mark.parametrize("program", ["bare.py", pytest.param("sdk.py", marks=pytest.mark.soak)])
def test_a_program_runs_sandboxed_and_restarts_after_a_failure(
    api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    made = api.client.mcp_servers.create(**config(folder, args=["-I", str(folder / program)]))
    shown = made.to_dict()
    assert (shown["status"], shown["env"]) == ("working", {"KEY": "********"}), shown
    tool_ids = [tool.id for tool in api.client.mcp_servers.tools.list(str(made.id))]
    agent = api.client.agents.create(model=MODEL, tool_ids=tool_ids)
    data = api.server.settings.data_dir
    assert result(api, agent.id, "look", path=str(data / "ricordo.db")) == (
        "success",
        "FileNotFoundError ['KEY']",
    )
    assert result(api, agent.id, "look", path="/etc/shadow")[1].startswith("FileNotFoundError")
    runner: Any = api.server.runtime.toolbox.runner("external_mcp")
    for how, words, seconds in (
        ("exit", "failed", 60.0),
        ("hang", "did not answer within 0.1 seconds", 0.1),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(runner, "seconds", seconds)
            status, told = result(api, agent.id, "end", how=how)
        assert status == "error"
        assert words in told
        assert result(api, agent.id, "look", path="/nothing")[0] == "success"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("print('x' * 9_000_000)", "more than 4 MiB"),
        ("1 / 0", "Connection closed"),
        ("print('{}')", "Connection closed"),
    ],
)
def test_a_program_that_is_no_mcp_server_is_reported(
    api: Api, folder: Path, program: str, words: str
) -> None:
    made = api.client.mcp_servers.create(**config(folder, args=["-I", "-c", program])).to_dict()
    assert made["status"] == "failing"
    assert words in str(made["last_error"])


def test_programs_not_allowed_by_the_operator_are_not_started(
    api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("/bin/sh", f"{VENV}/../../../../bin/sh", "sh", "nothing-like-it", ""):
        answer = api.http.post("/v1/mcp-servers/", json=config(folder, command=command))
        assert answer.status_code in (400, 403), answer.text
        assert "RICORDO_MCP_COMMANDS" in answer.text
    monkeypatch.delenv("RICORDO_MCP_COMMANDS")
    with pytest.raises(APIStatusError, match="may not start programs") as refused:
        api.client.mcp_servers.create(**config(folder))
    assert refused.value.status_code == 403
    assert list(api.client.mcp_servers.list()) == []


async def test_a_running_program_leaves_the_sandbox_to_other_calls(
    folder: Path, tmp_path: Path
) -> None:
    sandbox = Sandbox(Settings(data_dir=tmp_path), SandboxSettings(sandbox_calls=1))
    streams = over_stdio(sandbox, McpSettings(), config(folder)["config"], {})
    async with streams(sessions.Traffic()) as (read, write), read, write:
        code = await sandbox.run_python("", b"", limits=SandboxLimits(seconds=5))
    await sandbox.close()
    assert code.exit_code == 0, code
