"""The page of templates in the browser."""

from pathlib import Path

from tests.features.web.pages.test_home import visitor


def test_a_template_can_be_saved_rolled_back_and_deleted(tmp_path: Path) -> None:
    with visitor(tmp_path) as browser:
        assert "There are no templates yet" in browser.get("/ui/templates").text
        sent = {"name": "<Nina>", "model": "ricordo/librarian", "description": "<i>Kind.</i>"}
        agent = browser.post("/v1/agents/", json=sent).json()["id"]
        assert browser.post(
            "/v1/templates", json={"type": "agent", "agent_id": agent, "name": "My tutor"}
        ).is_success
        home = "/ui/templates/My%20tutor"
        done = browser.post(f"{home}/save", data={"message": "<b>Shorter</b>", "agents": "yes"})
        assert done.headers["location"] == "/ui/templates"
        page = browser.get("/ui/templates").text
        for words in (
            "&lt;b&gt;Shorter&lt;/b&gt;",
            "&lt;i&gt;Kind.&lt;/i&gt;",
            f"/ui/agents/{agent}",
            "Save version 3",
            f"{home}/save",
        ):
            assert words in page, words
        assert browser.post(f"{home}/rollback", data={"version": "current"}).status_code == 400
        browser.post(f"{home}/rollback", data={"version": "1"})
        assert "It follows no agent." in browser.get("/ui/templates").text
        assert browser.post(f"{home}/delete").headers["location"] == "/ui/templates"
        assert "There are no templates yet" in browser.get("/ui/templates").text
        assert browser.post(f"{home}/save", data={}).status_code == 404
