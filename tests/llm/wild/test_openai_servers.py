"""Every collected answer, over real HTTP: its meaning, and that its chunks say the same."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
import pytest_asyncio

from ricordo.domain.message import Message, ReasoningPart
from ricordo.domain.model import ModelInfo, ModelReply, ModelRequest, ModelSettings
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from tests.llm.talk import CLOCK, WEATHER, Waits, ask, collect, said, weather_call, weather_return
from tests.llm.wild.hosted_servers import HOSTED, OPENROUTER
from tests.llm.wild.local_servers import LOCAL
from tests.llm.wild.openai_shapes import (
    DONE,
    ROME,
    Case,
    as_joined,
    body,
    call,
    delta,
    events,
    joined,
    meaning_of,
    piece,
)
from tests.support.model_server import ModelServer

# All tests share one loop, one server and one client: a client for each answer would take ten times
# as long.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as running:
        yield running


@pytest.fixture
def server(one_server: ModelServer) -> ModelServer:
    one_server.requests.clear()
    return one_server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connections() -> AsyncIterator[Connections]:
    made = Connections(timeout=5)
    yield made
    await made.close()


def model_at(
    server: ModelServer, kind: str, connections: Connections, name: str = "some-model"
) -> OpenAICompatibleModel:
    info = ModelInfo(f"{kind}/{name}", kind, name, kind, endpoint=server.url)
    return OpenAICompatibleModel(
        info, connections, Waits().policy(), api_key="k", api_version="2024-10-21"
    )


@pytest.mark.parametrize("table", [HOSTED, LOCAL], ids=["hosted", "local"])
async def test_every_collected_answer_is_understood(
    table: Iterable[Case], server: ModelServer, connections: Connections
) -> None:
    for case in table:
        server.requests.clear()
        server.push(*case.answers)
        model = model_at(server, case.server, connections, case.model)
        chunks, reply = await collect(
            model, ask("Weather?", tools=[WEATHER, CLOCK], stream=case.streams)
        )
        assert (meaning_of(reply), reply.finish) == (case.means, case.ends), case
        assert min(reply.usage.prompt_tokens, reply.usage.completion_tokens) > 0, case
        assert len(server.requests) == len(case.answers), case
        assert joined(chunks) == (as_joined(reply) if case.streams else ("", "", [])), case


async def asked_with(
    server: ModelServer,
    connections: Connections,
    kind: str,
    name: str,
    *messages: Message | str,
    **fields: Any,
) -> dict[str, Any]:
    """Return the request that the server gets."""
    await collect(model_at(server, kind, connections, name), ask(*messages, **fields))
    seen: dict[str, Any] = server.requests[-1].body
    return seen


async def replayed(
    case: Case, server: ModelServer, connections: Connections
) -> tuple[ModelReply, dict[str, Any]]:
    """Return the reply of a case, and its message as it is sent back to the same server."""
    server.push(*case.answers)
    model = model_at(server, case.server, connections, case.model)
    _, reply = await collect(model, ask("Hi", tools=[WEATHER, CLOCK], stream=case.streams))
    follow_up = (said("user", "Hi"), said("assistant", *reply.parts), said("user", "And now?"))
    seen = await asked_with(server, connections, case.server, case.model, *follow_up)
    return reply, next(row for row in seen["messages"] if row["role"] == "assistant")


@pytest.mark.parametrize("case", [each for each in OPENROUTER if "proof" in each.name], ids=str)
async def test_openrouters_reasoning_details_are_sent_back_unchanged(
    case: Case, server: ModelServer, connections: Connections
) -> None:
    reply, row = await replayed(case, server, connections)
    detail = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0, "id": None}
    assert row["reasoning_details"][0] == {**detail, "text": "Greet.", "signature": "sig=="}
    if not case.streams:
        assert row["reasoning_details"][1]["data"] == "gAAA"
    assert row["content"] == "Ciao!"
    thought = reply.parts[0]
    assert isinstance(thought, ReasoningPart)
    assert thought.provider == "openrouter"


async def test_mistrals_reasoning_is_sent_back_as_thinking_pieces(
    server: ModelServer, connections: Connections
) -> None:
    thought = ReasoningPart("Greet.", provider="mistral")
    seen = await asked_with(
        server,
        connections,
        "mistral",
        "magistral-small",
        "Hi",
        said("assistant", thought, "Ciao!"),
        "Yes",
    )
    assert seen["messages"][2]["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Greet."}]},
        {"type": "text", "text": "Ciao!"},
    ]


async def test_deepseek_gets_its_reasoning_back_only_with_calls(
    server: ModelServer, connections: Connections
) -> None:
    thought = ReasoningPart("Look.", provider="deepseek")
    calls = said("assistant", thought, weather_call())
    bare = said("assistant", weather_call("call_2"))
    words = said("assistant", thought, "Sunny.")
    messages = (
        "Hi",
        calls,
        said("tool", weather_return()),
        bare,
        said("tool", weather_return("call_2")),
        words,
        "And now?",
    )
    seen = await asked_with(server, connections, "deepseek", "deepseek-chat", *messages)
    rows = [row for row in seen["messages"] if row["role"] == "assistant"]
    assert [row.get("reasoning_content") for row in rows] == ["Look.", "", None]


async def test_reasoning_of_another_provider_is_not_sent(
    server: ModelServer, connections: Connections
) -> None:
    thought = ReasoningPart("Secret.", signature="sig", provider="anthropic")
    for kind in ("vllm", "ollama", "groq", "openrouter", "mistral", "openai"):
        await asked_with(
            server, connections, kind, "m", "Hi", said("assistant", thought, "Ciao!"), "Yes"
        )
        assert b"Secret." not in server.requests[-1].raw, kind
        assert b"sig" not in server.requests[-1].raw, kind


THINKS = [
    ("azure", "gpt-4.1", "high", {}),  # At OpenAI's own address the same text is sent.
    ("groq", "openai/gpt-oss-20b", "minimal", {"reasoning_effort": "low"}),
    ("groq", "qwen/qwen3-32b", "high", {"reasoning_effort": "default"}),
    ("groq", "llama-3.3-70b", "high", {}),
    (
        "deepseek",
        "deepseek-v4-pro",
        "xhigh",
        {"thinking": {"type": "enabled"}, "reasoning_effort": "high"},
    ),
    ("deepseek", "deepseek-v4-pro", "none", {"thinking": {"type": "disabled"}}),
    ("xai", "grok-3-mini", "medium", {"reasoning_effort": "high"}),
    ("xai", "grok-4-0709", "high", {}),
    ("mistral", "magistral-medium", "low", {"prompt_mode": "reasoning"}),
    ("mistral", "mistral-small-latest", "low", {"reasoning_effort": "high"}),
    ("mistral", "mistral-large-latest", "low", {}),
    ("openrouter", "any/model", "xhigh", {"reasoning": {"effort": "xhigh"}}),
    ("together", "openai/gpt-oss-20b", "none", {"reasoning": {"enabled": False}}),
    ("ollama", "qwen3", "minimal", {"reasoning_effort": "low"}),
    ("vllm", "qwen3", "none", {"chat_template_kwargs": {"enable_thinking": False}}),
    ("llamacpp", "gpt-oss", "xhigh", {"reasoning_effort": "high"}),
    ("lmstudio", "gpt-oss", "low", {"reasoning_effort": "low"}),
]
_FIELDS = {"reasoning_effort", "reasoning", "thinking", "prompt_mode", "chat_template_kwargs"}


async def test_the_reasoning_effort_is_sent_in_each_servers_field(
    server: ModelServer, connections: Connections
) -> None:
    for kind, name, effort, sent in THINKS:
        settings = ModelSettings(reasoning_effort=effort)
        seen = await asked_with(server, connections, kind, name, "Hi", settings=settings)
        assert {key: value for key, value in seen.items() if key in _FIELDS} == sent, (kind, name)


async def test_a_reasoning_budget_is_sent_only_where_there_is_a_field_for_it(
    server: ModelServer, connections: Connections
) -> None:
    settings = ModelSettings(max_reasoning_tokens=2_000)
    seen = await asked_with(server, connections, "openrouter", "m", "Hi", settings=settings)
    assert seen["reasoning"] == {"max_tokens": 2_000}
    assert not _FIELDS & set(
        await asked_with(server, connections, "vllm", "m", "Hi", settings=settings)
    )


async def test_openais_reasoning_models_get_no_setting_they_refuse(
    server: ModelServer, connections: Connections
) -> None:
    settings = ModelSettings(
        0.7, 100, parallel_tool_calls=False, reasoning_effort="low", extra={"verbosity": "low"}
    )
    seen = await asked_with(
        server, connections, "azure", "o4-mini", "Hi", tools=[WEATHER], settings=settings
    )
    assert not {"temperature", "parallel_tool_calls", "verbosity", "max_tokens"} & set(seen)
    assert (seen["max_completion_tokens"], seen["reasoning_effort"]) == (100, "low")
    seen = await asked_with(
        server, connections, "azure", "gpt-5-mini", "Hi", tools=[WEATHER], settings=settings
    )
    assert (seen["verbosity"], seen["parallel_tool_calls"]) == ("low", False)
    seen = await asked_with(
        server, connections, "mistral", "m", "Hi", tools=[WEATHER], settings=settings
    )
    assert "verbosity" not in seen


async def test_tools_are_strict_if_requested_and_supported(
    server: ModelServer, connections: Connections
) -> None:
    settings = ModelSettings(extra={"strict": True})
    seen = await asked_with(
        server, connections, "azure", "gpt-4.1", "Hi", tools=[WEATHER], settings=settings
    )
    function = seen["tools"][0]["function"]
    assert (function["strict"], function["parameters"]["additionalProperties"]) == (True, False)
    assert "strict" not in seen
    seen = await asked_with(
        server, connections, "mistral", "m", "Hi", tools=[WEATHER], settings=settings
    )
    assert "strict" not in seen["tools"][0]["function"]


async def test_deepseek_is_forced_without_thinking_or_left_to_choose(
    server: ModelServer, connections: Connections
) -> None:
    forced: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required"}
    server.push(*[body({"tool_calls": [call("get_weather", ROME)]}, "tool_calls")] * 3)
    seen = await asked_with(server, connections, "deepseek", "deepseek-v4-pro", "Hi", **forced)
    assert (seen["tool_choice"], seen["thinking"]) == ("required", {"type": "disabled"})
    settings = ModelSettings(reasoning_effort="high")
    seen = await asked_with(
        server, connections, "deepseek", "deepseek-v4-pro", "Hi", settings=settings, **forced
    )
    assert (seen["tool_choice"], seen["thinking"]) == ("auto", {"type": "enabled"})
    seen = await asked_with(server, connections, "deepseek", "deepseek-reasoner", "Hi", **forced)
    assert seen["tool_choice"] == "auto"
    assert "thinking" not in seen


async def test_mistral_gets_short_ids_and_no_user_message_right_after_a_tool(
    server: ModelServer, connections: Connections
) -> None:
    messages = ("Hi", said("assistant", weather_call()), said("tool", weather_return()), "And now?")
    seen = await asked_with(
        server, connections, "mistral", "m", *messages, stream=True, user_id="user-1"
    )
    assert not {"user", "stream_options"} & set(seen)
    rows = seen["messages"][2:]
    assert [row["role"] for row in rows] == ["assistant", "tool", "assistant", "user"]
    assert rows[0]["tool_calls"][0]["id"] == rows[1]["tool_call_id"]
    assert len(rows[1]["tool_call_id"]) == 9


async def test_azure_is_called_by_deployment_with_its_api_key_header(
    server: ModelServer, connections: Connections
) -> None:
    info = ModelInfo("azure/my gpt", "azure", "my gpt", "azure", endpoint=server.root)
    model = OpenAICompatibleModel(
        info, connections, Waits().policy(), api_key="k", api_version="2024-10-21"
    )
    await collect(model, ask("Hi"))
    seen = server.requests[0]
    assert seen.path == "/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21"
    assert seen.headers["api-key"] == "k"
    assert "authorization" not in seen.headers


async def test_broken_calls_are_returned_to_the_model_once_and_then_accepted(
    server: ModelServer, connections: Connections
) -> None:
    bad = [call("get_weather", '{"city": Rome'), call("get_weather", "[1]", "call_2")]
    server.push(*[body({"tool_calls": bad}, "tool_calls")] * 2)
    _, reply = await collect(
        model_at(server, "vllm", connections), ask("Weather?", tools=[WEATHER, CLOCK])
    )
    assert len(server.requests) == 2
    *_, answer, first, second = server.requests[1].body["messages"]
    assert [each["id"] for each in answer["tool_calls"]] == ["call_1", "call_2"]
    assert (first["tool_call_id"], second["tool_call_id"]) == ("call_1", "call_2")
    assert "not valid JSON" in first["content"]
    assert "Call get_weather again." in first["content"]
    assert len(reply.parts) == 2
    server.push(body({"tool_calls": [bad[0], call("get_time", "{}", "call_2")]}, "tool_calls"))
    _, reply = await collect(
        model_at(server, "vllm", connections), ask("Weather?", tools=[WEATHER, CLOCK])
    )
    assert (len(server.requests), len(reply.parts)) == (3, 2)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_cut_off_twice_is_an_error_that_says_what_to_do(
    streams: bool, server: ModelServer, connections: Connections
) -> None:
    half = '{"city": "' + "Ro" * 2_000
    whole = body({"tool_calls": [call("get_weather", half)]}, "length")
    pieces = (
        delta({"tool_calls": [piece(0, name="get_weather", arguments=half, call_id="1")]}),
        delta({}, "length"),
        DONE,
    )
    server.push(*[events(*pieces) if streams else whole] * 2)
    with pytest.raises(ModelError, match=r"cut off at its length limit.*max_output_tokens"):
        await collect(
            model_at(server, "vllm", connections), ask("Weather?", tools=[WEATHER], stream=streams)
        )
    assert len(server.requests) == 2
    assert len(server.requests[1].raw) < 3_000


async def test_a_model_that_must_call_a_tool_is_reminded_once(
    server: ModelServer, connections: Connections
) -> None:
    server.push(
        body({"content": "I will not."}),
        body({"tool_calls": [call("get_weather", ROME)]}, "tool_calls"),
    )
    request: ModelRequest = ask("Weather?", tools=[WEATHER], tool_choice="required")
    _, reply = await collect(model_at(server, "ollama", connections), request)
    assert meaning_of(reply) == (("call", "get_weather", ROME),)
    told = server.requests[1].body["messages"][-2:]
    assert [row["role"] for row in told] == ["assistant", "user"]
    server.push(body({"content": "No."}), body({"content": "No!"}))
    _, reply = await collect(model_at(server, "ollama", connections), request)
    assert meaning_of(reply) == (("text", "No!"),)


async def test_reasoning_tokens_that_xai_reports_separately_are_added(
    server: ModelServer, connections: Connections
) -> None:
    case = next(each for each in HOSTED if each.server == "xai" and not each.streams)
    server.push(*case.answers)
    _, reply = await collect(model_at(server, "xai", connections), ask("Hi"))
    assert (
        reply.usage.completion_tokens,
        reply.usage.reasoning_tokens,
        reply.usage.total_tokens,
    ) == (32, 30, 42)


async def test_every_server_has_streamed_and_whole_answers_in_the_collection() -> None:
    by_server: dict[str, list[Case]] = {}
    for case in (*HOSTED, *LOCAL):
        by_server.setdefault(case.server, []).append(case)
    kinds = {"openai", "azure", "groq", "deepseek", "xai", "mistral", "together", "openrouter"}
    assert set(by_server) == kinds | {"ollama", "lmstudio", "vllm", "llamacpp"}
    for cases in by_server.values():
        assert any(case.streams for case in cases)
        assert any(not case.streams for case in cases)
