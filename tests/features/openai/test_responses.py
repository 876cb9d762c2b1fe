"""Functions of the caller in OpenAI's responses, with OpenAI's client.

The tests cover calls, results, streams, and calls without a result.
"""

import json
from typing import Any

import httpx2
import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses import Response

from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply
from ricordo.llm.scripted import call
from tests.features.openai.conftest import user
from tests.seams.server import ServerInThread
from tests.support.fuzz import stream_faults

FUNCTION: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tell the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "strict": False,
}


def result(call_id: str, words: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": words}


def tool_results(server: ServerInThread) -> list[str]:
    """Return the results that the model read last."""
    returns = [
        one for message in server.model.requests[-1].messages for one in message.tool_returns
    ]
    return [json.loads(one.content)["message"] for one in returns]


def test_the_caller_runs_the_functions_of_a_response(
    client: OpenAI, server: ServerInThread, agent: str
) -> None:
    server.says(call("weather", city="Rome"), "Sunny in Rome.", "You are welcome.")
    asked: Any = [user("How is Rome?")]
    first = client.responses.create(model=agent, input=asked, tools=[FUNCTION])
    (made,) = first.output
    assert made.type == "function_call"
    assert (made.name, json.loads(made.arguments), made.status) == (
        "weather",
        {"city": "Rome"},
        "completed",
    )
    assert first.tools[0].type == "function"
    output = [result(made.call_id, "Sunny.")]
    second = client.responses.create(
        model=agent, input=output, previous_response_id=first.id, tools=[FUNCTION]
    )
    assert second.output_text == "Sunny in Rome."
    assert tool_results(server) == ["Sunny."]
    third = client.responses.create(
        model=agent, input="Thanks.", previous_response_id=second.id, tools=[FUNCTION]
    )
    assert third.output_text == "You are welcome."


def test_a_caller_may_send_all_items_of_a_response_again(
    client: OpenAI, server: ServerInThread, agent: str
) -> None:
    both = (TextPart("Let me look."), call("weather", city="Rome"), call("weather", city="Oslo"))
    server.says(both, "Sunny and cold.")
    items: list[Any] = [user("How are Rome and Oslo?")]
    first = client.responses.create(model=agent, input=items, tools=[FUNCTION])
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    calls = [item for item in first.output if item.type == "function_call"]
    items += [{"type": "reasoning", "id": "rs_1", "summary": []}]
    items += [item.model_dump() for item in first.output]
    items += [result(calls[0].call_id, "Sunny."), result(calls[1].call_id, "Cold.")]
    second = client.responses.create(model=agent, input=items, tools=[FUNCTION])
    assert second.output_text == "Sunny and cold."
    assert tool_results(server) == ["Sunny.", "Cold."]
    with pytest.raises(BadRequestError, match="belong to no call of this chat"):
        client.responses.create(model=agent, input=[user("x"), result("call_1", "y")])


def test_a_call_is_streamed_with_its_arguments(
    client: OpenAI, server: ServerInThread, agent: str
) -> None:
    server.says(call("weather", city="Rome"))
    events = list(
        client.responses.create(model=agent, input="How is Rome?", tools=[FUNCTION], stream=True)
    )
    assert [event.type for event in events] == [
        "response.created",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(6))
    server.says((TextPart("I look."), call("weather", city="Oslo")))
    with client.responses.stream(model=agent, input="And Oslo?", tools=[FUNCTION]) as stream:
        for _ in stream:
            pass
        whole = stream.get_final_response()
    assert whole.output_text == "I look."
    assert json.loads(whole.output[1].arguments) == {"city": "Oslo"}  # type: ignore[union-attr]
    # A client that continues without the result has abandoned the call.
    server.says("Never mind then.")
    after = client.responses.create(
        model=agent, input="Stop.", previous_response_id=whole.id, tools=[FUNCTION]
    )
    assert after.output_text == "Never mind then."


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": [{"type": "reasoning"}]}, "no message in the input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0: Input tag is none of"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "function"),
        ({"input": [{"type": "function_call_output", "call_id": "", "output": "x"}]}, "at least 1"),
    ],
)
def test_unsupported_items_and_tools_are_refused(
    http: httpx2.Client, agent: str, body: dict[str, Any], words: str
) -> None:
    answer = http.post("/v1/responses", json={"model": agent} | body)
    assert answer.status_code in (400, 422)
    assert words in answer.text


def test_responses_and_events_have_all_fields_the_official_client_requires(
    http: httpx2.Client, server: ServerInThread, agent: str
) -> None:
    """The client itself ignores a missing field, but programs that read it fail."""
    server.says("Hello.", call("weather", city="Rome"), "Hello again.")
    for asked in ({"input": "Hello"}, {"input": "And Rome?", "tools": [FUNCTION]}):
        answer = http.post("/v1/responses", json={"model": agent, "stream": True, **asked})
        assert stream_faults(answer.text, "/v1/responses") == []
    whole = http.post("/v1/responses", json={"model": agent, "input": "Hello again"})
    assert Response.model_validate_json(whole.text, strict=True).output_text == "Hello again."


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((TextPart("One, two, th"),), "One, two, th"),
        ((), "limit of tokens before it gave an answer"),
    ],
)
def test_a_response_at_the_limit_of_tokens_is_incomplete(
    client: OpenAI,
    http: httpx2.Client,
    server: ServerInThread,
    agent: str,
    parts: tuple[TextPart, ...],
    text: str,
) -> None:
    reply = ModelReply(parts, finish="length")
    server.says(reply, reply, reply)
    whole = client.responses.create(model=agent, input="Count.")
    events = list(client.responses.create(model=agent, input="Count.", stream=True))
    request = {"model": agent, "input": "Count.", "stream": True}
    assert stream_faults(http.post("/v1/responses", json=request).text, "/v1/responses") == []
    assert events[-1].type == "response.incomplete"
    for response in (whole, events[-1].response):
        assert (response.status, text in response.output_text) == ("incomplete", True)
        assert response.incomplete_details
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage
