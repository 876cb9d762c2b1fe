"""The promise of the product: an agent remembers after a SIGKILL of the server.

Here the model is a scripted server that speaks a real provider's protocol. test_docs.py runs the
README's conversation, whose model is the librarian.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from letta_client import AsyncLetta

from tests.support.model_server import Answer, ModelServer, Seen, completion, tool_call
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK, ServerProcess

FACT = "Her favourite tea is jasmine."


def model(seen: Seen) -> Answer:
    """Store the fact that the user tells, and answer only from the instructions.

    The model does not know a fact that the instructions lack.
    """
    if seen.method == "GET":
        return Answer({"object": "list", "data": [{"id": "small", "object": "model"}]})
    messages: list[dict[str, Any]] = seen.body["messages"]
    if messages[-1]["role"] == "tool":
        return completion("Noted.")
    if "My favourite tea" in messages[-1]["content"]:
        return completion(
            None, [tool_call("memory_insert", {"label": "human", "new_string": FACT})]
        )
    return completion("Jasmine." if FACT in messages[0]["content"] else "I do not know.")


@pytest.mark.skipif(not CAN_FORK, reason="the helper forks")
async def test_an_agent_on_a_scripted_model_remembers_after_a_sigkill(
    tmp_path: Path, helper: Helper
) -> None:
    async with ModelServer(model) as models:
        environment = {"OPENAI_BASE_URL": models.url, "OPENAI_API_KEY": "key"}
        server = ServerProcess(helper, tmp_path, environment, None)
        await asyncio.to_thread(server.start)
        async with AsyncLetta(
            base_url=server.url, api_key=None, _strict_response_validation=True
        ) as client:
            blocks = [{"label": "human", "value": "Her name is Ada."}]
            agent = await client.agents.create(model="openai/small", memory_blocks=blocks)
            assert await _say(client, agent.id, "My favourite tea is jasmine.") == "Noted."
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            assert await _say(client, agent.id, "What is my favourite tea?") == "Jasmine."
            human = await client.agents.blocks.retrieve("human", agent_id=agent.id)
            assert human.value == f"Her name is Ada.\n{FACT}"
        await asyncio.to_thread(server.stop)


async def _say(client: AsyncLetta, agent_id: str, text: str) -> Any:
    answer = await client.agents.messages.create(
        agent_id, messages=[{"role": "user", "content": text}]
    )
    return answer.messages[-1].content
