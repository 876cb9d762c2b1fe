# ruff: noqa: ARG002 - the signatures are the official client's
"""A client in memory with the official client's methods.

It can fail like a killed process.
"""

import time
from types import SimpleNamespace
from typing import Any

from ricordo.errors import NotFound


class Killed(Exception):
    """The process ended here."""


class FakeBlocks:
    """`client.agents.blocks`; a read takes `pause` seconds."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.writes: list[str] = []
        self.is_killed = False
        self.pause = 0.0

    def retrieve(self, block_label: str, *, agent_id: str) -> SimpleNamespace:
        if block_label not in self.values:
            raise NotFound(f"{agent_id} has no block {block_label}")
        value = self.values[block_label]
        time.sleep(self.pause)
        return SimpleNamespace(value=value)

    def update(self, block_label: str, *, agent_id: str, value: str) -> None:
        if self.is_killed:
            raise Killed
        self.values[block_label] = value
        self.writes.append(value)


class FakePassages:
    """`client.agents.passages`."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def create(self, agent_id: str, *, text: str) -> None:
        self.texts.append(text)

    def list(
        self, agent_id: str, *, search: str, limit: int, ascending: bool
    ) -> list[SimpleNamespace]:
        found = [
            SimpleNamespace(text=text) for text in self.texts if search.lower() in text.lower()
        ]
        return (found if ascending else found[::-1])[:limit]


class FakeLetta:
    """A client of one agent with a persona and an empty human block.

    `made` holds the agents that were created.
    """

    def __init__(self, human: str = "", persona: str = "[IDENTITY] Nina | Tutor") -> None:
        self.agents = SimpleNamespace(
            blocks=FakeBlocks(), passages=FakePassages(), create=self._create
        )
        self.agents.blocks.values |= {"human": human, "persona": persona}
        self.made: list[dict[str, Any]] = []

    def _create(self, **options: Any) -> SimpleNamespace:
        self.made.append(options)
        self.agents.blocks.values |= {
            block["label"]: block["value"] for block in options["memory_blocks"]
        }
        return SimpleNamespace(id="agent-1")

    @property
    def human(self) -> str:
        text: str = self.agents.blocks.values["human"]
        return text

    @property
    def archive(self) -> list[str]:
        texts: list[str] = self.agents.passages.texts
        return texts
