"""Typed memory through its two clients.

One runs in this process on a database, the other is the official client of the real app over HTTP.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from letta_client import APIStatusError

from ricordo.app import open_in_thread
from ricordo.errors import Conflict, Invalid, NotFound, Unavailable
from ricordo.features.typed_memory.schemas.blocks import HumanBlock, PersonaBlock
from ricordo.features.typed_memory.schemas.client import InProcessClient
from ricordo.features.typed_memory.schemas.manager import BaseAgent, MemoryManager
from ricordo.settings import ProviderSettings, Settings
from tests.seams.server import MODEL, StrictLetta, serving


@contextmanager
def open_client(folder: Path) -> Iterator[InProcessClient]:
    settings = Settings(data_dir=folder, find_local_models=False)
    with open_in_thread(settings, ProviderSettings.model_construct()) as opened:
        yield InProcessClient(*opened)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessClient]:
    """A client on a separate database."""
    with open_client(tmp_path_factory.mktemp("data")) as opened:
        yield opened


def test_evicted_text_is_archived_and_searchable(client: InProcessClient) -> None:
    memory = MemoryManager(client, BaseAgent(client).agent_id, max_chars=400)
    memory.set_task("Learn the names of trees")
    memory.add_context("Talked about the old chestnut in Genoa")
    memory.clear_task()
    for number in range(12):
        memory.add_context(f"Chapter {number} is about oaks and elms")
    assert memory.get_summary()["current_task"] is None
    (found, *_) = memory.search_archival("old chestnut", limit=3)
    assert found.startswith("[TASK COMPLETED ")
    (listed, *_) = client.agents.passages.list(
        memory.agent_id, search="chestnut", limit=5, ascending=True
    )
    assert listed.text == found


def test_missing_objects_and_unknown_settings_are_errors(client: InProcessClient) -> None:
    agent_id = BaseAgent(client).agent_id
    with pytest.raises(NotFound, match="no block"):
        client.agents.blocks.retrieve("notes", agent_id=agent_id)
    with pytest.raises(NotFound):
        MemoryManager(client, "agent-nobody").learn_fact("Sings")
    with pytest.raises(Invalid, match='"colour" cannot be set here'):
        BaseAgent(client, colour="green")


def test_an_agent_made_for_a_user_writes_that_users_memory(
    client: InProcessClient,
) -> None:
    own = BaseAgent(client, user_id="ada")
    own.learn(fact="Ada sings")
    client.agents.passages.create(own.agent_id, text="Ada was in Rome.")
    (passage,) = client.agents.passages.list(own.agent_id, search="Rome", limit=5, ascending=True)
    assert passage.user_id is not None
    assert [
        hit.content
        for hit in client.agents.passages.search(own.agent_id, query="Rome", top_k=3).results
    ]
    human = client.agents.blocks.retrieve("human", agent_id=own.agent_id)
    assert "Ada sings" in human.value
    assert (human.agent_id, human.is_users) == (own.agent_id, True)
    before = human.id
    own.learn(fact="Ada plays chess")
    assert client.agents.blocks.retrieve("human", agent_id=own.agent_id).id == before


def test_a_closed_client_raises_an_error(tmp_path: Path) -> None:
    with open_client(tmp_path) as closed:
        pass
    with pytest.raises(Unavailable, match="was closed"):
        closed.agents.blocks.retrieve("human", agent_id="agent-1")


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrictLetta]:
    with serving(tmp_path_factory.mktemp("data")) as server, server.client() as opened:
        yield opened


@pytest.fixture
def agent(official: StrictLetta) -> BaseAgent:
    """Make an agent with typed memory that knows Alice."""
    alice = HumanBlock(name="Alice", role="Student")
    return BaseAgent(
        official, persona=PersonaBlock(name="Nina", role="Tutor"), human=alice, model=MODEL
    )


class Interleaved(MemoryManager):
    """A manager that calls `between` in its next change, between its read and its write."""

    between: Callable[[], None] | None = None

    def _write(self, *written: Any) -> bool:
        between, self.between = self.between, None
        if between:
            between()
        return super()._write(*written)


def human_of(agent: BaseAgent) -> str:
    return agent.client.agents.blocks.retrieve("human", agent_id=agent.agent_id).value


def test_an_agent_can_be_created_and_learn(official: StrictLetta, agent: BaseAgent) -> None:
    made = official.agents.retrieve(agent.agent_id)
    assert {block.label: block.value for block in made.memory.blocks} == {
        "persona": "[IDENTITY] Nina | Tutor\n[STYLE] professional, concise",
        "human": "[USER] Alice | Student\n[STATE] idle",
    }

    agent.update_context(task="Essay topics", note="Discussed identity; at length\nand in depth")
    agent.learn(preference="Short answers", fact="Lives in Turin")

    assert human_of(agent) == (
        "[USER] Alice | Student\n[TASK] Essay topics\n[STATE] active_task\n[PREFS] Short answers\n"
        "[FACTS] Lives in Turin\n[CONTEXT] Discussed identity\\; at length\\nand in depth"
    )
    summary = agent.memory.get_summary()
    assert (summary["current_task"], summary["context_notes"]) == ("Essay topics", 1)


def test_evicted_text_is_archived_unchanged(official: StrictLetta, agent: BaseAgent) -> None:
    for number in range(5):
        agent.memory.add_context(f"Chapter {number} of the essay; 100% done_{number}")
    human = agent.memory.read_human()
    assert human.context_notes == [
        f"Chapter {number} of the essay; 100% done_{number}" for number in (2, 3, 4)
    ]
    archived = official.agents.passages.list(agent.agent_id)
    assert [one.text.split("[CONTEXT] ")[1] for one in archived] == [
        f"Chapter {number} of the essay\\; 100% done_{number}" for number in (0, 1)
    ]
    agent.memory.set_task("Essay")
    agent.memory.clear_task()
    found = agent.memory.search_archival("essay task completed", limit=1)
    assert found[0].startswith("[TASK COMPLETED 20")
    assert found[0].split("\n")[1:3] == ["Task: Essay", "Context:"]


def test_two_concurrent_managers_lose_nothing(official: StrictLetta, agent: BaseAgent) -> None:
    first, second = (Interleaved(official, agent.agent_id) for _ in range(2))
    first.between = lambda: second.learn_fact("Drinks tea")
    first.learn_fact("Plays the cello")
    assert "[FACTS] Drinks tea; Plays the cello" in human_of(agent)

    human = first.read_human()
    second.learn_preference("Short answers")
    human.add_context_note("Met on Monday")
    with pytest.raises(Conflict, match="changed since you read it"):
        first.update_human(human)
    human = first.read_human()
    human.add_context_note("Met on Monday")
    first.between = lambda: second.set_task("Essay")
    with pytest.raises(Conflict, match="changed while it was written"):
        first.update_human(human)
    assert "[TASK] Essay\n[STATE] active_task\n[PREFS] Short answers" in human_of(agent)


def test_two_managers_in_one_process_lose_nothing(client: InProcessClient) -> None:
    made = BaseAgent(client, human=HumanBlock(name="Ada"))
    first, second = (Interleaved(client, made.agent_id) for _ in range(2))
    first.between = lambda: second.learn_fact("Drinks tea")
    first.learn_fact("Plays the cello")
    assert "[FACTS] Drinks tea; Plays the cello" in human_of(made)


def test_many_concurrent_managers_lose_nothing(official: StrictLetta, agent: BaseAgent) -> None:
    def learn(number: int) -> None:
        MemoryManager(official, agent.agent_id).add_context(f"Note {number}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(learn, range(8)))
    archived = "\n".join(one.text for one in official.agents.passages.list(agent.agent_id))
    assert [
        number for number in range(8) if f"Note {number}" not in human_of(agent) + archived
    ] == []


def test_missing_and_too_small_blocks_are_errors(official: StrictLetta, agent: BaseAgent) -> None:
    other = official.agents.create(
        name="bare", model=MODEL, memory_blocks=[{"label": "notes", "value": ""}]
    )
    with pytest.raises(NotFound, match='has no block "human"'):
        MemoryManager(official, other.id).learn_fact("Drinks tea")
    block = official.agents.blocks.retrieve("human", agent_id=agent.agent_id)
    official.blocks.update(block.id, limit=60)
    with pytest.raises(APIStatusError):
        agent.learn(fact="She has been keeping bees by the river since 2019.")
    assert human_of(agent) == "[USER] Alice | Student\n[STATE] idle"
