"""Open WebUI 0.12.4 as a client of agents.

The tests cover recorded requests, its users, their separation, and its tasks.
"""

import hmac
import sqlite3
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from typing import Any

import httpx2
import openai
import orjson
import pytest

from ricordo.errors import ModelError
from tests.features.openai.conftest import OPERATOR, asked_texts, assistant, openai_client, user
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread

SECRET = "a-secret-that-both-servers-know"
TITLE = "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history."


@pytest.fixture(scope="module")
def service(running: ServerInThread) -> str:
    """The key that the administrator gave to Open WebUI: it may act for users."""
    return running.key(role="service")


def headers(key: str, who: str, chat: str = "", **more: str) -> dict[str, str]:
    """Return the headers that Open WebUI sends with ENABLE_FORWARD_USER_INFO_HEADERS."""
    named = {
        "User-Name": f"{who}%20L.",
        "User-Id": f"owui-{who}",
        "User-Email": f"{who}@example.com",
    }
    named |= {"User-Role": "user", "Auth-Type": "jwt"} | ({"Chat-Id": chat} if chat else {})
    return {
        "authorization": f"Bearer {key}",
        **{f"X-OpenWebUI-{name}": value for name, value in named.items()},
        **more,
    }


def signed(claims: dict[str, Any], secret: str = SECRET, algorithm: str = "HS256") -> str:
    """Return a token as PyJWT makes it for Open WebUI."""
    pieces = [
        urlsafe_b64encode(orjson.dumps(one)).rstrip(b"=")
        for one in ({"alg": algorithm, "typ": "JWT"}, claims)
    ]
    proof = hmac.digest(secret.encode(), b".".join(pieces), sha256)
    return b".".join([*pieces, urlsafe_b64encode(proof).rstrip(b"=")]).decode()


def ada(**more: Any) -> dict[str, Any]:
    claims = {
        "sub": "owui-ada",
        "email": "ada@example.com",
        "iss": "open-webui",
        "exp": time.time() + 300,
    }
    return claims | more


@pytest.fixture
def open_http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http() as opened:
        yield opened


def test_a_recorded_open_webui_chat_is_one_conversation_without_task_requests(
    server: ServerInThread, open_http: httpx2.Client, http: httpx2.Client, service: str, agent: str
) -> None:
    built_in = {
        "type": "function",
        "function": {"name": "search_web", "description": "…", "parameters": {}},
    }
    chat = [user("My tea is jasmine."), assistant("Noted."), user("Which tea?")]
    server.says("Noted.", '{"title": "🍵 Tea"}', "Jasmine.", '{"tags": ["tea"]}')
    sent = headers(service, "ada", "c0ffee00-1", **{"X-Ricordo-Task": "", "X-Ricordo-Tools": "off"})
    models = ok(open_http.get("/v1/models", headers=headers(service, "ada")))
    assert agent in [one["id"] for one in models["data"]]
    body = {"stream": True, "model": agent, "messages": chat[:1], "tools": [built_in]}
    first = open_http.post("/v1/chat/completions", headers=sent, json=body)
    assert first.headers["content-type"].startswith("text/event-stream")
    assert first.text.endswith("data: [DONE]\n\n")
    assert [tool.name for tool in server.model.requests[0].tools if tool.name == "search_web"] == []
    task = {"model": agent, "messages": [user(TITLE)], "stream": False, "max_tokens": 1000}
    before = server.rows()["messages"]
    title = ok(
        open_http.post(
            "/v1/chat/completions",
            headers={**sent, "X-Ricordo-Task": "title_generation"},
            json=task,
        )
    )
    assert title["choices"][0]["message"]["content"] == '{"title": "🍵 Tea"}'
    assert [message.text for message in server.model.requests[1].messages] == [TITLE]
    open_http.post("/v1/chat/completions", headers=sent, json={**body, "messages": chat})
    assert asked_texts(server) == ["My tea is jasmine.", "Noted.", "Which tea?"]
    between = server.rows()["messages"]
    assert between == before + 2
    # Without the connection's header a task is recognized by its prompt.
    bare = {name: value for name, value in sent.items() if name != "X-Ricordo-Task"}
    tags = open_http.post("/v1/chat/completions", headers=bare, json={**task, "stream": True})
    assert '{\\"tags\\": [\\"tea\\"]}' in tags.text
    assert server.rows()["messages"] == between

    (found,) = ok(http.get("/v1/agents/", params={"name": agent}))
    listed = ok(
        http.get(
            "/v1/conversations/", params={"agent_id": found["id"], "user_id": "open-webui:owui-ada"}
        )
    )
    assert len(listed) == 1
    assert ok(http.get("/v1/users/open-webui:owui-ada"))["identifier"] == "open-webui:owui-ada"


def test_retrieved_documents_neither_fork_a_chat_nor_change_memory(
    server: ServerInThread, open_http: httpx2.Client, service: str, agent: str
) -> None:
    """Open WebUI puts its retrieval template only before the last message.

    In the next request the same message has no template, so it looks edited.
    """
    template = (
        "### Task:\nRespond to the user query using the provided context, incorporating inline citations.\n\n"
        '### Output:\nProvide a clear response.\n\n<context>\n<source id="1">The plan is {}.</source>\n</context>\n'
    )
    question, answer, more = "What is the plan?", "To sail.", "And then?"
    server.says(answer, "To rest.")
    # These requests have no header that marks tasks.
    sent = headers(service, "ada", "with-documents")

    def say(*texts: str, as_parts: bool = False) -> list[str]:
        chat: list[Any] = [
            user(text) if place % 2 == 0 else assistant(text) for place, text in enumerate(texts)
        ]
        if as_parts:
            chat[-1]["content"] = [{"type": "text", "text": texts[-1]}]
        ok(
            open_http.post(
                "/v1/chat/completions", headers=sent, json={"model": agent, "messages": chat}
            )
        )
        return asked_texts(server)

    first = f'<context>\n<source id="1">The plan is A.</source>\n</context>\n{question}'
    assert say(template.format("A") + question) == [first]
    second = f'<context>\n<source id="1">The plan is B.</source>\n</context>\n{more}'
    chat = say(question, answer, template.format("B") + more, as_parts=True)
    assert chat == [first, answer, second]
    # Documents are untrusted, so their text alone changes no memory.
    assert [
        one.is_untrusted for one in server.model.requests[-1].messages if one.role == "user"
    ] == [True, True]


def test_two_users_of_one_agent_cannot_read_each_others_chats(
    server: ServerInThread, open_http: httpx2.Client, service: str, agent: str
) -> None:
    secret = user("My word is vuqkzoqada.")

    def say(who: str, messages: list[Any], chat: str = "the-same-chat", **more: str) -> Any:
        body = {"model": agent, "messages": messages}
        return ok(
            open_http.post(
                "/v1/chat/completions", headers=headers(service, who, chat, **more), json=body
            )
        )

    server.says("Noted.")
    say("ada", [secret])
    for chat in ("the-same-chat", ""):
        # Bea sends exactly Ada's chat, under its name or without one.
        say("bea", [secret, assistant("Noted."), user("What is my word?")], chat)
        assert asked_texts(server) == ["What is my word?"]
        assert "vuqkzoqada" not in str(
            [message.text for message in server.model.requests[-1].messages]
        )
    say("ada", [secret, assistant("Noted."), user("My word?")])
    assert asked_texts(server) == ["My word is vuqkzoqada.", "Noted.", "My word?"]
    # The id of a response does not give access either.
    answer = say("ada", [user("Hello.")], "another-chat")
    after = answer["id"].replace("chatcmpl-", "resp_")
    body = {"model": agent, "input": "What is my word?", "previous_response_id": after}
    assert (
        open_http.post("/v1/responses", headers=headers(service, "bea"), json=body).status_code
        == 404
    )
    assert (
        open_http.post("/v1/responses", headers=headers(service, "ada"), json=body).status_code
        == 200
    )
    # Ricordo's header names the user too.
    say("ada", [user("Hello.")], **{"X-Ricordo-User": "bea"})
    assert server.read(_users_of_the_newest_conversation) == "bea"


def _users_of_the_newest_conversation(tx: Any) -> str:
    from sqlalchemy import text

    query = (
        "SELECT u.identifier FROM conversations c JOIN users u ON u.id = c.user_id ORDER BY c.seq "
        "DESC LIMIT 1"
    )
    return str(tx.all(text(query))[0][0])


def test_user_headers_are_ignored_for_keys_without_impersonation(
    server: ServerInThread, open_http: httpx2.Client, service: str, agent: str
) -> None:
    server.says("Noted.", "I do not know.")
    body = {"model": agent, "messages": [user("My word is vuqkzoqada.")]}
    ok(open_http.post("/v1/chat/completions", headers=headers(service, "ada", "chat-9"), json=body))
    mallory = server.key("mallory")
    said = [*body["messages"], assistant("Noted."), user("My word?")]
    ok(
        open_http.post(
            "/v1/chat/completions",
            headers=headers(mallory, "ada", "chat-9"),
            json={**body, "messages": said},
        )
    )
    assert asked_texts(server) == ["My word?"]
    assert server.read(_users_of_the_newest_conversation) == "mallory"


def test_with_a_secret_only_signed_users_are_accepted(
    server: ServerInThread,
    open_http: httpx2.Client,
    service: str,
    agent: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = {"model": agent, "messages": [user("Hello.")]}

    def ask(token: str | None, **plain: str) -> httpx2.Response:
        sent = {
            "authorization": f"Bearer {service}",
            **plain,
            **({"X-OpenWebUI-User-Jwt": token} if token else {}),
        }
        return open_http.post("/v1/chat/completions", headers=sent, json=body)

    assert "set RICORDO_OPENWEBUI_SECRET" in ask(signed(ada())).json()["error"]["message"]
    monkeypatch.setenv("RICORDO_OPENWEBUI_SECRET", SECRET)
    assert ask(signed(ada())).status_code == 200
    assert server.read(_users_of_the_newest_conversation) == "open-webui:owui-ada"
    refused = {
        signed(ada(), "another secret"): "another secret",
        signed(ada(), algorithm="none"): "not signed with HS256",
        signed(ada(exp=time.time() - 600)): "expired",
        signed(ada(exp=None)): "expired",
        signed(ada(iss="elsewhere")): "another issuer",
        signed(ada(sub="")): "names no user",
        "a.b": "malformed",
        "a.b.c": "malformed",
    }
    for token, why in refused.items():
        answer = ask(token)
        assert (answer.status_code, why in answer.json()["error"]["message"]) == (403, True), (
            token,
            answer.text,
        )
    assert "must be signed" in ask(None, **{"X-OpenWebUI-User-Id": "owui-ada"}).text


def test_the_model_list_shows_usable_agents_and_letta_clients_keep_theirs(
    server: ServerInThread, http: httpx2.Client, service: str, agent: str
) -> None:
    (found,) = ok(http.get("/v1/agents/", params={"name": agent}))
    for _ in range(2):
        ok(http.post("/v1/agents/", json={"name": "Twins", "model": MODEL}))
    ok(http.post("/v1/agents/", json={"name": "Concealed", "model": MODEL, "hidden": True}))
    with openai_client(server) as client:
        listed = {model.id: model for model in client.models.list()}
        assert listed[agent].owned_by == "ricordo"
        assert client.models.retrieve(agent).created == listed[agent].created
        assert client.models.retrieve(found["id"]).id == found["id"]
        assert not {"Twins", "Concealed"} & listed.keys()
        assert len([id for id in listed if id.startswith("agent-")]) == 2
    identity = ok(
        http.post(
            "/v1/identities/", json={"name": "Cy", "identifier_key": "cy", "identity_type": "user"}
        )
    )
    ok(http.patch(f"/v1/agents/{found['id']}/identities/attach/{identity['id']}"))
    with openai_client(server, service, **{"X-OpenWebUI-User-Id": "dee"}) as client:
        assert agent not in [model.id for model in client.models.list()]
    with server.client(api_key=OPERATOR) as letta:
        assert MODEL in [model.handle for model in letta.models.list()]
    old = http.get(
        "/v1/models", headers={"user-agent": "Letta/Python 1.0.0"}, follow_redirects=False
    )
    assert (old.status_code, old.headers["location"]) == (307, f"{server.url}/v1/models/")


@pytest.mark.parametrize("given", [{}, {"encoding_format": "float"}])
def test_embeddings_are_returned_as_floats_or_base64(
    server: ServerInThread, given: dict[str, Any]
) -> None:
    handle = server.embedder.handle
    with openai_client(server) as client:
        # The client always asks for base64, and decodes it.
        made = client.embeddings.create(model=handle, input=["Jasmine tea.", "Rain."], **given)
    assert [one.index for one in made.data] == [0, 1]
    expected = server.run(server.embedder.embed(["Rain."]))[0]
    assert made.data[1].embedding == pytest.approx(expected, abs=1e-6)
    assert (made.model, made.usage.prompt_tokens > 0) == (handle, True)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_temporary_chat_is_answered_and_not_stored(
    server: ServerInThread, service: str, agent: str, http: httpx2.Client, is_streamed: bool
) -> None:
    server.says("For now only.")
    more = headers(service, "gus", "temporary:socket" if is_streamed else "local:socket")
    del more["authorization"]
    with openai_client(server, service, **more) as client:
        made = client.chat.completions.create(
            model=agent, messages=[user("Hello kanarigus.")], stream=is_streamed
        )
        answer = (
            made.choices[0].message.content
            if not is_streamed
            else "".join(chunk.choices[0].delta.content or "" for chunk in made)
        )
    assert answer == "For now only."
    with closing(sqlite3.connect(server.settings.data_dir / "ricordo.db")) as database:
        assert not [row for row in database.iterdump() if "kanarigus" in row]
    server.says(ModelError("llm_rate_limit", "Slow down."))
    with openai_client(server, service, **more) as client, pytest.raises(openai.APIError):
        list(client.chat.completions.create(model=agent, messages=[user("Hello.")], stream=True))
    with openai_client(server, service, **more) as client, pytest.raises(openai.APIError) as kept:
        client.responses.create(model=agent, input="Hello.")
    assert "other routes store chats" in str(kept.value)
    assert ok(http.get("/v1/users/open-webui:owui-gus"))["name"] == "gus L."
