"""The pages of groups and of sleeping agents, with their forms."""

import re
from html import unescape
from typing import Any

import httpx2
import pytest

from ricordo.features.groups import sleep_pages
from tests.features.groups.test_sleep_view import learns
from tests.features.groups.test_sleeptime import main_agent, say, set_frequency, wait_for_runs
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread
from tests.seams.waiting import wait_for

HOSTILE = "<script>alert(1)</script>"


def make_agent(http: httpx2.Client, name: str) -> str:
    body = {
        "name": name,
        "model": MODEL,
        "memory_blocks": [{"label": "persona", "value": f"I am {name}."}],
    }
    return str(ok(http.post("/v1/agents/", json=body))["id"])


def send(http: httpx2.Client, path: str, **form: Any) -> str:
    """Send a form; return the page that follows."""
    answer = http.post(path, data=form)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def test_a_group_can_be_created_changed_and_deleted_on_its_pages(http: httpx2.Client) -> None:
    names = {name: make_agent(http, name) for name in ("Anna", "Ben", HOSTILE)}
    assert "There is no group yet" in http.get("/ui/groups").text
    form = {
        "description": f"Tutors {HOSTILE}",
        "kind": "dynamic",
        "manager": names["Anna"],
        "member": [*names.values()],
    }
    path = send(http, "/ui/groups", **form)
    group = ok(http.get(f"/v1/groups/{path.rsplit('/', 1)[1]}"))
    assert (group["manager_agent_id"], group["agent_ids"]) == (
        names["Anna"],
        [names["Ben"], names[HOSTILE]],
    )
    for page in (http.get(path).text, http.get("/ui/groups").text):
        assert all(name in page for name in ("Anna", "Ben", "&lt;script&gt;"))
        assert HOSTILE not in page
    send(http, path, description="Tutors", max_turns="3", termination_token="OVER")
    group = ok(http.get(f"/v1/groups/{group['id']}"))
    assert [group[name] for name in ("description", "max_turns", "termination_token")] == [
        "Tutors",
        3,
        "OVER",
    ]
    send(http, path, max_turns="")
    assert ok(http.get(f"/v1/groups/{group['id']}"))["max_turns"] is None
    refused = http.post(path, data={"max_turns": "many"})
    assert refused.status_code == 422
    assert "max_turns" in refused.text
    assert send(http, f"{path}/delete") == "/ui/groups"
    assert http.get(path).status_code == 404


def test_a_refused_group_form_keeps_its_input(http: httpx2.Client) -> None:
    make_agent(http, "Cleo")
    answer = http.post("/ui/groups", data={"description": "Nobody leads.", "kind": "supervisor"})
    assert answer.status_code == 422
    assert "manager_agent_id" in answer.text
    assert "Nobody leads." in answer.text
    answer = http.post("/ui/groups", data={"description": "Nobody is here."})
    assert answer.status_code == 400
    assert "Choose at least one member." in answer.text


def test_an_empty_message_is_not_sent_to_a_group(http: httpx2.Client) -> None:
    form = {"description": "Tutors", "member": make_agent(http, "Dana")}
    path = send(http, "/ui/groups", **form)
    assert send(http, f"{path}/say", message=" ") == path
    assert "Write something first." in http.get(path).text


def test_the_sleeptime_list_pages_through_all_pairs_with_voice_agents_last(
    http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleep_pages, "_PAIRS_PAGE", 2)
    names = [f"{kind} pair {number}" for kind in ("plain", "voice") for number in range(3)]
    for name in names:
        kind = {"agent_type": "voice_convo_agent"} if "voice" in name else {}
        body = {"name": name, "model": MODEL, "memory_blocks": [], "enable_sleeptime": True, **kind}
        ok(http.post("/v1/agents/", json=body))
    page, listed, count = http.get("/ui/sleeptime").text, [], 0
    while True:
        listed += re.findall(r">((?:plain|voice) pair \d)</a>", page)
        count += 1
        older = re.search(r'href="(/ui/sleeptime\?[^"]*(?:after|kind)[^"]*)"', page)
        if older is None:
            break
        page = http.get(unescape(older[1])).text
    assert sorted(listed) == sorted(names)
    assert [name for name in listed if "voice" in name] == listed[3:]
    assert count >= 3


def test_the_sleeptime_page_shows_work_and_pauses_it(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(learns)
    agent = main_agent(http, name="Mara")
    set_frequency(http, agent, None)
    (run_id,) = say(http, agent, "I am Ada.", "ada")
    wait_for_runs(http, [run_id])
    path = f"/ui/sleeptime/{agent['id']}"
    page = http.get(path).text
    assert all(
        text in page
        for text in ("Mara-sleeptime", f"/ui/runs/{run_id}", "wrote human", "after each turn")
    )
    assert run_id in http.get(path, params={"user": "ada"}).text
    ok(http.put("/users/ben/blocks/notes", json={"body": "Ben."}))
    assert run_id not in http.get(path, params={"user": "ben"}).text
    assert send(http, path, do="pause", user="ada") == f"{path}?user=ada"
    assert say(http, agent, "Again.", "ada") == []
    listed = http.get("/ui/sleeptime", params={"user": "ada"}).text
    assert "Read again" in listed
    assert "Read again" not in http.get("/ui/sleeptime", params={"user": "ben"}).text
    send(http, path, do="resume", user="ada")
    wait_for_runs(http, say(http, agent, "And again.", "ada"))


def test_the_agent_settings_page_shows_the_pair_and_sets_its_frequency(
    http: httpx2.Client,
) -> None:
    agent = main_agent(http, name="Nora", enable_sleeptime=False)
    page = f"/ui/agents/{agent['id']}/settings"
    assert "Let another agent tidy its memory" in http.get(page).text
    send(http, page, sleeptime="on")
    pair = ok(http.get(f"/v1/agents/{agent['id']}"))["multi_agent_group"]
    assert "Nora-sleeptime" in http.get(page).text
    send(http, f"/ui/sleeptime/{agent['id']}/frequency", frequency="3")
    assert ok(http.get(f"/v1/groups/{pair['id']}"))["sleeptime_agent_frequency"] == 3
    send(http, f"/ui/sleeptime/{agent['id']}/frequency", frequency="")
    assert ok(http.get(f"/v1/groups/{pair['id']}"))["sleeptime_agent_frequency"] is None
    assert "works on the memory of" in http.get(f"/ui/agents/{pair['agent_ids'][0]}/settings").text
    send(http, page, sleeptime="off")
    assert ok(http.get(f"/v1/agents/{agent['id']}"))["enable_sleeptime"] is not True
    assert "Switch it on again" in http.get(page).text


def test_the_group_page_shows_messages_with_their_speakers(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(lambda request: f"One of {len(request.messages)} messages. {HOSTILE}")
    members = [make_agent(http, name) for name in ("Dora", "Emil")]
    group = ok(http.post("/v1/groups/", json={"agent_ids": members, "description": "Two."}))["id"]
    page = f"/ui/groups/{group}"
    assert "Nothing was said yet" in http.get(page).text
    after = send(http, f"{page}/say", message=f"Hello both. {HOSTILE}")
    wait_for(lambda: "They are talking" not in http.get(after).text)
    shown = http.get(after).text
    assert shown.count('class="message agent speaker c') == 2
    assert all(f"<strong>{name}</strong>" in shown for name in ("Dora", "Emil"))
    assert shown.count("Hello both.") == 1
    assert HOSTILE not in shown
    assert shown.index("Hello both.") < shown.index("<strong>Dora") < shown.index("<strong>Emil")
    send(http, f"{page}/reset")
    assert "Nothing was said yet" in http.get(page).text


def test_numbers_out_of_range_in_forms_are_refused(http: httpx2.Client) -> None:
    agent = main_agent(http, name="Ida")
    group = ok(
        http.post("/v1/groups/", json={"agent_ids": [agent["id"]], "description": "Long numbers"})
    )
    forms = {
        f"/ui/sleeptime/{agent['id']}/frequency": "frequency",
        f"/ui/groups/{group['id']}": "max_turns",
        f"/ui/agents/{agent['id']}/settings": "daily_tokens",
        "/ui/settings/keys": "days",
    }
    for path, name in forms.items():
        for digit in ("9", "٣", "९"):
            for length in (20, 5000):
                answer = http.post(path, data={name: digit * length, "name": "Ida"})
                assert 400 <= answer.status_code < 500, (path, digit, length, answer.text[:300])
