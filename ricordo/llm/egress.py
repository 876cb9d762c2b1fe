"""The gate: the only functions outside of `llm/` that send texts to a model.

Every call passes a `Clearance`, which knows the labelled texts among its sources. The gate asks it
what the model's provider may see. `tests/test_architecture.py` refuses a call of a model that does
not come through here.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from ricordo.domain.egress import Clearance, Destination, permits
from ricordo.domain.model import Chunk, EmbeddingPurpose, ModelReply, ModelRequest
from ricordo.errors import Forbidden
from ricordo.llm.chat import ChatModel, Embedder
from ricordo.llm.chat import whole_reply as whole_reply_of


def destination_of(model: ChatModel | Embedder, clearance: Clearance) -> Destination:
    """Return the destination of the model's calls."""
    info = model.info
    return clearance.networks.of_model(info.provider, info.name, info.endpoint)


async def ask(
    model: ChatModel, request: ModelRequest, clearance: Clearance
) -> AsyncGenerator[Chunk | ModelReply, None]:
    """Ask the model, and yield its chunks and its reply."""
    messages = clearance.messages(request.messages, destination_of(model, clearance))
    if messages is not request.messages:
        request = replace(request, messages=tuple(messages))
    answer = model.answer(request)
    async with aclosing(answer) as events:  # type: ignore[type-var]
        async for event in events:
            yield event


async def whole_reply(model: ChatModel, request: ModelRequest, clearance: Clearance) -> ModelReply:
    """Ask the model, and return its reply alone."""
    messages = clearance.messages(request.messages, destination_of(model, clearance))
    return await whole_reply_of(model, replace(request, messages=tuple(messages)))


async def embed(
    embedder: Embedder,
    texts: Sequence[str],
    clearance: Clearance,
    *,
    purpose: EmbeddingPurpose = "document",
) -> list[list[float]]:
    """Return the texts' vectors.

    Raises:
        Forbidden: if the work has read anything that the embedder's provider may not see, since a
            question for a search may hold it in other words, or if a text repeats such a text.
    """
    destination = destination_of(embedder, clearance)
    if not permits(clearance.label, destination):
        raise Forbidden(
            f"The question is withheld from {destination.name}, which makes the vectors: an egress "
            "policy allows it less than the agent has read."
        )
    for text in texts:
        if source := clearance.repeats(text, destination):
            raise Forbidden(
                f"This text is withheld from {destination.name}, which makes the vectors: "
                f"{source} may not go there."
            )
    return await embedder.embed(texts, purpose=purpose)
