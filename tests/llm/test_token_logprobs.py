"""Log probabilities of tokens over real HTTP, from servers that have them and others."""

from typing import Any

import pytest

from ricordo.domain.model import ModelInfo, ModelReply
from ricordo.errors import ModelError
from ricordo.llm.addresses import Connections
from ricordo.llm.chat import whole_reply
from ricordo.llm.openai_compatible import OpenAICompatibleModel
from ricordo.llm.provider_sdks import build_model
from ricordo.llm.provider_table import Provider
from tests.llm.talk import Waits, ask
from tests.support.model_server import Answer, ModelServer, completion, event

Wire = dict[str, Any]


def token(text: str, number: float, *tops: Wire, **more: Any) -> Wire:
    return {
        "token": text,
        "logprob": number,
        "bytes": None,
        **({"top_logprobs": list(tops)} if tops else {}),
        **more,
    }


def whole(text: str, number: float, *tops: Wire) -> Wire:
    """Return a token as the server sends it."""
    return {"token": text, "logprob": number, "bytes": None, "top_logprobs": list(tops)}


SHAPES: list[tuple[str, Any, list[Wire] | None]] = [
    ("OpenAI", {"content": [token("Hi", -0.5, token("Hi", -0.5), token("Yo", -2.0))], "refusal": None},
     [whole("Hi", -0.5, token("Hi", -0.5), token("Yo", -2.0))]),
    ("bytes", {"content": [token("Hi", -0.5, bytes=[72, 105])]}, [whole("Hi", -0.5) | {"bytes": [72, 105]}]),
    ("no alternatives", {"content": [token("Hi", -0.5, top_logprobs=[])]}, [whole("Hi", -0.5)]),
    ("alternatives are null", {"content": [token("Hi", -0.5, top_logprobs=None)]}, [whole("Hi", -0.5)]),
    ("llama.cpp, with ids", {"content": [{"id": 7, "token": "Hi", "bytes": [72], "logprob": -1}]},
     [whole("Hi", -1.0) | {"bytes": [72]}]),
    ("older lists", {"tokens": ["H", "i"], "token_logprobs": [-1, -2.5], "top_logprobs": [{"H": -1.0, "J": -3.0}, None]},
     [whole("H", -1.0, token("H", -1.0), token("J", -3.0)), whole("i", -2.5)]),
    ("older lists, not of one length", {"tokens": ["H", "i"], "token_logprobs": [-1.0]}, [whole("H", -1.0)]),
    ("older lists, the first without a number", {"tokens": ["H", "i"], "token_logprobs": [None, -1.0]}, [whole("i", -1.0)]),
    ("below what JSON can say", {"content": [token("Hi", -1e308)]}, [whole("Hi", -9999.0)]),
    ("bytes that are none", {"content": [token("Hi", -0.5, bytes=[300, "x"])]}, [whole("Hi", -0.5)]),
    ("rows that are no tokens", {"content": [None, 3, {}, {"token": 5, "logprob": 0}, {"token": "x", "logprob": True},
     token("Hi", -0.5)]}, [whole("Hi", -0.5)]),
    ("null", None, None),
    ("an empty object", {}, None),
    ("an empty list", {"content": []}, None),
    ("a number", 5, None),
    ("a list", [token("Hi", -0.5)], None),
    ("content is a word", {"content": "Hi"}, None),
]  # fmt: skip


@pytest.fixture
def model(server: ModelServer, connections: Connections, waits: Waits) -> OpenAICompatibleModel:
    info = ModelInfo("vllm/some", "vllm", "some", "vllm", endpoint=server.url)
    return OpenAICompatibleModel(info, connections, waits.policy(), api_key="key-1")


def answer_with(logprobs: Any) -> Answer:
    answer = completion("Hi")
    answer.body["choices"][0]["logprobs"] = logprobs
    return answer


async def test_log_probabilities_are_read_in_every_known_shape(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    for name, written, tokens in SHAPES:
        server.push(answer_with(written))
        reply = await whole_reply(model, ask("Hello", logprobs=2))
        assert reply.logprobs == ({"content": tokens} if tokens else None), name
        body = server.requests[-1].body
        assert (body["logprobs"], body["top_logprobs"]) == (True, 2)


async def test_without_a_request_for_log_probabilities_there_are_none(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    server.push(answer_with(SHAPES[0][1]))
    assert (await whole_reply(model, ask("Hello"))).logprobs is None
    assert not {"logprobs", "top_logprobs"} & server.requests[-1].body.keys()


async def test_the_log_probabilities_of_a_stream_are_joined(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    rows = [[token("H", -1.0)], [token("i", -2.0), token("!", -3.0)], None]
    pieces = [
        event(
            {
                "choices": [
                    {
                        "delta": {"content": "x"},
                        "logprobs": row and {"content": row, "refusal": [token("N", -4.0)]},
                    }
                ]
            }
        )
        for row in rows
    ]
    end = event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    server.push(
        Answer(
            pieces=(*pieces, end, b"data: [DONE]\n\n"),
            headers={"content-type": "text/event-stream"},
        )
    )
    reply = await whole_reply(model, ask("Hello", logprobs=0, stream=True))
    content = [whole("H", -1.0), whole("i", -2.0), whole("!", -3.0)]
    assert reply.logprobs == {"content": content, "refusal": [whole("N", -4.0)] * 2}


REFUSALS: list[tuple[int, Any]] = [
    (403, {"error": {"message": "You are not allowed to request logprobs from this model", "param": None}}),
    (400, {"error": {"message": "logprobs are not supported with reasoning models.", "param": "logprobs"}}),
    (400, {"error": {"message": "`logprobs` is not supported with this model"}}),
    (400, {"error": {"code": 400, "message": "Logprobs is not enabled for models/some", "status": "INVALID_ARGUMENT"}}),
    (400, {"error": {"message": "Unable to submit request because Logprobs is not supported for this model."}}),
    (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "logprobs"], "msg": "Extra inputs are not permitted"}]}),
    (422, {"object": "error", "message": {"detail": [{"loc": ["body", "top_logprobs"], "msg": "Extra inputs"}]}}),
    (400, {"error": {"message": "deepseek-reasoner does not support the parameter logprobs"}}),
    (501, {"error": "log probs not implemented"}),
    (500, {"error": {"message": "This model cannot return log-probs"}}),
    (400, {"error": {"message": "json: cannot unmarshal bool into Go struct field .logprobs of type int"}}),
    (400, "unknown field: Top_Logprobs"),
    (401, {"error": {"message": "Your plan does not include logprobs."}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "refusal"), REFUSALS, ids=[str(body)[:60] for _, body in REFUSALS]
)
async def test_a_model_that_refuses_log_probabilities_is_asked_for_them_only_once(
    model: OpenAICompatibleModel, server: ModelServer, status: int, refusal: Any
) -> None:
    server.otherwise = lambda seen: (
        Answer(refusal, status) if "logprobs" in seen.body else completion("Hi")
    )
    for _ in range(2):
        assert (await whole_reply(model, ask("Hello", logprobs=5))).logprobs is None
    assert "logprobs" not in server.requests[-2].body
    assert "top_logprobs" not in server.requests[-1].body
    assert len(server.requests) <= 4


async def test_fewer_alternatives_are_requested_after_a_refusal(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    words = {
        "error": {
            "message": "top_logprobs must be less than or equal to 5",
            "param": "top_logprobs",
        }
    }
    server.otherwise = lambda seen: (
        Answer(words, 400)
        if seen.body.get("top_logprobs", 0) > 5
        else answer_with({"content": [token("Hi", -0.5)]})
    )
    for count, calls in ((20, 2), (5, 1), (20, 1)):
        before = len(server.requests)
        reply = await whole_reply(model, ask("Hello", logprobs=count))
        assert reply.logprobs == {"content": [whole("Hi", -0.5)]}
        assert len(server.requests) - before == calls


async def test_a_refusal_for_another_reason_is_not_attributed_to_log_probabilities(
    model: OpenAICompatibleModel, server: ModelServer
) -> None:
    server.push(Answer({"error": {"message": "You have no access to this model"}}, 403))
    with pytest.raises(ModelError, match="no access"):
        await whole_reply(model, ask("Hello", logprobs=1))
    assert len(server.requests) == 1


async def test_openais_responses_api_returns_log_probabilities_too(
    connections: Connections, waits: Waits
) -> None:
    text = {
        "type": "output_text",
        "text": "Hi",
        "annotations": [],
        "logprobs": [token("Hi", -0.5, token("Yo", -2.0), bytes=[72, 105])],
    }
    text["logprobs"][0]["top_logprobs"][0]["bytes"] = [89, 111]  # type: ignore[index]
    item = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    response = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "gpt-4.1",
        "output": [item],
    }

    def answer(seen: Any) -> Answer:
        if "audio" in seen.body["model"] and seen.body.get("top_logprobs") is not None:
            return Answer(
                {"error": {"message": "logprobs are not supported with this model."}}, 400
            )
        return Answer(response)

    replies: dict[str, ModelReply] = {}
    async with ModelServer(answer) as server:
        for name in ("gpt-4.1", "gpt-4o-mini-audio", "o4-mini"):
            info = ModelInfo(f"openai/{name}", "openai", name, "openai", endpoint=server.url)
            provider = Provider("openai", "", "openai", api_key="key-1", api="responses")
            model = build_model(provider, info, connections, waits.policy())
            replies[name] = await whole_reply(model, ask("Hello", logprobs=1))
            if name == "gpt-4.1":
                body = server.requests[-1].body
                assert (
                    "message.output_text.logprobs" in body["include"],
                    body["top_logprobs"],
                ) == (True, 1)
        assert "top_logprobs" not in server.requests[-1].body
    yo = {"token": "Yo", "logprob": -2.0, "bytes": [89, 111]}
    assert replies["gpt-4.1"].logprobs == {
        "content": [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": [yo]}]
    }
