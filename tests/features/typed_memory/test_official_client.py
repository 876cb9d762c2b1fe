"""Typed memory through the official client, on the real app over HTTP."""

from collections.abc import Iterator

import pytest
from letta_client import APIStatusError

from ricordo.errors import NotFound
from ricordo.features.typed_memory.blocks import HumanBlock, PersonaBlock
from ricordo.features.typed_memory.manager import BaseAgent, MemoryManager
from tests.seams.server import MODEL, StrictLetta, serving

PERSONA = PersonaBlock(name="Nina", role="Tutor")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrictLetta]:
    """The official client of a running server."""
    with serving(tmp_path_factory.mktemp("data")) as server, server.client() as opened:
        yield opened


@pytest.fixture
def agent(client: StrictLetta) -> BaseAgent:
    """An agent with typed memory, who knows Alice."""
    alice = HumanBlock(name="Alice", role="Student")
    return BaseAgent(client, persona=PERSONA, human=alice, model=MODEL)


def human_of(agent: BaseAgent) -> str:
    return agent.client.agents.blocks.retrieve("human", agent_id=agent.agent_id).value


def archive_of(client: StrictLetta, agent: BaseAgent) -> list[str]:
    return [passage.text for passage in client.agents.passages.list(agent.agent_id)]


def test_an_agent_is_made_and_learns(client: StrictLetta, agent: BaseAgent) -> None:
    made = client.agents.retrieve(agent.agent_id)
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


def test_what_leaves_the_block_is_found_in_the_archive(client: StrictLetta, agent: BaseAgent) -> None:
    for number in range(5):
        agent.memory.add_context(f"Chapter {number} of the essay; 100% done_{number}")
    human = agent.memory.read_human()
    assert human.context_notes == [f"Chapter {number} of the essay; 100% done_{number}" for number in (2, 3, 4)]
    archived = archive_of(client, agent)
    assert [text.split("[CONTEXT] ")[1] for text in archived] == [
        f"Chapter {number} of the essay\\; 100% done_{number}" for number in (0, 1)
    ]
    agent.memory.set_task("Essay")
    agent.memory.clear_task()
    found = agent.memory.search_archival("essay task completed", limit=1)
    assert found[0].startswith("[TASK COMPLETED 20")
    assert found[0].split("\n")[1:3] == ["Task: Essay", "Context:"]


def test_a_missing_block_and_one_that_is_too_small_are_clear_errors(client: StrictLetta, agent: BaseAgent) -> None:
    other = client.agents.create(name="bare", model=MODEL, memory_blocks=[{"label": "notes", "value": ""}])
    with pytest.raises(NotFound, match='has no block "human"'):
        MemoryManager(client, other.id).learn_fact("Drinks tea")
    block = client.agents.blocks.retrieve("human", agent_id=agent.agent_id)
    client.blocks.update(block.id, limit=60)
    with pytest.raises(APIStatusError):
        agent.learn(fact="She has been keeping bees by the river since 2019.")
    assert human_of(agent) == "[USER] Alice | Student\n[STATE] idle"
