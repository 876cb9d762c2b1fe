# ruff: noqa: ARG002 - the signatures are the official client's
"""A client with the official client's types, in memory; it can be made to fail as a killed process does."""

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpx
from letta_client import NotFoundError
from letta_client.types import BlockResponse, Passage
from letta_client.types.agents.passage_search_response import PassageSearchResponse, Result


class Killed(Exception):
    """The process ended here."""


class FakeBlocks:
    """`client.agents.blocks`."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.writes: list[str] = []
        self.is_killed = False
        self.pause = 0.0  # seconds that a read takes

    def retrieve(self, block_label: str, *, agent_id: str) -> BlockResponse:
        if block_label not in self.values:
            asked = httpx.Request("GET", f"http://127.0.0.1/v1/agents/{agent_id}/core-memory/blocks/{block_label}")
            raise NotFoundError("not found", response=httpx.Response(404, request=asked), body=None)
        block = BlockResponse(id="block-1", label=block_label, value=self.values[block_label])
        time.sleep(self.pause)
        return block

    def update(self, block_label: str, *, agent_id: str, value: str) -> BlockResponse:
        if self.is_killed:
            raise Killed
        self.values[block_label] = value
        self.writes.append(value)
        return BlockResponse(id="block-1", label=block_label, value=value)


class FakePassages:
    """`client.agents.passages`."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def create(self, agent_id: str, *, text: str) -> list[Passage]:
        self.texts.append(text)
        return [_passage(text)]

    def list(self, agent_id: str, *, search: str, limit: int, ascending: bool) -> Sequence[Passage]:
        found = [_passage(text) for text in self.texts if search.lower() in text.lower()]
        return (found if ascending else found[::-1])[:limit]

    def search(self, agent_id: str, *, query: str, top_k: int) -> PassageSearchResponse:
        words = query.lower().split()
        found = [text for text in self.texts if any(word in text.lower() for word in words)][:top_k]
        results = [Result(id="passage-1", content=text, timestamp="2025-12-31T10:00:00+00:00") for text in found]
        return PassageSearchResponse(count=len(results), results=results)


class FakeAgents:
    """`client.agents`."""

    def __init__(self) -> None:
        self.blocks = FakeBlocks()
        self.passages = FakePassages()
        self.made: list[dict[str, Any]] = []

    def create(self, **options: Any) -> SimpleNamespace:
        self.made.append(options)
        self.blocks.values |= {block["label"]: block["value"] for block in options["memory_blocks"]}
        return SimpleNamespace(id="agent-1")


class FakeLetta:
    """A client of one agent, which has a persona and an empty human block."""

    def __init__(self, human: str = "", persona: str = "[IDENTITY] Nina | Tutor") -> None:
        self.agents = FakeAgents()
        self.agents.blocks.values |= {"human": human, "persona": persona}

    @property
    def human(self) -> str:
        """The text of the human block."""
        return self.agents.blocks.values["human"]

    @property
    def archive(self) -> list[str]:
        """The texts in the archive, in the order of their coming."""
        return self.agents.passages.texts


def _passage(text: str) -> Passage:
    return Passage(id="passage-1", text=text, embedding=None, embedding_config=None)
