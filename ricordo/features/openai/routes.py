"""OpenAI's HTTP API: chats with agents as models, embeddings, and models."""

import struct
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence

from fastapi import Response
from fastapi.responses import RedirectResponse

from ricordo.agents.turn import run_turn
from ricordo.api.call import RequestContext
from ricordo.api.sse import DONE, ReadableTurn, sse_response
from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.message import TextPart
from ricordo.domain.text import Json
from ricordo.errors import Invalid
from ricordo.features.openai.answers import (
    AnswerReader,
    Noting,
    completion_chunks,
    completion_head,
    data,
    deltas_of,
    no_note,
    usage_json,
)
from ricordo.features.openai.caller import acting
from ricordo.features.openai.embedding_input import shortened, texts_of
from ricordo.features.openai.errors import CUT_OFF, OpenAIRoutes, failure
from ricordo.features.openai.models import (
    ChatRequest,
    Embeddings,
    EmbeddingsRequest,
    OpenAIAnswer,
    OpenAIModel,
    OpenAIModels,
)
from ricordo.features.openai.options import OpenAIApiSettings
from ricordo.features.openai.queries import NamedAgent, agent_of, usable_agents
from ricordo.features.openai.temporary import temporary_turn
from ricordo.features.openai.turns import (
    ChatTurn,
    chat_name,
    chat_turn,
    is_task,
    is_temporary,
    task_reply,
)
from ricordo.llm.egress import embed
from ricordo.llm.tokens import text_tokens

router = OpenAIRoutes(prefix="/v1", tags=["openai"], scope="messages")


@router.post("/chat/completions", response_model=OpenAIAnswer)
# LiveKit's with_letta() uses the whole address as the base URL.
@router.post(
    "/chat/completions/chat/completions", response_model=OpenAIAnswer, include_in_schema=False
)
async def create_chat_completion(context: RequestContext, body: ChatRequest) -> Json | Response:
    """Continue a chat: the agent answers the chat's new messages in the chat's conversation."""
    context = await acting(context)
    agent = await context.store.read(lambda tx: agent_of(tx, context.scope, body.model))
    has_usage = bool(body.stream_options and body.stream_options.include_usage)
    if is_task(context, body):
        completion = await _answer_task(context, agent, body)
        if body.stream:
            return sse_response(_as_chunks(completion, has_usage=has_usage))
        return completion
    turn: ReadableTurn
    note: Noting
    if is_temporary(chat_name(context, body)):
        turn = await temporary_turn(context, agent, body)
        reader = AnswerReader(context.store.clock, (), "", bool(body.answer_format()))
        note = no_note
    else:
        turn_plan = await chat_turn(context, agent, body)
        reader = reader_of(context, turn_plan)
        turn = await run_turn(context.runtime, turn_plan.request)
        note = turn_plan.note
    stops_when_left = OpenAIApiSettings.current().openai_leaving == "stop"
    keepalive = context.runtime.settings.keepalive
    deltas = deltas_of(turn, reader, note, keepalive, stops_when_left=stops_when_left)
    if body.stream:
        return sse_response(
            completion_chunks(body.model, deltas, reader, has_usage=has_usage), CUT_OFF
        )
    async for _ in deltas:
        pass
    if reader.failed:
        return failure(reader.failed)
    return _completion(
        completion_head(reader, body.model), reader.message(), reader.finish_reason, reader.usage()
    )


@router.get("/models", response_model=OpenAIModels)
async def list_openai_models(context: RequestContext) -> Json | Response:
    """List the agents that the caller may use, as models.

    Clients of Letta are redirected to their list, whose path ends with a slash.
    """
    if context.request.headers.get("user-agent", "").startswith(("Letta/", "AsyncLetta/")):
        return RedirectResponse(
            context.request.url.replace(path=f"{context.request.url.path}/"), 307
        )
    context = await acting(context)
    agents = await context.store.read(lambda tx: usable_agents(tx, context.scope))
    return OpenAIModels.of(None, data=[_model(agent) for agent in agents])


@router.get("/models/{model_id:path}", response_model=OpenAIModel)
async def retrieve_openai_model(context: RequestContext, model_id: str) -> Json:
    """Return an agent, by name or id, as a model."""
    context = await acting(context)
    return _model(await context.store.read(lambda tx: agent_of(tx, context.scope, model_id)))


@router.post("/embeddings", response_model=Embeddings)
async def create_embeddings(context: RequestContext, body: EmbeddingsRequest) -> Json:
    """Turn texts into vectors, by an embedding model of this server."""
    context = await acting(context)
    embedders = context.runtime.models.embedders
    handle = None
    if body.model != "default":
        handle = await embedders.choose(body.model)
    handle = handle or embedders.default_handle()
    if handle is None:
        raise Invalid(
            "This server has no default embedding model. Choose one from GET /v1/models/embedding."
        )
    texts = await texts_of(body.input)
    embedder = embedders.get(handle)
    account = context.runtime.embedding_account(context.scope)
    vectors = await embed(embedder, texts, context.runtime.new_clearance(), account)
    if body.dimensions is not None:
        vectors = shortened(vectors, body.dimensions)
    count = sum(map(text_tokens, texts))
    encode = _packed if body.encoding_format == "base64" else list
    embeddings = [
        {"object": "embedding", "index": index, "embedding": encode(vector)}
        for index, vector in enumerate(vectors)
    ]
    return Embeddings.of(
        None, model=handle, data=embeddings, usage={"prompt_tokens": count, "total_tokens": count}
    )


def reader_of(context: RequestContext, turn_plan: ChatTurn) -> AnswerReader:
    """Return a reader that turns the turn's events into the answer.

    Args:
        context: The call, for the clock and the server's address.
        turn_plan: The request of the turn. The answer may link the page of its conversation, where
            a person decides on waiting calls.
    """
    request = turn_plan.request
    home = str(context.request.base_url).rstrip("/")
    page = f"{home}/ui/agents/{request.agent_id}/chat?conversation={request.conversation_id}"
    has_form = bool(request.overrides.response_format or request.overrides.wanted_tools)
    return AnswerReader(
        context.store.clock, {tool.name for tool in request.overrides.client_tools}, page, has_form
    )


async def _answer_task(context: RequestContext, agent: NamedAgent, body: ChatRequest) -> Json:
    reply = await task_reply(context, agent, body)
    text = "\n".join(part.text for part in reply.parts if isinstance(part, TextPart))
    now = context.store.clock.now() // SECOND
    head = {"id": new_id("chatcmpl"), "created": now, "model": body.model}
    message = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "reasoning_content": None,
        "tool_calls": None,
    }
    return _completion(head, message, "stop", usage_json(reply.usage))


def _completion(head: Json, message: Json, finish: str, usage: Json) -> Json:
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


async def _as_chunks(completion: Json, *, has_usage: bool) -> AsyncIterator[bytes]:
    """Yield a whole answer as a stream of one piece."""
    (choice,) = completion["choices"]
    head = {
        "id": completion["id"],
        "created": completion["created"],
        "model": completion["model"],
        "object": "chat.completion.chunk",
    }
    delta = {"role": "assistant", "content": choice["message"]["content"]}
    yield data(
        {
            **head,
            "choices": [{"index": 0, "delta": delta, "finish_reason": "stop", "logprobs": None}],
        }
    )
    if has_usage:
        yield data({**head, "choices": [], "usage": completion["usage"]})
    yield DONE


def _model(agent: NamedAgent) -> Json:
    return OpenAIModel.of(None, id=agent.model, created=agent.created_at // SECOND)


def _packed(vector: Sequence[float]) -> str:
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
