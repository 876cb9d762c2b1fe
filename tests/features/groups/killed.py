"""A plugin for servers that are killed: a model whose agents pass on what they are told to whom they are told."""

import asyncio
import re
from collections.abc import Sequence

from ricordo.domain.model import ModelRequest
from ricordo.llm.scripted import Line, ScriptedModel, call

MODEL = "scripted/model"
_ORDER = re.compile(r"(send_message_to_\w+) (agent-\S+) (.+)")


class KilledPlugin:
    """Brings the model."""

    def providers(self) -> Sequence[ScriptedModel]:
        return (ScriptedModel(_answer),)


async def _answer(request: ModelRequest) -> Line:
    await asyncio.sleep(0.02)
    last = request.messages[-1]
    if last.role == "user" and (order := _ORDER.search(last.text)):
        tool, other_agent_id, message = order.groups()
        return call(tool, message=message, other_agent_id=other_agent_id)
    return "Done."


plugin = KilledPlugin()
