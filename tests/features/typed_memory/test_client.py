"""Typed memory without a server, on a database in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ricordo.app import open_in_thread
from ricordo.errors import Invalid, NotFound, Unavailable
from ricordo.features.typed_memory.client import InProcessClient
from ricordo.features.typed_memory.manager import BaseAgent, MemoryManager
from ricordo.settings import ProviderSettings, Settings


def settings_in(folder: Path) -> Settings:
    return Settings(data_dir=folder, find_local_models=False)


@contextmanager
def open_client(settings: Settings, providers: ProviderSettings) -> Iterator[InProcessClient]:
    with open_in_thread(settings, providers) as opened:
        yield InProcessClient(*opened)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessClient]:
    """A client on a database of its own."""
    with open_client(settings_in(tmp_path_factory.mktemp("data")), ProviderSettings.model_construct()) as opened:
        yield opened


def test_what_leaves_the_block_is_archived_and_found(client: InProcessClient) -> None:
    memory = MemoryManager(client, BaseAgent(client).agent_id, max_chars=400)
    memory.set_task("Learn the names of trees")
    memory.add_context("Talked about the old chestnut in Genoa")
    memory.clear_task()
    for number in range(12):
        memory.add_context(f"Chapter {number} is about oaks and elms")
    assert memory.get_summary()["current_task"] is None
    (found, *_) = memory.search_archival("old chestnut", limit=3)
    assert found.startswith("[TASK COMPLETED ")
    (listed, *_) = client.agents.passages.list(memory.agent_id, search="chestnut", limit=5, ascending=True)
    assert listed.text == found


def test_what_is_not_there_or_not_known_is_told(client: InProcessClient) -> None:
    agent_id = BaseAgent(client).agent_id
    with pytest.raises(NotFound, match="no block"):
        client.agents.blocks.retrieve("notes", agent_id=agent_id)
    with pytest.raises(NotFound):
        MemoryManager(client, "agent-nobody").learn_fact("Sings")
    with pytest.raises(Invalid, match='"colour" cannot be set here'):
        BaseAgent(client, colour="green")


def test_a_client_that_was_closed_says_so(tmp_path: Path) -> None:
    with open_client(settings_in(tmp_path), ProviderSettings.model_construct()) as closed:
        pass
    with pytest.raises(Unavailable, match="was closed"):
        closed.agents.blocks.retrieve("human", agent_id="agent-1")
