"""Each failure of a provider blames either the request or the provider, over real HTTP.

Only the messages of a blamed request are not sent again (`agents/run_end.py`). So a wrong address,
a missing model or an answer that cannot be read must not blame it, and the refusal of a message
must. The words are those of the named servers.
"""

from collections.abc import Callable
from typing import Any

import pytest

from ricordo.agents.run_end import _REFUSED
from ricordo.domain.model import ModelInfo
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import ChatModel, whole_reply
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from tests.llm.talk import Waits, ask, claude_at, collect
from tests.llm.wild_sdk.test_google import gemini_at
from tests.support.model_server import Answer, ModelServer, claude, event

ONCE, AGAIN = "once", "again"
HTML = {"content-type": "text/html"}
SSE = {"content-type": "text/event-stream"}


def said(status: int, words: str, /, **fields: Any) -> Answer:
    return Answer({"error": {"message": words, **fields}}, status)


def broken_stream(**error: Any) -> Answer:
    return Answer(pieces=(event({"error": error}),), headers=SSE)


def local(server: ModelServer, connections: Connections, waits: Waits) -> ChatModel:
    info = ModelInfo("local/m", "local", "m", "openai", endpoint=server.url)
    return OpenAICompatibleModel(info, connections, waits.policy())


def google(server: ModelServer, connections: Connections, waits: Waits) -> ChatModel:
    pytest.importorskip("google.genai", reason="the extra `google` is not installed")
    return gemini_at(server, connections, waits)


Adapter = Callable[[ModelServer, Connections, Waits], ChatModel]
# The adapter, the answer, its kind, and whether it is asked for again.
ROWS: dict[str, tuple[Adapter, Answer, str, str]] = {
    # The request is to blame.
    "a field": (local, said(422, "messages: field required"), "llm_bad_request", ONCE),
    "Azure's filter": (
        local,
        said(400, "The prompt triggered the content management policy.", code="content_filter"),
        "llm_bad_request",
        ONCE,
    ),
    "OpenRouter's moderation": (
        local,
        said(403, "Your input was flagged: violence", code=403),
        "llm_bad_request",
        ONCE,
    ),
    "OpenAI's prompt filter": (
        local,
        broken_stream(code="invalid_prompt", message="Your prompt was flagged."),
        "llm_bad_request",
        ONCE,
    ),
    "more tokens than a minute has": (
        local,
        said(429, "Request too large for gpt-4o on tokens per min: Limit 30000, Requested 45000."),
        "context_window_exceeded",
        ONCE,
    ),
    "too many bytes": (local, Answer(b"<html>413</html>", 413), "context_window_exceeded", ONCE),
    "Claude's length": (
        claude_at,
        said(400, "prompt is too long: 9 > 5", type="invalid_request_error"),
        "context_window_exceeded",
        ONCE,
    ),
    # The address, the model or the key is to blame.
    "a redirect": (local, Answer(b"", 302, {"location": "/login"}), "llm_error", ONCE),
    "no such path": (local, Answer(b"404 page not found", 404), "llm_error", ONCE),
    "no such method": (local, Answer(b"", 405), "llm_error", AGAIN),
    "a page": (local, Answer(b"<html>Hi</html>", headers=HTML), "llm_error", ONCE),
    "Ollama's missing model": (
        local,
        said(404, 'model "m" not found, try pulling it first'),
        "llm_error",
        ONCE,
    ),
    "vLLM's missing model": (local, said(404, "The model `m` does not exist."), "llm_error", ONCE),
    "LM Studio's missing model": (
        local,
        said(400, "No models loaded. Please load a model in the developer page."),
        "llm_error",
        ONCE,
    ),
    "LM Studio's model that cannot be loaded": (
        local,
        said(400, 'Failed to load model "m". Error: insufficient system resources.'),
        "llm_error",
        ONCE,
    ),
    "Mistral's missing model": (local, said(400, "Invalid model: m"), "llm_error", ONCE),
    "DeepSeek's missing model": (local, said(400, "Model Not Exist"), "llm_error", ONCE),
    "OpenRouter's missing model": (local, said(400, "m is not a valid model ID"), "llm_error", ONCE),
    "Groq's model of yesterday": (
        local,
        said(400, "The model `m` has been decommissioned.", code="model_decommissioned"),
        "llm_error",
        ONCE,
    ),
    "xAI's key": (local, said(400, "Incorrect API key provided: x"), "llm_authentication", ONCE),
    "a key": (local, said(403, "You have no access to m."), "llm_authentication", ONCE),
    "a missing model in a stream": (
        local,
        broken_stream(type="not_found_error", message="model: m"),
        "llm_error",
        ONCE,
    ),
    "a key in a stream": (
        local,
        broken_stream(type="authentication_error", message="invalid x-api-key"),
        "llm_authentication",
        ONCE,
    ),
    "Claude's missing model": (
        claude_at,
        said(404, "model: m", type="not_found_error"),
        "llm_error",
        ONCE,
    ),
    "Google's missing model": (google, said(404, "models/m is not found"), "llm_error", ONCE),
    "Google's key": (google, said(400, "API key not valid."), "llm_authentication", ONCE),
    "Google's countries": (
        google,
        said(400, "User location is not supported for the API use.", status="FAILED_PRECONDITION"),
        "llm_error",
        ONCE,
    ),
    "a billing limit": (
        local,
        said(400, "Billing hard limit has been reached", code="billing_hard_limit_reached"),
        "llm_insufficient_credits",
        ONCE,
    ),
    # The answer is to blame, or the server for now.
    "Claude's answer that cannot be read": (
        claude_at,
        Answer({**claude().body, "content": 5}),
        "llm_error",
        ONCE,
    ),
    "Google's answer that cannot be read": (
        google,
        Answer({"candidates": [{"content": {"parts": 5}}]}),
        "llm_error",
        ONCE,
    ),
    "an answer that cannot be read": (local, Answer({"choices": 5}), "llm_error", AGAIN),
    "a model that is being loaded": (local, said(503, "Loading model"), "llm_error", AGAIN),
    "a runner that stopped": (
        local,
        broken_stream(message="model runner has unexpectedly stopped"),
        "llm_error",
        AGAIN,
    ),
    "no time": (local, broken_stream(type="timeout_error", message="too slow"), "llm_timeout", AGAIN),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_a_failure_blames_the_request_or_the_provider(
    row: tuple[Adapter, Answer, str, str],
    server: ModelServer,
    connections: Connections,
    waits: Waits,
) -> None:
    adapter, answer, kind, calls = row
    server.push(*[answer] * 9)
    model = adapter(server, connections, waits)
    with pytest.raises(ModelError) as caught:
        await collect(model, ask("Hello.", stream=answer.pieces is not None))
    assert caught.value.kind == kind, caught.value
    if kind not in _REFUSED:
        # A refused request and a failure are tried in other forms too.
        assert (len(server.requests) > 1) is (calls == AGAIN)


async def test_an_address_without_a_scheme_blames_no_message(
    connections: Connections, waits: Waits
) -> None:
    info = ModelInfo("local/m", "local", "m", "openai", endpoint="localhost:1234/v1")
    model = OpenAICompatibleModel(info, connections, waits.policy())
    with pytest.raises(ModelError, match="not usable") as caught:
        await whole_reply(model, ask("Hello."))
    assert (caught.value.kind, waits) == ("llm_error", [])
