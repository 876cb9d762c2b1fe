"""Facts of conversations over HTTP: read, listed with their evidence, decided, erased."""

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from sqlalchemy import text

from ricordo.domain.job import Job
from ricordo.domain.model import LIBRARIAN, ModelRequest
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.features.knowledge.facts import jobs
from tests.seams.http import OPERATOR, bearer, ok, refused
from tests.seams.server import MODEL, ServerInThread, call, serving
from tests.seams.waiting import wait_for

BROWSER = {"sec-fetch-site": "same-origin"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RICORDO_FACTS_IDLE_SECONDS", "0")
        with serving(tmp_path_factory.mktemp("facts"), api_key=OPERATOR) as running:
            yield running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    server.forget()
    with server.http(headers=bearer(OPERATOR)) as opened:
        ok(opened.put("/v1/facts/policy", json={"policy": "direct"}))
        yield opened


def agent_of(http: httpx2.Client, model: str = LIBRARIAN, **fields: Any) -> str:
    return str(ok(http.post("/v1/agents/", json={"model": model, **fields}))["id"])


def say(http: httpx2.Client, agent: str, user: str, *lines: str) -> None:
    for line in lines:
        sent = {"input": line}
        ok(http.post(f"/v1/agents/{agent}/messages", json=sent, headers={"x-ricordo-user": user}))


def read_facts(server: ServerInThread) -> None:
    """Look for unread messages, and wait until they are read."""
    job = Job(jobs.FIND, LOCAL_ORGANIZATION)
    server.run(jobs.find_unread(server.runtime, job, lambda _done, _total: None))

    waiting = text("SELECT id FROM jobs WHERE kind = :kind AND status IN ('waiting', 'running')")
    parameters = {"kind": jobs.EXTRACT}

    def is_done() -> bool:
        return not server.read(lambda tx: tx.connection.execute(waiting, parameters).all())

    wait_for(is_done)


def facts(http: httpx2.Client, user: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(http.get(f"/v1/users/{user}/facts", params=query))
    return found


def test_messages_to_the_librarian_become_facts_of_that_user_only(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = agent_of(http)
    say(http, agent, "ada", "I live in Graz.", "What is my name?", "I like climbing.")
    say(http, agent, "bob", "I live in Vienna.")
    read_facts(server)
    shown = facts(http, "ada")
    assert [fact["sentence"] for fact in shown] == ["I like climbing.", "I live in Graz."]
    (evidence,) = shown[1]["evidence"]
    stored = ok(http.get(f"/v1/messages/{evidence['message_id']}"))
    assert evidence["quote"] == "I live in Graz."
    assert "I live in Graz." in json.dumps(stored)
    assert (shown[1]["kind"], shown[1]["slot"], shown[1]["agent_id"]) == ("who", "home", agent)
    assert [fact["sentence"] for fact in facts(http, "bob")] == ["I live in Vienna."]
    read_facts(server)
    assert len(facts(http, "ada")[1]["evidence"]) == 1  # nothing is read twice


def test_facts_are_not_read_unless_the_organization_enables_them(
    server: ServerInThread, http: httpx2.Client
) -> None:
    ok(http.put("/v1/facts/policy", json={"policy": None}))
    agent = agent_of(http)
    say(http, agent, "carl", "I live in Graz.")
    before = len(server.model.requests)
    read_facts(server)
    assert facts(http, "carl", state="all") == []
    assert ok(http.get("/v1/users/carl/facts/policy")) == {"policy": "off", "chosen_by": "server"}
    assert len(server.model.requests) == before
    ok(http.put("/v1/users/carl/facts/policy", json={"policy": "propose"}))
    quiet = agent_of(http, metadata={"facts": "off"})
    say(http, quiet, "carl", "I have two cats.")
    read_facts(server)
    assert [fact["sentence"] for fact in facts(http, "carl", state="proposed")] == [
        "I live in Graz."
    ]


def test_a_proposed_fact_names_what_it_replaces_and_its_owner_decides(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = agent_of(http)
    say(http, agent, "dora", "My favourite drink is tea.")
    read_facts(server)
    ok(http.put("/v1/users/dora/facts/policy", json={"policy": "propose"}))
    say(http, agent, "dora", "My favourite drink is now coffee.", "I like olives.")
    read_facts(server)
    olives, coffee = facts(http, "dora", state="proposed")
    assert "2 facts" in http.get("/ui/people/dora").text
    with server.http(headers=BROWSER) as dora:
        assert dora.post("/ui/login", data={"key": server.key("dora")}).status_code == 303
        assert "2 facts" in dora.get("/").text
    (tea,) = facts(http, "dora")
    assert coffee["replaces_id"] == tea["id"]
    assert coffee["change"].startswith("replace: tea (")
    assert " -> coffee (" in coffee["change"]
    path = "/v1/users/dora/facts"
    refused(http.post(f"/v1/users/ada/facts/{coffee['id']}/approve"), 404)
    with server.http(headers=bearer(server.key("eve"))) as eve:
        assert eve.post(f"{path}/{coffee['id']}/approve").status_code in (403, 404)
    approved = ok(http.post(f"{path}/{coffee['id']}/approve"))
    assert (approved["state"], approved["text"]) == ("current", coffee["sentence"])
    refused(http.post(f"{path}/{coffee['id']}/reject"), 409)
    assert ok(http.post(f"{path}/{olives['id']}/reject"))["state"] == "rejected"
    (ended,) = facts(http, "dora", state="ended")
    assert (ended["id"], ended["replacement_id"]) == (tea["id"], coffee["id"])
    assert ended["text"].startswith("Until ")
    assert [fact["id"] for fact in facts(http, "dora", as_of="2100-01-01")] == [coffee["id"]]
    refused(http.get(path, params={"as_of": "May"}), 400)
    changed = ok(
        http.patch(f"{path}/{coffee['id']}", json={"sentence": "My favourite drink is cocoa."})
    )
    assert (changed["value"], changed["source"]) == ("cocoa", "user")
    written = ok(http.post(path, json={"sentence": "I live in Graz."}))
    assert (written["slot"], written["evidence"]) == ("home", [])
    assert ok(http.delete(f"{path}/{changed['id']}")) == {"forgotten": 2}


def test_the_facts_page_shows_evidence_and_decides_proposals(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = agent_of(http)
    say(http, agent, "hugo", "My favourite drink is tea.")
    read_facts(server)
    ok(http.put("/v1/users/hugo/facts/policy", json={"policy": "propose"}))
    say(http, agent, "hugo", "My favourite drink is now coffee.")
    read_facts(server)
    (proposed,) = facts(http, "hugo", state="proposed")
    page = f"/ui/people/{proposed['user_id']}/facts"
    shown = http.get(page, headers=BROWSER).text
    for words in ("replace: tea (", "Approve", "<q", "My favourite drink is tea.", "Forget"):
        assert words in shown, words
    assert "No facts are known of this day" in http.get(f"{page}?as_of=2001-01-01").text
    form = {"action": "approve"}
    answer = http.post(f"{page}/{proposed['id']}", data=form, headers=BROWSER)
    assert answer.status_code == 303, answer.text
    (current,) = facts(http, "hugo")
    assert current["value"] == "coffee"
    corrected = {"action": "change", "sentence": "My favourite drink is cocoa."}
    assert http.post(f"{page}/{current['id']}", data=corrected, headers=BROWSER).status_code == 303
    (fact,) = facts(http, "hugo")
    assert http.post(f"{page}/{fact['id']}", data={"action": "forget"}).status_code == 303
    assert facts(http, "hugo") == []
    assert http.post(f"{page}/policy", data={"policy": "direct"}).status_code == 303
    assert ok(http.get("/v1/users/hugo/facts/policy"))["policy"] == "direct"


def test_a_profile_fits_its_token_limit_and_names_its_sources(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = agent_of(http)
    ok(http.put("/users/ines/blocks/human", json={"body": "I live in Graz.\nWrites about whales."}))
    words = ["I live in Graz.", "Please always answer in German.", "I like climbing."]
    say(http, agent, "ines", *words, "My sister's name is Emma.", "I visited Rome last year.")
    read_facts(server)
    path = "/v1/users/ines/profile"
    whole = ok(http.get(path))
    shown = [line["text"] for line in whole["lines"]]
    assert shown[0] == "Please always answer in German."
    assert set(words) < set(shown)
    assert shown.count("I live in Graz.") == 1  # the block's line says no more than the fact
    assert shown[-1] == "Writes about whales."
    assert whole["text"] == ok(http.get(path))["text"]
    assert all(line["message_ids"] for line in whole["lines"] if line["source"] == "fact")
    small = ok(http.get(path, params={"tokens": 50, "question": "What does she write about?"}))
    assert small["tokens"] <= 50
    assert small["is_cut"]
    assert "Writes about whales." in small["text"]


def test_search_finds_facts_with_their_message_and_prefers_current_ones(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = agent_of(http)
    say(http, agent, "jana", "My favourite drink is tea.", "My favourite drink is now coffee.")
    read_facts(server)
    query = {"query": "favourite drink", "kinds": ["fact"]}
    found = ok(http.post("/users/jana/memories/search", json=query))["results"]
    read = [result for result in found if result["id"].startswith("fact-")]
    assert [result["memory"].rpartition(" ")[2] for result in read] == ["coffee.", "tea."]
    assert read[1]["memory"].startswith("Until ")
    assert all(len(result["citation"]["message_ids"]) == 1 for result in read)
    question = {"question": "What is her favourite drink?", "model": LIBRARIAN}
    cited = ok(http.post("/users/jana/ask", json=question))["citations"]
    assert read[0]["id"] in [source["id"] for source in cited]


def read_fact(message: int, quote: str, **fields: Any) -> dict[str, Any]:
    return {
        "sentence": quote,
        "subject": "user",
        "kind": "who",
        "slot": "",
        "value": "",
        "quotes": [{"message": message, "quote": quote}],
        "start": None,
        "end": None,
        "confidence": 0.8,
        "old_fact": None,
        "relation": None,
    } | fields


def number_of(request: ModelRequest, words: str) -> int:
    lines = request.messages[-1].text.split("\n")
    return next(int(line[1 : line.index("]")]) for line in lines if words in line)


def test_the_model_reads_several_turns_in_one_call_and_inventions_are_refused(
    server: ServerInThread, http: httpx2.Client
) -> None:
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        if "note lasting facts" not in request.messages[0].text:
            return "I have 7 ducks."
        asked.append(request)
        home = number_of(request, "moved to Graz")
        ducks = number_of(request, "7 ducks")
        entries = [
            read_fact(home, "I moved to Graz", slot="home", value="Graz", start="2026-03"),
            read_fact(home, "I moved to Vienna"),
            read_fact(ducks, "I have 7 ducks"),
            read_fact(99, "I moved to Graz"),
            {"sentence": "No quotes."},
        ]
        return json.dumps({"facts": entries})

    server.answers_with(answer)
    agent = agent_of(http, MODEL)
    say(http, agent, "fred", "Hello.", "I moved to Graz in March.", "Nice.")
    read_facts(server)
    assert (asked, facts(http, "fred", state="all")) == ([], [])
    say(http, agent, "fred", "I hate olives, by the way.")
    read_facts(server)
    read_facts(server)
    (request,) = asked
    assert request.settings.response_format is not None
    (fact,) = facts(http, "fred")
    assert (fact["slot"], fact["value"], fact["source"]) == ("home", "graz", "model")
    assert (fact["starts_at"][:7], fact["precision"]) == ("2026-03", "month")


def test_facts_are_exported_and_erased(server: ServerInThread, http: httpx2.Client) -> None:
    before = server.rows()
    agent = agent_of(http)
    ok(http.put("/users/gina/blocks/human", json={"body": "Gina."}))
    ok(http.put("/v1/users/gina/facts/policy", json={"policy": "direct"}))
    say(http, agent, "gina", "I live in Xqcanary.")
    read_facts(server)
    (fact,) = facts(http, "gina")
    archive = zipfile.ZipFile(io.BytesIO(http.get("/users/gina/export").content))
    (line,) = archive.read("facts.jsonl").decode().splitlines()
    assert json.loads(line) == {
        **{name: field for name, field in fact.items() if name != "user_id"},
        "resolved_by": None,
    }
    answer = http.delete("/users/gina")
    assert answer.status_code in (200, 202)
    tables = ("user_facts", "fact_marks", "fact_policies")
    wait_for(lambda: all(server.rows()[table] == before[table] for table in tables))


def test_conversation_search_shows_facts_with_the_users_words(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_FACTS_BY", "rules")
    other = agent_of(http)
    agent = agent_of(http, MODEL, tools=["conversation_search"])
    server.says("Noted.")
    say(http, agent, "kim", "My favourite drink is tea.", "My favourite drink is now coffee.")
    say(http, other, "kim", "My favourite drink at work is xqmate.")
    say(http, agent, "lou", "My favourite drink is xqlemonade.")
    read_facts(server)
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Any:
        seen.append(request)
        if request.messages[-1].role == "tool":
            return "Coffee."
        return call("conversation_search", query="favourite drink")

    server.answers_with(answer)
    say(http, agent, "kim", "What do I drink?")
    result = json.loads(seen[-1].messages[-1].tool_returns[0].content)["message"]
    now, before = result["facts"]
    assert now["fact"] == "My favourite drink is now coffee."
    assert before["fact"].startswith("Until ")
    assert before["quote"] == "My favourite drink is tea."
    assert "xq" not in str(result["facts"])
    (ended,) = facts(http, "kim", state="ended")
    ok(http.delete(f"/v1/users/kim/facts/{ended['id']}"))
    say(http, agent, "kim", "And before?")
    result = json.loads(seen[-1].messages[-1].tool_returns[0].content)["message"]
    (only,) = result["facts"]
    assert only["fact"] == now["fact"]


def test_the_search_page_shows_facts_that_link_to_their_message(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = agent_of(http)
    say(http, agent, "mia", "I live in Xqgraz.")
    read_facts(server)
    (fact,) = facts(http, "mia")
    query = {"q": "Where do I live? Xqgraz", "user": "mia"}
    shown = http.get("/ui/search", params=query, headers=BROWSER).text
    path = f"/ui/people/{fact['user_id']}/facts"
    assert f"{path}#{fact['id']}" in shown
    (evidence,) = fact["evidence"]
    assert f"message={evidence['message_id']}" in http.get(path, headers=BROWSER).text
    elsewhere = http.get("/ui/search", params=query | {"user": "nobody-here"}, headers=BROWSER)
    assert fact["id"] not in elsewhere.text
    with server.http(headers=bearer(server.key("nora"))) as other:
        refused_page = other.get("/ui/search", params=query, headers=BROWSER)
    assert fact["id"] not in refused_page.text
