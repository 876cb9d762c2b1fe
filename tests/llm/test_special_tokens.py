"""Special tokens are broken up in requests to a model's server, and restored in its replies."""

import json
from typing import Any

import pytest

from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelInfo, ModelSettings, ToolSchema
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import whole_reply
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.openai_dialect import dialect_of, is_providers_own
from ricordo.llm.provider_sdks import build_model
from ricordo.llm.provider_table import Provider
from ricordo.llm.special_tokens import break_tokens, mend_tokens
from tests.llm.talk import WEATHER, Waits, ask, claude_at, said, weather_call, weather_return
from tests.llm.test_openai_responses import WORDS, called, response
from tests.support.model_server import Answer, ModelServer, claude, completion, tool_call

TOKENS = (
    "<|im_start|> <|im_end|> <|eot_id|> <|begin_of_text|> <|start_header_id|> <|endoftext|> "
    "<|end|> <|user|> [INST] [/INST] <<SYS>> <</SYS>> <s> </s> <bos> <eos> <start_of_turn> "
    "<end_of_turn> <|turn> <turn|> <｜User｜> <｜begin▁of▁sentence｜> <｜tool▁calls▁begin｜> "
    "<|START_OF_TURN_TOKEN|> <|channel|> [TOOL_CALLS] [/TOOL_RESULTS] [gMASK] <sop> [BOS]"
).split()
HARMLESS = (
    "a < b || c > d, [1, 2] <b>bold</b> <p> a|b|c; x <| y |> z; <|> <||> [x] [INSTANT] List<int> "
    "<human> </value> <script> 1 <s\nif (a <b|| c) {} [s] <st> [[x]] < s > {} ｜"
)


@pytest.fixture
def model(server: ModelServer, connections: Connections, waits: Waits) -> OpenAICompatibleModel:
    info = ModelInfo("ollama/scripted-1", "ollama", "scripted-1", "ollama", endpoint=server.url)
    return OpenAICompatibleModel(info, connections, waits.policy())


@pytest.mark.parametrize("token", TOKENS)
async def test_a_special_token_in_a_text_never_reaches_a_models_server(
    model: OpenAICompatibleModel, server: ModelServer, token: str
) -> None:
    words = f"x{token}system"
    tool = ToolSchema(
        "get_weather", words, {"type": "object", "properties": {"city": {"description": words}}}
    )
    history = (
        said("system", words),
        said(
            "assistant",
            words,
            weather_call(arguments=json.dumps({"city": words}, ensure_ascii=False)),
        ),
        said("tool", weather_return(content=words)),
        said("user", words, words),
    )
    await whole_reply(
        model, ask(*history, tools=[tool], settings=ModelSettings(extra={"stop": [token]}))
    )
    body = server.requests[0].body
    assert body.pop("stop") == [token], "settings of the developer are sent unchanged"
    assert token not in json.dumps(body, ensure_ascii=False)
    assert without_breaks(body)["messages"][1]["content"] == words


async def test_texts_without_special_tokens_are_sent_unchanged(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    await whole_reply(
        model, ask(HARMLESS, said("assistant", weather_call()), said("tool", weather_return()))
    )
    assert server.requests[0].body["messages"][1]["content"] == HARMLESS
    assert "\u200b".encode() not in server.requests[0].raw


async def test_a_copied_broken_token_comes_back_whole(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    await whole_reply(model, ask("Remember <|im_start|> and [INST]."))
    seen = server.requests[0].body["messages"][-1]["content"]
    for dumped in (json.dumps({"city": seen}), json.dumps({"city": seen}, ensure_ascii=False)):
        server.push(completion(seen, [tool_call("get_weather", dumped)]))
        reply = await whole_reply(model, ask("Go on.", tools=[WEATHER]))
        text, call = reply.parts
        assert isinstance(text, TextPart)
        assert text.text == "Remember <|im_start|> and [INST]."
        assert json.loads(getattr(call, "arguments", "")) == {"city": text.text}


def test_a_zero_width_space_that_breaks_no_token_stays() -> None:
    for text in (
        "[\u200b\u1780\u17d2\u1798]",
        "<\u200bhuman>",
        "a\u200bb",
        "]\u200bx",
        "[\u200b1]",
        '{"a": "[\\u200b1]"}',
    ):
        assert mend_tokens(text) == text
    for token in TOKENS:
        broken = break_tokens(token.encode()).decode()
        assert broken != token
        assert mend_tokens(broken) == token


@pytest.mark.parametrize("kind", ["responses", "messages"])
async def test_servers_with_other_formats_get_no_special_token_either(
    server: ModelServer, connections: Connections, waits: Waits, kind: str
) -> None:
    if kind == "messages":
        model = claude_at(server, connections, waits)
        use = {
            "type": "tool_use",
            "id": "toolu_a",
            "name": "get_weather",
            "input": {"city": "<\u200b|im_start|>"},
        }
        server.push(claude({"type": "text", "text": "So: [\u200bINST]."}, use))
    else:
        info = ModelInfo("openai/scripted-1", "openai", "scripted-1", "openai", endpoint=server.url)
        model = build_model(
            Provider("openai", server.url, "openai", "openai", "key", "responses"),
            info,
            connections,
            waits.policy(),
        )
        words = {**WORDS, "content": [{**WORDS["content"][0], "text": "So: [\u200bINST]."}]}
        server.push(Answer(response(words, called(arguments='{"city": "<\u200b|im_start|>"}'))))
    words_of_all = "x<|im_start|>system"
    tool = ToolSchema("get_weather", words_of_all, WEATHER.parameters)
    history = (
        said("system", words_of_all),
        said("user", words_of_all),
        said(
            "assistant", words_of_all, weather_call("toolu_b", json.dumps({"city": words_of_all}))
        ),
        said("tool", weather_return("toolu_b", words_of_all)),
    )
    reply = await whole_reply(model, ask(*history, tools=[tool]))
    assert "<|im_start|>" not in json.dumps(server.requests[0].body, ensure_ascii=False)
    text, call = reply.parts
    assert isinstance(text, TextPart)
    assert text.text == "So: [INST]."
    assert json.loads(getattr(call, "arguments", "")) == {"city": "<|im_start|>"}


def test_tokens_are_not_broken_for_openais_own_servers() -> None:
    assert not dialect_of("openai", "https://api.openai.com/v1").reads_special_tokens
    assert not dialect_of("azure", "https://x.openai.azure.com").reads_special_tokens
    assert is_providers_own("https://api.anthropic.com")
    for kind in ("ollama", "vllm", "llamacpp", "lmstudio", "groq", "openai"):
        assert dialect_of(kind, "http://127.0.0.1:1/v1").reads_special_tokens


def without_breaks(body: Any) -> Any:
    return json.loads(json.dumps(body, ensure_ascii=False).replace("\u200b", ""))
