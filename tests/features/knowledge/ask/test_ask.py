"""Questions about a user, over HTTP and by a tool: answers with citations, "not known"."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ricordo.domain.model import LIBRARIAN, ModelRequest
from ricordo.llm.scripted import call
from tests.seams.http import OPERATOR, bearer, ok, refused
from tests.seams.server import MODEL, ServerInThread, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerInThread]:
    with serving(tmp_path, api_key=OPERATOR) as running:
        yield running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(headers=bearer(OPERATOR)) as opened:
        yield opened


@pytest.fixture
def agent(http: httpx2.Client) -> str:
    """Make an agent with messages of Ada and Bob, and a block of Ada's."""
    made = str(
        ok(http.post("/v1/agents/", json={"model": MODEL, "tools": ["query_student"]}))["id"]
    )
    say(http, made, "ada", "I want to write about sailing with my grandfather.")
    say(http, made, "bob", "I want to write about sailing against the wind.")
    ok(
        http.put(
            "/users/ada/blocks/notes", json={"body": "Afraid of sailing at night.\nLikes tea."}
        )
    )
    return made


def say(http: httpx2.Client, agent: str, user: str, text: str) -> Any:
    sent = {"input": text}
    return ok(
        http.post(f"/v1/agents/{agent}/messages", json=sent, headers={"x-ricordo-user": user})
    )["messages"]


def ask(http: httpx2.Client, user: str, question: str, **more: str) -> dict[str, Any]:
    found: dict[str, Any] = ok(
        http.post(f"/users/{user}/ask", json={"question": question, "model": MODEL, **more})
    )
    return found


def number_of(request: ModelRequest, words: str) -> int:
    """Return the number of the source with these words."""
    lines = request.messages[-1].text.split("\n")
    return next(
        int(line[1 : line.index("]")]) for line in lines if line.startswith("[") and words in line
    )


def test_an_answer_cites_only_the_users_messages_and_lines(
    server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    def answer(request: ModelRequest) -> str:
        said, noted = number_of(request, "grandfather"), number_of(request, "at night")
        return f"Sailing with the grandfather [{said}], though nights frighten her [{noted}]. [99]"

    server.answers_with(answer)
    told = ask(http, "ada", "What does she say about sailing?")
    assert told["known"] is True
    kinds = {one["kind"]: one for one in told["citations"]}
    assert kinds["message"]["text"] == "I want to write about sailing with my grandfather."
    assert (kinds["message"]["role"], kinds["message"]["agent_id"]) == ("user", agent)
    assert (kinds["fact"]["label"], kinds["fact"]["text"]) == (
        "notes",
        "Afraid of sailing at night.",
    )
    assert [f"[{one['number']}]" in told["answer"] for one in told["citations"]] == [True, True]
    asked = server.model.requests[-1]
    assert "against the wind" not in str(asked.messages)
    spent = ok(http.get("/v1/ledger", params={"group_by": "user"}))
    assert str(asked.user_id) in str(spent)


def test_an_unknown_answer_is_reported_as_not_known(
    server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    server.answers_with(lambda _request: "NOT KNOWN")
    told = ask(http, "ada", "When is her birthday?")
    assert (told["known"], told["answer"], told["citations"]) == (False, "This is not known.", [])
    before = len(server.model.requests)
    server.key("eve")
    assert ask(http, "eve", "What does she like?")["known"] is False
    assert len(server.model.requests) == before  # There are no sources.


def test_the_librarian_answers_with_quotes(http: httpx2.Client, agent: str) -> None:
    told = ask(http, "ada", "Who went sailing?", model=LIBRARIAN)
    assert told["known"] is True
    assert "grandfather" in told["answer"]
    assert len(told["citations"]) >= 2


def test_only_the_user_may_ask_about_their_memory(
    server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    key = bearer(server.key("bob"))
    refused(
        http.post("/users/ada/ask", json={"question": "What?", "model": MODEL}, headers=key), 404
    )
    lesser = {
        "authorization": f"Bearer {server.key('ada', scopes=('memory:read', 'memory:write'))}"
    }
    assert "messages:read" in refused(
        http.post("/users/ada/ask", json={"question": "What?"}, headers=lesser), 403
    )
    refused(http.post("/users/ada/ask", json={"question": ""}), 422)
    refused(http.post("/users/nobody-here/ask", json={"question": "What?"}), 404)


def test_query_student_searches_all_messages_of_the_student(
    server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    other = ok(http.post("/v1/agents/", json={"model": MODEL, "tools": ["query_student"]}))["id"]
    server.says(call("query_student", question="What about sailing?"), "I see.")
    messages = say(http, other, "ada", "Do you know about my sailing?")
    (result,) = [
        one["tool_return"] for one in messages if one["message_type"] == "tool_return_message"
    ]
    assert "said by the person" in result
    assert "grandfather" in result
    assert "noted in notes" in result
    assert "against the wind" not in result
    assert "Do you know about" not in result


def test_the_matching_part_of_a_long_text_is_a_source(http: httpx2.Client, agent: str) -> None:
    sentences = [f"Sentence {number} of it is of no use." for number in range(200)]
    sentences[150] = "The heliotrope stands by the well."
    say(http, agent, "ada", " ".join(sentences))
    answer = ask(http, "ada", "Where is the heliotrope?", model=LIBRARIAN)["answer"]
    assert sentences[150] in answer
    assert sentences[0] not in answer
