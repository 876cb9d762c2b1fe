import pytest

from ricordo.errors import Invalid
from ricordo.features.typed_memory.blocks import CODING_ASSISTANT_PERSONA, HumanBlock
from ricordo.features.typed_memory.manager import BaseAgent
from ricordo.features.typed_memory.rotation import PreservativeRotation
from tests.features.typed_memory.fake import FakeLetta


def test_an_agent_is_made_with_its_two_blocks() -> None:
    client = FakeLetta()
    agent = BaseAgent(
        client, persona=CODING_ASSISTANT_PERSONA, human=HumanBlock(name="Ada"), model="openai/gpt-4.1", tags=["x"]
    )

    assert client.agents.made == [
        {
            "name": "CodeHelper",
            "model": "openai/gpt-4.1",
            "tags": ["x"],
            "memory_blocks": [
                {"label": "persona", "value": CODING_ASSISTANT_PERSONA.to_memory_string()},
                {"label": "human", "value": "[USER] Ada\n[STATE] idle"},
            ],
        }
    ]
    assert (agent.agent_id, agent.memory.agent_id) == ("agent-1", "agent-1")


def test_an_agent_updates_its_context_and_learns() -> None:
    client = FakeLetta()
    agent = BaseAgent(client)
    agent.update_context(task="Essay", note="Begin")
    agent.update_context(note="Talked")
    agent.learn(preference="Short answers", fact="Lives in Turin")
    agent.learn()
    agent.update_context()

    assert client.human == (
        "[TASK] Essay\n[STATE] active_task\n[PREFS] Short answers\n[FACTS] Lives in Turin\n[CONTEXT] Begin; Talked"
    )


def test_what_is_wrong_is_found_before_there_is_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeLetta()
    with pytest.raises(Invalid):
        BaseAgent(client, max_chars=100)
    monkeypatch.setenv("ARCHIVAL_ROTATION_THRESHOLD", "80")
    with pytest.raises(Invalid):
        BaseAgent(client)
    assert client.agents.made == []

    assert BaseAgent(client, max_chars=200, strategy=PreservativeRotation()).memory.max_chars == 200
