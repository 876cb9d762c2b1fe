"""The gate: all calls of models from outside `llm/` go through these functions.

Each caller passes a `Clearance`, which knows the labelled texts among the sources of the call. The
gate asks the clearance what the model's provider may see. `tests/test_architecture.py` refuses
other calls of models.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from ricordo.domain.egress import Clearance, permits
from ricordo.domain.model import Chunk, EmbeddingPurpose, ModelReply, ModelRequest
from ricordo.errors import Forbidden
from ricordo.llm.chat import ChatModel, Embedder
from ricordo.llm.chat import whole_reply as whole_reply_of


async def ask(
    model: ChatModel, request: ModelRequest, clearance: Clearance
) -> AsyncGenerator[Chunk | ModelReply, None]:
    """Ask the model, and yield its chunks and then its reply.

    Args:
        model: The model.
        request: The request. Notices replace the texts that the model's provider may not see.
        clearance: The labelled texts among the sources of the call. It records what was withheld.

    Raises:
        ModelError: if the call fails.
    """
    messages = clearance.messages(request.messages, clearance.networks.of_model(model.info))
    if messages is not request.messages:
        request = replace(request, messages=tuple(messages))
    answer = model.answer(request)
    async with aclosing(answer) as events:  # type: ignore[type-var]
        async for event in events:
            yield event


async def whole_reply(model: ChatModel, request: ModelRequest, clearance: Clearance) -> ModelReply:
    """Ask the model, and return its whole reply.

    Args:
        model: The model.
        request: The request. Notices replace the texts that the model's provider may not see.
        clearance: The labelled texts among the sources of the call. It records what was withheld.

    Raises:
        ModelError: if the call fails.
    """
    messages = clearance.messages(request.messages, clearance.networks.of_model(model.info))
    return await whole_reply_of(model, replace(request, messages=tuple(messages)))


async def embed(
    embedder: Embedder,
    texts: Sequence[str],
    clearance: Clearance,
    *,
    purpose: EmbeddingPurpose = "document",
) -> list[list[float]]:
    """Return the texts' vectors.

    Args:
        embedder: The embedding model.
        texts: The texts.
        clearance: The labelled texts that the work has read.
        purpose: "query" for a question of a search, "document" for a stored text.

    Raises:
        Forbidden: if the work has read a text that the embedder's provider may not see, since a
            query may repeat it in other words. Also if one of the texts repeats such a text.
        ModelError: if the call fails.
    """
    destination = clearance.networks.of_model(embedder.info)
    if not permits(clearance.label, destination):
        raise Forbidden(
            f"The question was not sent to {destination.name} for its vector: an egress policy "
            "forbids it, because of what the agent has read."
        )
    for text in texts:
        if source := clearance.repeats(text, destination):
            raise Forbidden(
                f"This text was not sent to {destination.name} for its vector: {source} may not go "
                "there."
            )
    return await embedder.embed(texts, purpose=purpose)
