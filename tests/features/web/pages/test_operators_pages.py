"""Pages of runs, jobs, models and settings: their content and their forms."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from ricordo.errors import ModelError
from ricordo.llm.scripted import ScriptedModel
from tests.features.web.pages.test_home import visitor


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[TestClient]:
    with visitor(tmp_path) as client:
        yield client


@pytest.fixture
def agent(browser: TestClient) -> str:
    made = browser.post(
        "/v1/agents/", json={"name": "Nina", "memory_blocks": [{"label": "human", "value": ""}]}
    ).json()
    said = {"messages": [{"role": "user", "content": "I live in <Turin>."}]}
    assert browser.post(f"/v1/agents/{made['id']}/messages", json=said).status_code == 200
    return str(made["id"])


def test_runs_are_filtered_by_agent_and_status_and_shown_with_steps(
    browser: TestClient, agent: str
) -> None:
    run = browser.get("/v1/runs/").json()[0]["id"]
    page = browser.get("/ui/runs", params={"agent": agent, "status": "completed"}).text
    assert "Runs of Nina" in page
    assert f"/ui/runs/{run}" in page
    assert f"/ui/runs/{run}" not in browser.get("/ui/runs", params={"status": "failed"}).text
    shown = browser.get(f"/ui/runs/{run}").text
    for words in (
        "I live in &lt;Turin&gt;.",
        "Step 1",
        "ricordo/librarian",
        "tokens in",
        "end turn",
    ):
        assert words in shown


def test_a_failed_run_shows_its_error_and_can_be_retried(tmp_path: Path) -> None:
    model = ScriptedModel([ModelError("llm_bad_request", "The provider is <down>."), "Yes, I am."])
    with visitor(tmp_path, model) as browser:
        agent = browser.post(
            "/v1/agents/", json={"model": "scripted/model", "memory_blocks": []}
        ).json()["id"]
        said = {"messages": [{"role": "user", "content": "Are you there?"}]}
        assert browser.post(f"/v1/agents/{agent}/messages", json=said).status_code == 400
        failed = browser.get("/v1/runs/", params={"statuses": "failed"}).json()[0]["id"]
        shown = browser.get(f"/ui/runs/{failed}").text
        assert "The provider is &lt;down&gt;." in shown
        assert "Try again" in shown
        again = browser.post(f"/ui/runs/{failed}/retry").headers["location"]
        assert again.startswith(f"/ui/agents/{agent}/chat?conversation=")
        newest = browser.get("/v1/runs/").json()[0]["id"]
        assert "Yes, I am." in browser.get(f"/ui/runs/{newest}").text
        page = browser.post(f"/ui/runs/{newest}/retry")
        assert page.status_code == 400
        assert "Only a run that failed" in page.text


def test_an_outdated_tab_says_that_a_run_had_ended(browser: TestClient, agent: str) -> None:
    run = browser.get("/v1/runs/").json()[0]
    stopped = browser.post(f"/ui/runs/{run['id']}/cancel", follow_redirects=True)
    assert "The run had ended already." in stopped.text
    form = {"conversation": run["conversation_id"]}
    stopped = browser.post(f"/ui/agents/{agent}/chat/stop", data=form, follow_redirects=True)
    assert (stopped.status_code, "The turn had ended already." in stopped.text) == (200, True)


def test_the_runs_page_is_paged_by_a_cursor(browser: TestClient, agent: str) -> None:
    said = {"messages": [{"role": "user", "content": "Hello."}]}
    for _ in range(51):
        browser.post(f"/v1/agents/{agent}/messages", json=said)
    page = browser.get("/ui/runs").text
    assert page.count("<tr data-item>") == 50
    older = page.split('">Older</a>')[0].rsplit('href="', 1)[1]
    assert browser.get(older.replace("&amp;", "&")).text.count("<tr data-item>") == 2


def test_the_jobs_pages_show_the_queue_and_one_job(browser: TestClient, agent: str) -> None:
    job = browser.get("/v1/jobs/").json()[0]
    page = browser.get("/ui/jobs").text
    assert "0 failed." in page
    assert job["metadata"]["kind"] in page
    assert job["metadata"]["kind"] in browser.get(f"/ui/jobs/{job['id']}").text
    assert browser.get("/ui/jobs/job-00000000-0000-4000-8000-000000000000").status_code == 404


def test_the_models_page_shows_the_default_and_manages_providers(browser: TestClient) -> None:
    page = browser.get("/ui/models").text
    assert "New agents use <code>ricordo/librarian</code>" in page
    form = {"provider_type": "openai", "name": "mine", "api_key": "sk-secret-1"}
    assert browser.post("/ui/models/providers", data=form).status_code == 303
    page = browser.get("/ui/models").text
    assert "mine was added." in page
    assert "sk-secret-1" not in page
    provider = browser.get("/v1/providers/").json()[0]["id"]
    browser.post(f"/ui/models/providers/{provider}/delete")
    assert browser.get("/v1/providers/").json() == []


def test_an_invalid_provider_is_refused_with_a_reason(browser: TestClient) -> None:
    page = browser.post("/ui/models/providers", data={"provider_type": "nonsense", "name": "x"})
    assert page.status_code == 422
    assert "Providers of type nonsense cannot be added here." in page.text


def test_the_first_key_is_shown_once_and_can_log_in(browser: TestClient) -> None:
    page = browser.post(
        "/ui/settings/keys", data={"user": "ada", "role": "admin", "days": "7"}
    ).text
    key = page.split('<code id="new-key">')[1].split("</code>")[0]
    assert "first key of this server" in page
    refused = browser.get("/ui/settings", headers={"accept": "text/html"})
    assert (refused.status_code, refused.headers["location"]) == (
        303,
        "/ui/login?next=%2Fui%2Fsettings",
    )
    login = browser.post(
        "/ui/login",
        data={"key": key, "next": "/ui/settings"},
        headers={"sec-fetch-site": "same-origin"},
    )
    assert login.headers["location"] == "/ui/settings"
    page = browser.get("/ui/settings").text
    assert key not in page
    assert "ada" in page


def test_users_can_be_added_and_disabled(browser: TestClient) -> None:
    browser.post("/ui/settings/users", data={"name": "Eve & co", "email": ""})
    user = next(one for one in browser.get("/v1/users/").json() if one["name"] == "Eve & co")
    assert "Eve &amp; co" in browser.get("/ui/settings").text
    browser.post(f"/ui/settings/users/{user['id']}", data={"disabled": "yes"})
    assert browser.get(f"/v1/users/{user['id']}").json()["disabled_at"] is not None


def test_the_list_of_users_is_paged_by_a_cursor(browser: TestClient) -> None:
    for number in range(51):
        browser.post("/ui/settings/users", data={"name": f"person {number}"})
    page = browser.get("/ui/settings").text
    assert page.count('action="/ui/settings/users/') == 50
    older = page.split('">Older</a>')[0].rsplit('href="', 1)[1]
    assert 'action="/ui/settings/users/' in browser.get(older.replace("&amp;", "&")).text


def test_a_very_long_message_is_cut_on_pages_of_a_run_and_a_chat(tmp_path: Path) -> None:
    with visitor(tmp_path, ScriptedModel(["I see."])) as browser:
        body = {"model": "scripted/model", "memory_blocks": [], "name": "Nina"}
        agent = browser.post("/v1/agents/", json=body).json()["id"]
        said = {"messages": [{"role": "user", "content": f"Begin {'long ' * 200_000}"}]}
        # The response says that the message does not fit into the window; it is stored anyway.
        browser.post(f"/v1/agents/{agent}/messages", json=said)
        run = browser.get("/v1/runs/").json()[0]["id"]
        chat = f"/ui/agents/{agent}/chat?conversation=default"
        for path, most in ((f"/ui/runs/{run}", 30_000), (chat, 100_000)):
            page = browser.get(path).text
            assert "Begin long" in page, path
            assert "more characters, which the API has." in page, path
            assert len(page) < most, path
