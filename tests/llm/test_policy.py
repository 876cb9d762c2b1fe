"""The meaning of faults, and which calls are retried."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest

from ricordo.domain.message import TextPart, ToolCallPart
from ricordo.domain.model import Chunk, ModelReply, ModelRequest
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.answer_bounds import MOST_CALLS
from ricordo.llm.policy import (
    FAULT_LIMIT,
    CallPolicy,
    answer_by_policy,
    error_from_event,
    error_from_status,
    error_from_transport,
    seconds_to_wait,
    with_complaint,
)
from ricordo.llm.repair import Fault
from tests.llm.talk import WEATHER, Waits, ask, said, weather_return

KINDS = {
    "llm_bad_request": (400, 406, 415, 422, 451),
    "llm_authentication": (401, 403),
    "llm_insufficient_credits": (402,),
    "llm_timeout": (408, 504),
    "context_window_exceeded": (413,),
    "llm_rate_limit": (429,),
    "llm_error": (307, 404, 405, 409, 410, 500, 503, 529),
}


def test_each_status_has_its_error_kind() -> None:
    for kind, statuses in KINDS.items():
        for status in statuses:
            assert (
                error_from_status("openai", status, b'{"error":{"message":"no"}}').kind == kind
            ), status


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in "
        "9000 tokens.",  # OpenAI
        "Your input exceeds the context window of this model. Please adjust your input and try "
        "again.",  # OpenAI
        "prompt is too long: 215000 tokens > 200000 maximum",  # Anthropic
        "input length and `max_tokens` exceed context limit: 190000 + 16384 > 200000",  # Anthropic
        "the input length exceeds the context length",  # Ollama
        "prompt too long; exceeded max context length by 12 tokens",  # Ollama
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",  # vLLM
        "the request exceeds the available context size, try increasing it",  # llama.cpp
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",  # Google
        "Input is too long for requested model.",  # Bedrock
        "Please reduce the length of the messages or completion.",  # Groq
        "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",  # xAI
    ],
)
def test_a_too_long_transcript_is_recognized_in_every_providers_wording(message: str) -> None:
    assert (
        error_from_status("any", 400, {"error": {"message": message}}).kind
        == "context_window_exceeded"
    )


def test_an_invalid_request_does_not_count_as_too_long() -> None:
    error = error_from_status(
        "openai", 400, {"error": {"message": "max_tokens is too large: 99999"}}
    )
    assert error.kind == "llm_bad_request"


def test_an_empty_account_is_not_a_rate_limit() -> None:
    body = {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}}
    assert error_from_status("openai", 429, body).kind == "llm_insufficient_credits"


def test_the_error_says_who_refused_what_and_what_to_do() -> None:
    error = error_from_status("groq", 401, b'{"error":{"message":"Invalid API Key."}}')
    assert str(error) == "groq answered 401: Invalid API Key. Check its key."


@pytest.mark.parametrize(
    "body",
    [b"<html>Bad gateway</html>", b"", b'"text"', b"[]", b'[{"error":{"message":"m"}}]', b"\xff"],
)
def test_any_response_body_gives_an_error(body: bytes) -> None:
    assert error_from_status("vllm", 502, body).kind == "llm_error"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": {"message": "Rate limit reached", "code": 429}}, "llm_rate_limit"),
        ({"error": {"type": "overloaded_error", "message": "Overloaded"}}, "llm_error"),
        ({"error": {"type": "rate_limit_error", "message": "slow down"}}, "llm_rate_limit"),
        (
            {"error": {"type": "invalid_request_error", "message": "no such tool"}},
            "llm_bad_request",
        ),
        (
            {"object": "error", "message": "maximum context length is 4096"},
            "context_window_exceeded",
        ),
        ({"error": "something odd"}, "llm_error"),
    ],
)
def test_an_error_inside_an_answer_is_classified_by_its_text(body: object, kind: str) -> None:
    assert error_from_event("openrouter", body).kind == kind


def test_each_transport_error_has_its_kind() -> None:
    for error, kind in (
        (httpx2.ReadTimeout(""), "llm_timeout"),
        (httpx2.ConnectError("refused"), "llm_error"),
        (httpx2.RemoteProtocolError("cut"), "llm_error"),
        (httpx2.UnsupportedProtocol("no http"), "llm_error"),
    ):
        assert error_from_transport("ollama", error).kind == kind, error


def test_retry_after_is_read_in_all_three_forms() -> None:
    assert seconds_to_wait({"retry-after": "7"}) == 7
    assert seconds_to_wait({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 55 < (seconds_to_wait({"retry-after": date}) or 0) <= 60
    assert seconds_to_wait({"retry-after": "soon"}) is None
    assert seconds_to_wait({}) is None


def test_waits_double_up_to_a_limit_with_jitter() -> None:
    error = ModelError("llm_error", "no")
    assert [CallPolicy(jitter=lambda: 1.0).wait(n, error) for n in (0, 1, 2, 20)] == [0.5, 1, 2, 30]
    assert CallPolicy(jitter=lambda: 0.0).wait(0, error) == 0.25
    assert CallPolicy().wait(0, ModelError("llm_rate_limit", "no", retry_after=3600)) == 30


class Attempts:
    """Plays one list of items for each attempt; an exception in it is raised."""

    def __init__(self, *plays: Sequence[Chunk | ModelReply | Exception]) -> None:
        self.plays = list(plays)
        self.count = 0

    async def __call__(self, _: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        self.count += 1
        for item in self.plays.pop(0):
            if isinstance(item, Exception):
                raise item
            yield item


def reply(text: str = "hi") -> ModelReply:
    return ModelReply((TextPart(text),) if text else ())


async def test_retries_are_limited() -> None:
    waits = Waits()
    attempts = Attempts(*[[ModelError("llm_timeout", str(n))] for n in range(9)])
    with pytest.raises(ModelError, match="2"):
        [item async for item in answer_by_policy(waits.policy(retries=2), ask("x"), attempts)]
    assert attempts.count == 3
    assert waits == [0.5, 1]


async def test_a_bad_request_is_not_retried() -> None:
    attempts = Attempts([ModelError("llm_bad_request", "no")])
    with pytest.raises(ModelError, match="no"):
        [item async for item in answer_by_policy(Waits().policy(), ask("x"), attempts)]
    assert attempts.count == 1


async def test_an_empty_answer_is_requested_again_once_and_then_fails() -> None:
    attempts = Attempts([reply("")], [reply(" ")])
    with pytest.raises(ModelError) as caught:
        [item async for item in answer_by_policy(Waits().policy(), ask("x"), attempts)]
    assert caught.value.kind == "llm_empty_response"
    assert attempts.count == 2


async def test_the_tokens_of_answers_that_cannot_be_used_come_with_the_next_one_or_the_error() -> (
    None
):
    broken = ModelReply((ToolCallPart("1", "get_weather", "{"),), Usage(3, 4), "tool_calls")
    empty = replace(reply(""), usage=Usage(1, 2))
    good = replace(reply("Done."), usage=Usage(10, 20))
    request = replace(ask("x"), tools=(WEATHER,))
    for plays, discarded in (
        ([[empty], [good]], Usage(1, 2)),
        ([[broken], [empty], [good]], Usage(4, 6)),
        ([[broken], [broken]], Usage(3, 4)),
    ):
        attempts = Attempts(*plays)
        events = [item async for item in answer_by_policy(Waits().policy(), request, attempts)]
        assert events[-1] == replace(plays[-1][0], discarded=discarded)
    cut = replace(broken, finish="length")
    refused = ModelError("llm_bad_request", "no")
    for failing, discarded in (
        ([[empty], [empty]], Usage(2, 4)),
        ([[cut], [cut]], Usage(6, 8)),
        ([[empty], [refused]], Usage(1, 2)),
    ):
        attempts = Attempts(*failing)
        with pytest.raises(ModelError) as caught:
            [item async for item in answer_by_policy(Waits().policy(), request, attempts)]
        assert caught.value.discarded == discarded


async def test_an_empty_answer_after_a_tool_result_is_questioned_once_and_then_fails() -> None:
    asked: list[ModelRequest] = []

    def attempt(request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        asked.append(request)
        return answers(reply("" if len(asked) < 3 else "Done."))

    request = ask("x", said("tool", weather_return()))
    with pytest.raises(ModelError, match="empty") as caught:
        [item async for item in answer_by_policy(Waits().policy(), request, attempt)]
    assert caught.value.kind == "llm_empty_response"
    assert [len(one.messages) - len(request.messages) for one in asked] == [0, 1]
    assert "empty" in asked[1].messages[-1].text
    assert [item async for item in answer_by_policy(Waits().policy(), request, attempt)] == [
        reply("Done.")
    ]


BROKEN = ModelReply((ToolCallPart("1", "get_weather", '{"city": '),), finish="tool_calls")
WHOLE = ModelReply((ToolCallPart("2", "get_weather", '{"city":"Rome"}'),), finish="tool_calls")


async def answers(reply: ModelReply) -> AsyncGenerator[Chunk | ModelReply, None]:
    yield reply


async def test_a_broken_call_is_reported_to_the_model_without_waiting_or_a_retry() -> None:
    waits, told = Waits(), []

    def attempt(request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        told.append(request)
        return answers(WHOLE if len(told) == 2 else BROKEN)

    request = ask("x", tools=[WEATHER])
    assert [item async for item in answer_by_policy(waits.policy(retries=0), request, attempt)] == [
        WHOLE
    ]
    assert waits == []
    assert told[1].messages[:-2] == request.messages
    assert [message.role for message in told[1].messages[-2:]] == ["assistant", "tool"]
    told.clear()
    assert [
        item async for item in answer_by_policy(waits.policy(), request, lambda _: answers(BROKEN))
    ] == [BROKEN]


def test_only_the_beginning_of_a_long_broken_answer_is_sent_back() -> None:
    long = ModelReply((TextPart("a" * 9_000), ToolCallPart("1", "get_weather", '{"' + "b" * 9_000)))
    told = with_complaint(ask("x"), long, Fault("No."))
    text, call = told.messages[-2].parts
    assert isinstance(text, TextPart)
    assert isinstance(call, ToolCallPart)
    assert len(text.text) == len(call.arguments) == FAULT_LIMIT
    nameless = with_complaint(ask("x"), ModelReply((ToolCallPart("1", "", "{}"),)), Fault("No."))
    assert [message.role for message in nameless.messages] == ["system", "user", "user"]


def test_of_too_many_calls_after_a_text_one_call_gets_the_complaint() -> None:
    calls = (ToolCallPart(f"c{number}", "get_weather", "{}") for number in range(MOST_CALLS + 1))
    told = with_complaint(ask("x"), ModelReply((TextPart("Hm."), *calls)), Fault("No."))
    assert [call.call_id for call in told.messages[-2].tool_calls] == ["c0"]
    assert [result.call_id for result in told.messages[-1].tool_returns] == ["c0"]


UNREADABLE = ModelReply((TextPart("Sure.\n<tool_call>{broken"),))


async def test_an_unreadable_answer_is_requested_again_once_without_its_text() -> None:
    asked: list[ModelRequest] = []

    def attempt(request: ModelRequest) -> AsyncGenerator[Chunk | ModelReply, None]:
        asked.append(request)
        return answers(WHOLE if len(asked) == 4 else UNREADABLE)

    request = ask("x", tools=[WEATHER])
    with pytest.raises(ModelError, match="cannot be used, twice") as caught:
        [item async for item in answer_by_policy(Waits().policy(), request, attempt)]
    assert "broken" not in str(caught.value)
    assert len(asked) == 2
    assert asked[1].messages[:-1] == request.messages
    assert "broken" not in asked[1].messages[-1].text
    assert [item async for item in answer_by_policy(Waits().policy(), request, attempt)] == [WHOLE]


async def test_a_broken_call_does_not_lose_the_others() -> None:
    good = ToolCallPart("2", "get_weather", '{"city":"Rome"}')
    for bad, name in (
        (ToolCallPart("1", "get_weather", '{"city": '), "get_weather"),
        (ToolCallPart("1", "", '{"city": "Paris"}'), "unreadable_call"),
        (ToolCallPart("1", "get_weather", "[1]"), "get_weather"),
    ):
        for parts in ((good, bad), (bad, good)):
            broken = ModelReply(parts, finish="tool_calls")
            request = ask("x", tools=[WEATHER])
            attempts = Attempts([broken])
            (whole,) = [
                item async for item in answer_by_policy(Waits().policy(), request, attempts)
            ]
            assert isinstance(whole, ModelReply)
            assert {part.name for part in whole.parts if isinstance(part, ToolCallPart)} == {
                "get_weather",
                name,
            }
            assert good in whole.parts
