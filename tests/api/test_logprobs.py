"""Log probabilities of an answer's tokens, with a model behind real HTTP.

They are returned, or the response says why there are none.
"""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from letta_client import UnprocessableEntityError

from ricordo.api.models.warnings import HEADER
from tests.api.conftest import Api
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread, serving
from tests.support.model_server import Answer, ModelServer, Seen, completion, tool_call

Wire = dict[str, Any]
HELLO = {"messages": [{"role": "user", "content": "Hello."}]}
TOP = {"token": "Yo", "logprob": -2.0, "bytes": [89, 111]}


def tokens(text: str) -> Wire:
    row = {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": [TOP]}
    return {"content": [row], "refusal": None}


def said(text: str, *calls: Wire) -> Answer:
    answer = completion(text, calls)
    answer.body["choices"][0]["logprobs"] = tokens(text)
    return answer


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server that asks models on this machine."""
    with serving(tmp_path_factory.mktemp("data"), allow_private_providers=True) as server:
        yield server


@pytest.fixture
def provider(api: Api) -> Iterator[ModelServer]:
    """A server that speaks OpenAI's format, known as `mine`."""
    models = {"object": "list", "data": [{"id": "some", "object": "model"}]}
    model = ModelServer(lambda seen: Answer(models) if seen.method == "GET" else said("Hi"))
    api.server.run(model.start())
    body = {"name": "mine", "provider_type": "openai", "api_key": "k", "base_url": model.url}
    try:
        made = ok(api.http.post("/v1/providers/", json=body))
        yield model
        ok(api.http.delete(f"/v1/providers/{made['id']}"))
    finally:
        api.server.run(model.stop())


@pytest.fixture
def agent_id(api: Api, provider: ModelServer) -> str:
    human = {"label": "human", "value": "Ada"}
    return api.client.agents.create(model="mine/some", memory_blocks=[human]).id


def chats(provider: ModelServer) -> list[Seen]:
    return [seen for seen in provider.requests if seen.path.endswith("/chat/completions")]


def send(api: Api, path: str, **body: Any) -> httpx2.Response:
    answer = api.http.post(path, json=HELLO | body)
    assert answer.status_code == 200, answer.text
    return answer


def test_log_probabilities_of_the_last_steps_tokens_are_returned(
    api: Api, provider: ModelServer, agent_id: str
) -> None:
    note = {"label": "human", "new_string": "Tea."}
    provider.push(said("First", tool_call("memory_insert", note)), said("Last"))
    answer = api.client.agents.messages.create(
        agent_id, input="Hello.", return_logprobs=True, top_logprobs=1
    )
    assert answer.logprobs is not None
    assert answer.logprobs.to_dict() == tokens("Last")
    assert [(seen.body["logprobs"], seen.body["top_logprobs"]) for seen in chats(provider)] == [
        (True, 1)
    ] * 2
    conversation = api.client.conversations.create(agent_id=agent_id)
    told = send(
        api, f"/v1/conversations/{conversation.id}/messages", streaming=False, return_logprobs=True
    )
    assert (told.json()["logprobs"], chats(provider)[-1].body["top_logprobs"]) == (tokens("Hi"), 0)
    assert HEADER not in told.headers


def test_log_probabilities_are_returned_only_on_request(
    api: Api, provider: ModelServer, agent_id: str
) -> None:
    path = f"/v1/agents/{agent_id}/messages"
    for body, warning in (
        ({}, None),
        ({"return_logprobs": False}, None),
        ({"top_logprobs": 0}, None),
        ({"top_logprobs": 3}, "top_logprobs: It has an effect together with return_logprobs."),
    ):
        answer = send(api, path, **body)
        assert (answer.json()["logprobs"], answer.headers.get(HEADER)) == (None, warning)
    assert not any("logprobs" in seen.body for seen in chats(provider))


def test_streams_and_batches_warn_that_they_return_no_log_probabilities(
    api: Api, provider: ModelServer, agent_id: str
) -> None:
    wanted = {"return_logprobs": True, "top_logprobs": 3}
    agent, conversation = (
        f"/v1/agents/{agent_id}/messages",
        api.client.conversations.create(agent_id=agent_id).id,
    )
    ways: list[tuple[str, Wire]] = [
        (f"{agent}/stream", {}),
        (f"{agent}/stream", {"stream_tokens": True}),
        (agent, {"streaming": True}),
        (agent, {"streaming": True, "background": True}),
        (f"/v1/conversations/{conversation}/messages", {}),
        (f"/v1/conversations/{conversation}/messages", {"stream_tokens": True, "background": True}),
    ]
    begin = "return_logprobs, top_logprobs: Only whole answers have probabilities"
    for path, more in ways:
        answer = send(api, path, **wanted, **more)
        assert answer.headers[HEADER].startswith(begin), (path, more)
    assert (
        "logprobs: Only whole answers have probabilities"
        in send(api, f"{agent}/async", return_logprobs=True).headers[HEADER]
    )
    batch = {"requests": [{"agent_id": agent_id, **HELLO, **wanted}]}
    made = api.http.post("/v1/messages/batches", json=batch)
    assert (made.status_code, "top_logprobs: Only whole answers" in made.headers[HEADER]) == (
        200,
        True,
    )
    assert not any("logprobs" in seen.body for seen in chats(provider))


def test_a_response_without_log_probabilities_says_why(
    api: Api, provider: ModelServer, agent_id: str
) -> None:
    path = f"/v1/agents/{agent_id}/messages"
    begin = "return_logprobs: The answer has no probabilities: the model gives none"
    refusal = {"error": {"message": "You are not allowed to request logprobs from this model"}}
    provider.push(completion("Hi"), Answer(refusal, 403), completion("Hi"))
    for _ in range(2):
        answer = send(api, path, return_logprobs=True)
        assert answer.json()["logprobs"] is None
        assert answer.headers[HEADER].startswith(begin)
    scripted = api.client.agents.create(model=MODEL).id
    answer = send(api, f"/v1/agents/{scripted}/messages", return_logprobs=True, top_logprobs=2)
    assert answer.headers[HEADER].startswith(
        "return_logprobs, top_logprobs: The answer has no probabilities"
    )


def test_log_probabilities_are_left_out_when_a_secret_was_removed(
    api: Api, provider: ModelServer, agent_id: str
) -> None:
    key = "sk-ant-api03-" + "a1B2" * 20
    note = {"label": "human", "new_string": f"Key: {key}"}
    provider.push(said("First", tool_call("memory_insert", note)), said(f"I noted {key}."))
    answer = send(api, f"/v1/agents/{agent_id}/messages", return_logprobs=True)
    assert (key in answer.text, answer.json()["logprobs"]) == (False, None)
    assert "a secret was removed" in answer.headers[HEADER]


def test_the_number_of_alternative_tokens_is_bounded(api: Api, agent_id: str) -> None:
    for count in (-1, 21, 10**9):
        with pytest.raises(UnprocessableEntityError, match="top_logprobs"):
            api.client.agents.messages.create(
                agent_id, input="Hello.", return_logprobs=True, top_logprobs=count
            )
