"""An agent with typed memory: made with its two blocks, and a manager of them."""

from typing import Any

from ricordo.memory.typed.blocks import HumanBlock, PersonaBlock
from ricordo.memory.typed.client import MemoryClient
from ricordo.memory.typed.defaults import default_max_chars, require_max_chars
from ricordo.memory.typed.manager import HUMAN, PERSONA, MemoryManager
from ricordo.memory.typed.personas import DEFAULT_PERSONA
from ricordo.memory.typed.rotation import AdaptiveRotation, RotationStrategy


class BaseAgent:
    """Makes an agent whose blocks hold `persona` and `human`; `options` (model, tags …) are those of the client's `agents.create`.

    Raises Invalid where a block does not fit or a setting is wrong; then no agent was made.
    `memory` manages the blocks, `agent_id` names the agent; for an agent that exists, `MemoryManager` is all it takes.
    """

    def __init__(
        self,
        client: MemoryClient,
        *,
        name: str | None = None,
        persona: PersonaBlock = DEFAULT_PERSONA,
        human: HumanBlock | None = None,
        max_chars: int | None = None,
        strategy: RotationStrategy | None = None,
        **options: Any,
    ) -> None:
        # What can be wrong is found before there is an agent.
        limit = default_max_chars() if max_chars is None else require_max_chars(max_chars)
        chosen = strategy or AdaptiveRotation()
        texts = {
            PERSONA: persona.to_memory_string(limit),
            HUMAN: (human or HumanBlock()).to_memory_string(limit),
        }
        blocks = [{"label": label, "value": text} for label, text in texts.items()]
        agent = client.agents.create(name=name or persona.name, memory_blocks=blocks, **options)
        self.client = client
        self.agent_id: str = agent.id
        self.memory = MemoryManager(client, agent.id, limit, chosen)

    def update_context(self, task: str | None = None, note: str | None = None) -> None:
        """Begin a task, note what was done or said, or both."""
        if task:
            self.memory.set_task(task)
        if note:
            self.memory.add_context(note)

    def learn(self, preference: str | None = None, fact: str | None = None) -> None:
        """Note how the user likes things, what is true of her, or both."""
        if preference:
            self.memory.learn_preference(preference)
        if fact:
            self.memory.learn_fact(fact)
