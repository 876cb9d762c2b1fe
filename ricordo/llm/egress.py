"""The gate: all calls of models from outside `llm/` go through these functions.

Each caller passes a `Clearance`, which knows the labelled texts among the sources of the call. The
gate asks the clearance what the model's provider may see. Calls also need a payer, a `ReplyPayer`
or the `Payer` of embeddings, so that no paid token is missing in the ledger.
`tests/test_architecture.py` refuses other calls of models, and calls without a payer.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from ricordo.domain.egress import Clearance, permits
from ricordo.domain.model import Chunk, EmbeddingPurpose, ModelReply, ModelRequest
from ricordo.domain.usage import Usage
from ricordo.errors import Forbidden, ModelError
from ricordo.llm.chat import ChatModel, CostsTokens, Embedder
from ricordo.llm.chat import whole_reply as whole_reply_of
from ricordo.llm.embedding_meter import metered
from ricordo.llm.policy import DISCARDED, EmptyReply


class ReplyPayer(Protocol):
    """The account that pays for the answers of chat models."""

    async def record(self, handle: str, usage: Usage) -> None:
        """Store the tokens of answers in the ledger, by the handle of the model."""


class Payer(Protocol):
    """The account that pays for embeddings by a provider."""

    async def require_budget(self) -> None:
        """Raise BudgetSpent, a ModelError, if a budget leaves no room for a call."""

    async def record(self, tokens: Mapping[str, int]) -> None:
        """Store the tokens of a call in the ledger, by the handle of the embedding model."""


async def ask(
    model: ChatModel,
    request: ModelRequest,
    clearance: Clearance,
    payer: ReplyPayer | None,
    *,
    takes_empty: bool = False,
) -> AsyncGenerator[Chunk | ModelReply, None]:
    """Ask the model, and yield its chunks and then its reply.

    The tokens of answers that cannot be used are recorded, even if the call fails. The caller
    records those of the reply, with what it makes of the reply.

    Args:
        model: The model.
        request: The request. Notices replace the texts that the model's provider may not see.
        clearance: The labelled texts among the sources of the call. It records what was withheld.
        payer: The account that pays. None: nothing is sent, or there is no ledger.
        takes_empty: An empty answer is a reply, and no failure.

    Raises:
        ModelError: if the call fails.
    """
    messages = clearance.messages(request.messages, clearance.networks.of_model(model.info))
    if messages is not request.messages:
        request = replace(request, messages=tuple(messages))
    handle = model.info.handle
    unpaid: list[Usage] = []
    DISCARDED.set(unpaid)
    answer = model.answer(request)
    try:
        async with aclosing(answer) as events:  # type: ignore[type-var]
            async for event in events:
                if payer and isinstance(event, ModelReply) and event.discarded != Usage():
                    unpaid.clear()
                    await payer.record(handle, event.discarded)
                yield event
    except asyncio.CancelledError:
        if payer and unpaid:
            await payer.record(handle, sum(unpaid, Usage()))
        raise
    except ModelError as error:
        empty_reply = error.reply if takes_empty and isinstance(error, EmptyReply) else None
        discarded = empty_reply.discarded if empty_reply else error.discarded
        if payer and discarded:
            await payer.record(handle, discarded)
        if empty_reply is None:
            raise
        yield empty_reply


async def whole_reply(
    model: ChatModel, request: ModelRequest, clearance: Clearance, payer: ReplyPayer | None
) -> ModelReply:
    """Ask the model, and return its whole reply.

    All tokens of the call are recorded, even if the call fails. The usage of the reply has the
    tokens of all answers of the call, also of those that could not be used.

    Args:
        model: The model.
        request: The request. Notices replace the texts that the model's provider may not see.
        clearance: The labelled texts among the sources of the call. It records what was withheld.
        payer: The account that pays. None: nothing is sent, or there is no ledger.

    Raises:
        ModelError: if the call fails.
    """
    messages = clearance.messages(request.messages, clearance.networks.of_model(model.info))
    unpaid: list[Usage] = []
    DISCARDED.set(unpaid)
    try:
        reply = await whole_reply_of(model, replace(request, messages=tuple(messages)))
    except asyncio.CancelledError:
        if payer and unpaid:
            await payer.record(model.info.handle, sum(unpaid, Usage()))
        raise
    except ModelError as error:
        if payer and error.discarded:
            await payer.record(model.info.handle, error.discarded)
        raise
    reply = replace(reply, usage=reply.usage + reply.discarded)
    if payer:
        await payer.record(model.info.handle, reply.usage)
    return reply


async def embed(
    embedder: Embedder,
    texts: Sequence[str],
    clearance: Clearance,
    payer: Payer | None,
    *,
    purpose: EmbeddingPurpose = "document",
) -> list[list[float]]:
    """Return the texts' vectors.

    The tokens of a provider's model are recorded, even if the call fails after some of them.

    Args:
        embedder: The embedding model.
        texts: The texts.
        clearance: The labelled texts that the work has read.
        payer: The account that pays. None: only a model that costs nothing may be called.
        purpose: "query" for a question of a search, "document" for a stored text.

    Raises:
        Forbidden: if the work has read a text that the embedder's provider may not see. A query may
            repeat that text in other words. Also if one of the texts repeats such a text.
        ModelError: if the call fails, or a budget is used up.
        Unavailable: if the model's package or files are missing.
        RuntimeError: if a provider's model is called without a payer, which is a fault of ours.
    """
    destination = clearance.networks.of_model(embedder.info)
    if not permits(clearance.label, destination):
        raise Forbidden(
            f"The {'question' if purpose == 'query' else 'text'} was not sent to "
            f"{destination.name} for its vector: an egress policy forbids it, because of what the "
            "agent has read."
        )
    for text in texts:
        if source := clearance.repeats(text, destination):
            raise Forbidden(
                f"This text was not sent to {destination.name} for its vector: {source} may not go "
                "there."
            )
    if not isinstance(embedder, CostsTokens):
        return await embedder.embed(texts, purpose=purpose)
    if payer is None:
        raise RuntimeError(f"Nobody pays for embeddings by {embedder.handle}.")
    await payer.require_budget()
    with metered() as tokens:
        try:
            return await embedder.embed(texts, purpose=purpose)
        finally:
            await payer.record(tokens)
