"""The share of prompts that a model's server can reuse: `python -m bench.prompt_cache`.

One agent talks for 50 turns and edits its memory in five of them; another talks for 25 turns with
11 edits. The model is scripted. Its server counts the tokens that a real server of each kind would
take from its cache:

- a server that evaluates prompts itself (llama.cpp, Ollama, vLLM): the longest beginning that the
  prompt shares with an earlier one. Most chat templates put the tools behind the system message.
- OpenAI: the same beginning, in steps of 128 tokens from 1,024 on. Tools come first.
- Anthropic: the longest beginning that an earlier request marked. The server looks for it at the
  marks of this request, and in the 20 blocks before each mark. Tools come first.

Tokens are estimated: four characters are one.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import httpx2

from bench.report import Figure, Report
from bench.servers import ricordo
from bench.turns import send
from tests.support.model_server import Answer, ModelServer, Seen, completion, tool_call

MODES = ("step", "turn", "lazy")
CACHED_SHARE = 0.9  # The target over 50 turns with five edits.
_TALKS = ((50, 5), (25, 11))
_CHARACTERS_PER_TOKEN = 4
_SMALLEST_OF_OPENAI = 1_024
_STEP_OF_OPENAI = 128
_BLOCKS_BEFORE_A_MARK = 20
_SAID = (
    "I walked along the river this morning and thought about the exam. Message {number}: what should I read next, "
    "and how do I keep the chapters apart?"
)
_ANSWER = (
    "Read the chapter on rates first, then the exercises behind it; write one sentence for each page, and "
    "compare the sentences of neighbouring chapters in the evening. "
) * 3


@dataclass
class Cache:
    """The prompts that one server has read, and the counts of their tokens and of reused tokens."""

    count: "Count"
    prompts: list[str] = field(default_factory=list)
    marked: set[str] = field(default_factory=set)
    tokens: int = 0
    reused: int = 0

    def read(self, body: dict[str, Any]) -> tuple[int, int]:
        """Return the prompt's tokens, and how many of them come from the cache."""
        tokens, reused = self.count(self, body)
        self.tokens += tokens
        self.reused += reused
        return tokens, reused


# Takes the cache and a request; returns the prompt's tokens, and how many were in the cache.
Count = Callable[[Cache, dict[str, Any]], tuple[int, int]]


def _texts(body: dict[str, Any], *, has_tools_first: bool) -> list[str]:
    """Return the prompt of a request in OpenAI's format, in pieces as a template orders them."""
    system, *others = (json.dumps(message) for message in body["messages"])
    tools = json.dumps(body.get("tools", []))
    first = [tools, system] if has_tools_first else [system, tools]
    return first + others


def _common(one: str, other: str) -> int:
    """Return the length of the longest common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _local(cache: Cache, body: dict[str, Any]) -> tuple[int, int]:
    prompt = "".join(_texts(body, has_tools_first=False))
    reused = max((_common(prompt, earlier) for earlier in cache.prompts), default=0)
    cache.prompts.append(prompt)
    return len(prompt) // _CHARACTERS_PER_TOKEN, reused // _CHARACTERS_PER_TOKEN


def _openai(cache: Cache, body: dict[str, Any]) -> tuple[int, int]:
    prompt = "".join(_texts(body, has_tools_first=True))
    longest = max((_common(prompt, earlier) for earlier in cache.prompts), default=0)
    reused = longest // _CHARACTERS_PER_TOKEN // _STEP_OF_OPENAI * _STEP_OF_OPENAI
    cache.prompts.append(prompt)
    return len(prompt) // _CHARACTERS_PER_TOKEN, reused if reused >= _SMALLEST_OF_OPENAI else 0


def _anthropic(cache: Cache, body: dict[str, Any]) -> tuple[int, int]:
    contents = [message["content"] for message in body["messages"]]
    blocks = [*body.get("tools", []), *body["system"]]
    for content in contents:
        blocks += content if isinstance(content, list) else [{"text": content}]
    marks = [number for number, block in enumerate(blocks) if block.pop("cache_control", None)]
    beginnings = list(accumulate(json.dumps(block, sort_keys=True) for block in blocks))
    found = [
        len(beginnings[number])
        for mark in marks
        for number in range(max(0, mark - _BLOCKS_BEFORE_A_MARK), mark + 1)
        if beginnings[number] in cache.marked
    ]
    cache.marked.update(beginnings[mark] for mark in marks)
    reused = max(found, default=0)
    return len(beginnings[-1]) // _CHARACTERS_PER_TOKEN, reused // _CHARACTERS_PER_TOKEN


def _reply(cache: Cache | None, seen: Seen) -> Answer:
    """Answer as the server of this cache: edit memory if the person asks for it."""
    if seen.method == "GET" or cache is None:
        return Answer({"object": "list", "data": [{"id": "bench", "object": "model"}]})
    body = seen.body
    last = json.dumps(body["messages"][-1])
    is_edit = body["messages"][-1]["role"] == "user" and "remember" in last and "tool_" not in last
    fact = f"Fact {len(body['messages'])}: she keeps chapters apart by colours."
    tokens, reused = cache.read(body)
    if "system" in body:
        content: dict[str, Any] = {"type": "text", "text": _ANSWER}
        if is_edit:
            arguments = {"label": "human", "new_string": fact}
            id = f"toolu_{len(body['messages'])}"
            content = {"type": "tool_use", "id": id, "name": "memory_insert", "input": arguments}
        usage = {
            "input_tokens": tokens - reused,
            "cache_read_input_tokens": reused,
            "cache_creation_input_tokens": 0,
            "output_tokens": 60,
        }
        return Answer(
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude-bench",
                "content": [content],
                "stop_reason": "tool_use" if is_edit else "end_turn",
                "stop_sequence": None,
                "usage": usage,
            }
        )
    usage = {
        "prompt_tokens": tokens,
        "completion_tokens": 60,
        "total_tokens": tokens + 60,
        "prompt_tokens_details": {"cached_tokens": reused},
    }
    if is_edit:
        call = tool_call("memory_insert", {"label": "human", "new_string": fact})
        return completion(None, [call], usage=usage)
    return completion(_ANSWER, usage=usage)


# Each kind of server with the handle of its model.
KINDS: dict[str, tuple[str, Count]] = {
    "local": ("llamacpp/bench", _local),
    "OpenAI": ("openai/bench", _openai),
    "Anthropic": ("anthropic/bench", _anthropic),
}


class Talks:
    """A server and its scripted model, which counts the tokens that a real cache would save."""

    def __init__(self, model: ModelServer) -> None:
        self._cache: Cache | None = None
        model.otherwise = lambda seen: _reply(self._cache, seen)
        self._opened = ricordo(
            model.url,
            LLAMACPP_BASE_URL=model.url,
            ANTHROPIC_BASE_URL=model.root,
            ANTHROPIC_API_KEY="key",
            OPENAI_API="chat",
        )

    async def __aenter__(self) -> "Talks":
        self._server = await asyncio.to_thread(self._opened.__enter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._opened.__exit__, None, None, None)

    async def talk(self, kind: str, mode: str, turns: int, edits: int) -> tuple[Cache, float]:
        """Talk with a new agent; some of the turns edit its memory.

        Args:
            kind: One of `KINDS`.
            mode: The agent's `memory_in_prompt`.
            turns: How many turns.
            edits: How many of them edit memory, at equal distances.

        Returns:
            The cache as the model's server counts it, and the share that the ledger shows.
        """
        handle, count = KINDS[kind]
        cache = self._cache = Cache(count)
        body = {
            "model": handle,
            "memory_in_prompt": mode,
            "context_window_limit": 120_000,
            "memory_blocks": [
                {"label": "persona", "value": "You are a patient tutor of mathematics. " * 20},
                {"label": "human", "value": "Her name is Ada. She prepares an exam. " * 10},
            ],
        }
        every = turns // edits
        url = self._server.url
        async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
            response = await client.post(f"{url}/v1/agents/", json=body)
            if response.is_error:
                raise RuntimeError(f"The agent could not be created: {response.text}")
            agent = str(response.json()["id"])
            for number in range(turns):
                is_edit = number % every == every // 2 and number // every < edits
                text = _SAID.format(number=number) + (" Please remember it." if is_edit else "")
                await send(client, self._server, agent, text)
            return cache, await self._share(client, agent)

    async def _share(self, client: httpx2.AsyncClient, agent: str) -> float:
        """Return what the server's ledger says of this agent's tokens."""
        response = await client.get(f"{self._server.url}/v1/ledger", params={"group_by": "agent"})
        response.raise_for_status()
        (line,) = (line for line in response.json()["lines"] if line["key"] == agent)
        return float(line["cached_share"])


@asynccontextmanager
async def talks() -> AsyncIterator[Talks]:
    """Run a server with a model that plays all kinds of providers."""
    async with ModelServer(keeps=False) as model, Talks(model) as talking:
        yield talking


async def measure(report: Report) -> None:
    """Measure each kind of server, talk and mode."""
    async with talks() as talking:
        for kind in KINDS:
            for turns, edits in _TALKS:
                report.begin(f"{kind}, {turns} turns with {edits} edits")
                for mode in MODES:
                    cache, share = await talking.talk(kind, mode, turns, edits)
                    aim = CACHED_SHARE if (turns, mode) == (50, "lazy") else None
                    report.add(
                        [
                            Figure(f"{mode}: share from the cache", share, "", aim, True),
                            Figure("  tokens evaluated", cache.tokens - cache.reused, "tokens"),
                        ]
                    )


def main() -> None:
    """Measure and print."""
    report = Report()
    asyncio.run(measure(report))
    report.end()


if __name__ == "__main__":
    main()
