"""Anthropic's memory tool on a user's blocks, by Anthropic's own client."""

import json
import random
import re
from collections import deque
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic
from anthropic.lib.tools import ToolError
from anthropic.tools import BetaLocalFilesystemMemoryTool

from ricordo.domain.ids import new_id
from tests.seams.http import Wire, ok
from tests.seams.server import ServerInThread

PAGE = (Path(__file__).parents[3] / "docs/develop/memory-tool.md").read_text("utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the page's program, and return its global names."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    names: dict[str, Any] = {}
    exec(PROGRAM, names)  # noqa: S102 - the page's own
    return names


@pytest.fixture
def user(http: httpx2.Client) -> str:
    """A user with a block that agents and programs may write."""
    name = new_id("ada")
    body = {"body": "Her name is Ada.\nShe plays the cello.", "policy": "direct"}
    ok(http.put(f"/users/{name}/blocks/human", json=body))
    return name


def run(http: httpx2.Client, user: str, command: str, **arguments: Any) -> Wire:
    answer = http.post(f"/v1/users/{user}/memory-tool", json={"command": command, **arguments})
    result: Wire = ok(answer)
    return result


def body_of(http: httpx2.Client, user: str, label: str) -> str | None:
    answer = http.get(f"/users/{user}/blocks/{label}")
    return answer.json()["body"] if answer.is_success else None


def approve_all(http: httpx2.Client, user: str) -> None:
    ok(http.post(f"/users/{user}/diffs/approve", json={"all": True}))


class Claude:
    """A fake of Anthropic's API: it first calls the tool, and then answers with a sentence."""

    def __init__(self, *calls: dict[str, Any]) -> None:
        self._calls = deque(calls)
        self.results: list[dict[str, Any]] = []

    def client(self) -> Anthropic:
        transport = httpx2.MockTransport(self._answer)
        return Anthropic(api_key="sk-x", http_client=httpx2.Client(transport=transport))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        sent = json.loads(request.content)
        if "thread" not in sent:  # later requests continue the first
            assert sent["tools"] == [{"type": "memory_20250818", "name": "memory"}]
        last = sent["messages"][-1]["content"]
        if isinstance(last, list):
            self.results += [part for part in last if part["type"] == "tool_result"]
        content: dict[str, Any] = {"type": "text", "text": "Noted."}
        if self._calls:
            content = {
                "type": "tool_use",
                "id": new_id("toolu"),
                "name": "memory",
                "input": self._calls.popleft(),
            }
        answer = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": sent["model"],
            "content": [content],
            "stop_reason": "tool_use" if content["type"] == "tool_use" else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        return httpx2.Response(200, json=answer)


def test_claude_can_read_and_propose_with_anthropics_client(
    server: ServerInThread, http: httpx2.Client, user: str, program: dict[str, Any]
) -> None:
    claude = Claude(
        {"command": "view", "path": "/memories"},
        {"command": "view", "path": "/memories/human.md"},
        {
            "command": "str_replace",
            "path": "/memories/human.md",
            "old_str": "the cello",
            "new_str": "the viola",
        },
        {"command": "create", "path": "/memories/plans/week.md", "file_text": "Practise."},
        {"command": "view", "path": "/memories/nothing"},
    )
    memory = program["RicordoMemory"](user, server.url)
    with claude.client() as client:
        answer = program["ask"](client, "Remember it.", memory)
    assert answer.content[0].text == "Noted."
    texts = [result["content"] for result in claude.results]
    assert "37B\t/memories/human.md" in texts[0]
    assert "     2\tShe plays the cello." in texts[1]
    assert texts[2].startswith("The memory file has been edited.")
    assert "proposed" in texts[3]
    assert claude.results[4]["is_error"] is True
    assert "does not exist" in str(texts[4])
    assert body_of(http, user, "human") == "Her name is Ada.\nShe plays the viola."
    assert body_of(http, user, "plans/week") is None
    approve_all(http, user)
    assert body_of(http, user, "plans/week") == "Practise."
    (version, _) = ok(http.get(f"/users/{user}/blocks/human/history"))
    assert version["author_kind"] == "service"


@pytest.mark.parametrize("policy", ["propose", "read_only"])
def test_memory_tool_commands_follow_block_policies(
    http: httpx2.Client, user: str, policy: str
) -> None:
    ok(http.patch(f"/users/{user}/blocks/human", json={"policy": policy}))
    path = "/memories/human.md"
    before = body_of(http, user, "human")
    for command, arguments in (
        ("str_replace", {"path": path, "old_str": "Ada", "new_str": "Eve"}),
        ("insert", {"path": path, "insert_line": 0, "insert_text": "Hidden."}),
        ("rename", {"old_path": path, "new_path": "/memories/other.md"}),
        ("delete", {"path": path}),
    ):
        result = run(http, user, command, **arguments)
        assert bool(result["proposal_ids"]) == (policy == "propose"), (command, result)
        assert result["is_error"] == (policy == "read_only")
        assert body_of(http, user, "human") == before


def test_a_refused_memory_tool_command_changes_nothing(http: httpx2.Client, user: str) -> None:
    """A folder is renamed or deleted whole, or stays as it is."""
    for label, policy in (("plans/a", "direct"), ("plans/b", "read_only")):
        ok(http.put(f"/users/{user}/blocks/{label}", json={"body": label, "policy": policy}))
    for command, arguments in (
        ("delete", {"path": "/memories/plans"}),
        ("rename", {"old_path": "/memories/plans", "new_path": "/memories/days"}),
    ):
        assert run(http, user, command, **arguments)["is_error"] is True
        assert body_of(http, user, "plans/a") == "plans/a"
    for path in ("/etc/passwd", "/memories/../human", "memories/human", "/memoriesx", "/memories"):
        result = run(http, user, "delete", path=path)
        assert result["is_error"] is True, path
    assert run(http, user, "create", path="/memories/human.md", file_text="x")["is_error"] is True
    assert run(http, user, "create", path="/memories/x.md")["is_error"] is True


@pytest.mark.parametrize("seed", range(4))
def test_memory_tool_commands_match_anthropics_file_implementation(
    server: ServerInThread,
    http: httpx2.Client,
    program: dict[str, Any],
    tmp_path: Path,
    seed: int,
) -> None:
    """The same commands run on Anthropic's files and on blocks; results and texts agree."""
    dice = random.Random(seed)  # noqa: S311 - a test that can be repeated
    name = new_id("ada")
    files = BetaLocalFilesystemMemoryTool(str(tmp_path))
    memory = program["RicordoMemory"](name, server.url)
    paths = [f"/memories/{label}.md" for label in ("a", "b", "plans/c", "plans/d")]
    for _ in range(40):
        call = _any_call(dice, paths)
        outcomes = []
        for tool in (files, memory):
            try:
                outcomes.append((True, str(tool.call(call))))
            except ToolError as error:
                outcomes.append((False, str(error).removeprefix("Error: ")))
        assert outcomes[0][0] == outcomes[1][0], (call, outcomes)
        if outcomes[0][0]:
            approve_all(http, name)  # a new block and a change of it wait
            for path in paths:
                file = tmp_path / path[1:]
                label = path.removeprefix("/memories/").removesuffix(".md")
                # Anthropic's files get one more line end at the end of the file with each
                # insertion.
                kept = file.read_text().removesuffix("\n") if file.is_file() else None
                assert body_of(http, name, label) == kept, (call, path)


def _any_call(dice: random.Random, paths: list[str]) -> dict[str, Any]:
    path = dice.choice(paths)
    word = dice.choice(["tea", "rain", "cello"])
    match dice.choice(["create", "create", "str_replace", "insert", "rename", "delete", "view"]):
        case "create":
            text = f"{word}\nIt is {dice.randrange(9)}."
            return {"command": "create", "path": path, "file_text": text}
        case "str_replace":
            new = dice.choice(["wine", "two\nlines", ""])
            return {"command": "str_replace", "path": path, "old_str": word, "new_str": new}
        case "insert":
            line = dice.randrange(-1, 4)
            return {
                "command": "insert",
                "path": path,
                "insert_line": line,
                "insert_text": f"{word}.\n",
            }
        case "rename":
            return {"command": "rename", "old_path": path, "new_path": dice.choice(paths)}
        case command:
            return {"command": command, "path": path}
