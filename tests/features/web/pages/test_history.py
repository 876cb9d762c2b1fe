"""The pages of a block's history: versions, one version, two compared, blame, and restoring."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.features.web.pages.test_decisions import human_text
from tests.features.web.pages.test_home import visitor
from tests.features.web.pages.test_memory import home

TEXTS = ("Likes tea.", "Likes tea.\nPlays chess.", "Likes coffee.\nPlays chess.")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[TestClient]:
    with visitor(tmp_path) as client:
        for number, text in enumerate(TEXTS, 1):
            client.put(
                "/users/ada/blocks/human", json={"body": text, "message": f"Change <{number}>"}
            )
        yield client


def versions(browser: TestClient) -> list[str]:
    """Return the ids of the versions, oldest first."""
    return [one["sha"] for one in reversed(browser.get("/users/ada/blocks/human/history").json())]


def test_versions_are_listed_with_reason_and_word_counts(browser: TestClient) -> None:
    page = browser.get(f"{home(browser)}/blocks/human/history").text
    assert (
        page.index("Change &lt;3&gt;")
        < page.index("Change &lt;2&gt;")
        < page.index("Change &lt;1&gt;")
    )
    assert '+1 <span class="sr">removed: </span>−1' in page, "one word was replaced"
    assert '+2 <span class="sr">removed: </span>−0' in page


def test_a_long_history_is_paged_by_a_cursor(browser: TestClient) -> None:
    for number in range(50):
        browser.put("/users/ada/blocks/human", json={"body": f"Text {number}."})
    page = browser.get(f"{home(browser)}/blocks/human/history").text
    assert page.count("<tr data-item>") == 50
    older = page.split('">Older</a>')[0].rsplit('href="', 1)[1]
    assert browser.get(older.replace("&amp;", "&")).text.count("<tr data-item>") == 3


def test_a_version_shows_its_changes_and_can_be_restored(browser: TestClient) -> None:
    first, second, third = versions(browser)
    page = browser.get(f"{home(browser)}/blocks/human/versions/{second}").text
    assert "Plays chess.</ins>" in page
    assert "Restore this text" in page
    assert f"/versions/{first}" in page, "the page must link to the previous version"
    assert (
        "Restore this text"
        not in browser.get(f"{home(browser)}/blocks/human/versions/{third}").text
    )
    assert browser.get(f"{home(browser)}/blocks/human/versions/{'0' * 40}").status_code == 404
    assert browser.get(f"{home(browser)}/blocks/human/versions/{second[:7]}").status_code == 200


def test_two_versions_can_be_compared_in_either_order(browser: TestClient) -> None:
    first, _, third = versions(browser)
    for asked in ({"from": first, "to": third}, {"from": third, "to": first}):
        page = browser.get(f"{home(browser)}/blocks/human/compare", params=asked).text
        assert "tea</del>" in page
        assert "added: </span>coffee" in page
    same = browser.get(
        f"{home(browser)}/blocks/human/compare", params={"from": first, "to": first}
    ).text
    assert "The two texts are equal." in same
    assert "added: </span>coffee" in browser.get(f"{home(browser)}/blocks/human/compare").text, (
        "the default must be the latest change"
    )


def test_a_former_label_leads_to_the_pages_and_the_history_of_the_renamed_block(
    browser: TestClient,
) -> None:
    first, *_ = versions(browser)
    browser.patch("/users/ada/blocks/human", json={"label": "profile"}).raise_for_status()
    history = browser.get("/users/ada/blocks/profile/history").json()
    assert len(history) == 4
    assert browser.get("/users/ada/blocks/human/history").json() == history
    for sha in (first, history[0]["sha"]):
        by_label = [
            browser.get(f"/users/ada/blocks/{label}/versions/{sha}").json()
            for label in ("human", "profile")
        ]
        assert by_label[0] == by_label[1]
        page = browser.get(f"{home(browser)}/blocks/human/versions/{sha}").text
        assert by_label[0]["body"].split("\n")[0] in page
        assert "was deleted" not in page
    page = browser.get(f"{home(browser)}/blocks/human").text
    assert "/blocks/profile" in page
    assert "Plays chess." in page
    assert browser.get("/users/ada/blocks/human").status_code == 404
    # A new block with the label has a history of its own.
    browser.put("/users/ada/blocks/human", json={"body": "New."}).raise_for_status()
    assert len(browser.get("/users/ada/blocks/human/history").json()) == 1


def test_restoring_a_text_can_be_undone(browser: TestClient) -> None:
    first, *_ = versions(browser)
    page = f"{home(browser)}/blocks/human"
    answer = browser.post(f"{page}/restore", data={"sha": first})
    assert answer.headers["location"] == page
    assert human_text(browser) == TEXTS[0]
    told = browser.get(page).text
    assert "human was restored." in told
    browser.post(told.split('<form method="post" action="')[1].split('"')[0])
    assert human_text(browser) == TEXTS[2]
    assert browser.post(f"{page}/restore", data={"sha": "f" * 40}).status_code == 404


def test_each_line_shows_its_author_and_reason(browser: TestClient) -> None:
    page = browser.get(f"{home(browser)}/blocks/human/blame").text
    rows = page.split("<tr data-item")[1:]
    assert len(rows) == 2
    assert "Likes coffee." in rows[0]
    assert "Change &lt;3&gt;" in rows[0]
    assert "Plays chess." in rows[1]
    assert "Change &lt;2&gt;" in rows[1]
    assert (
        browser.get(f"{home(browser)}/blocks/human/blame", params={"line": "²"}).status_code == 200
    )


def test_an_agents_block_has_the_same_history_pages(browser: TestClient) -> None:
    agent = browser.post(
        "/v1/agents/", json={"memory_blocks": [{"label": "human", "value": ""}]}
    ).json()
    said = {"messages": [{"role": "user", "content": "My name is Ada."}]}
    browser.post(f"/v1/agents/{agent['id']}/messages", json=said)
    page = f"/ui/blocks/{agent['blocks'][0]['id']}"
    for path in ("/history", "/compare", "/blame"):
        assert "Ada" in browser.get(f"{page}{path}").text
    message = next(
        one["id"]
        for one in browser.get(f"/v1/agents/{agent['id']}/messages").json()
        if one["message_type"] == "user_message"
    )
    assert f"message={message}" in browser.get(f"{page}/blame").text, (
        "a line must link to its message"
    )
    *_, oldest = browser.get(f"/v1/blocks/{agent['blocks'][0]['id']}/history").json()
    assert browser.post(f"{page}/restore", data={"sha": oldest["sha"]}).status_code == 303
    assert browser.get(f"/v1/blocks/{agent['blocks'][0]['id']}").json()["value"] == ""
