"""The pictures in the README: a memory that is proposed, approved, and traced to its source.

`make pictures` makes them anew.
"""

import os
import struct
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ricordo.llm.scripted import call
from tests.seams.server import serving
from tests.support.browser import moving_picture, visit

IMAGES = Path(__file__).parents[3] / "docs" / "images"
WIDTH, HEIGHT = 1200, 700
SECONDS = 2.5


@pytest.mark.soak
def test_a_memory_is_proposed_approved_and_traced(browser: Browser, tmp_path: Path) -> None:
    frames: list[bytes] = []

    def look(page: Page) -> None:
        page.wait_for_function("document.querySelector('.htmx-request') === null")
        frames.append(page.screenshot())

    with (
        serving(tmp_path / "data") as server,
        server.http() as http,
        visit(browser, server.url, width=WIDTH, height=HEIGHT) as visitor,
    ):
        http.put(
            "/users/ada/blocks/student",
            json={"body": "Ada learns Italian.\nShe likes tea.", "policy": "propose"},
        )
        blocks = [{"label": "persona", "value": "I am a patient tutor of Italian."}]
        agent = http.post(
            "/v1/agents/",
            json={"name": "Tutor", "model": "scripted/model", "memory_blocks": blocks},
        ).json()["id"]
        begun = http.post(
            "/v1/conversations/", params={"agent_id": agent}, json={"user_id": "ada"}
        ).json()["id"]
        change = call(
            "memory_replace",
            label="student",
            old_string="She likes tea.",
            new_string="She likes espresso.",
        )
        server.says(change, "**Espresso**, then. I have proposed to remember it; you decide.")
        page = visitor.see(f"/ui/agents/{agent}/chat?conversation={begun}")
        page.get_by_label("Message to Tutor").fill("In Rome I only drink espresso now.")
        look(page)
        page.keyboard.press("Enter")
        expect(page.locator("#transcript .wants")).to_be_visible()
        look(page)
        page.locator("#transcript .wants").get_by_role("button", name="Approve").click()
        expect(page.get_by_role("status").filter(has_text="applied")).to_be_visible()
        look(page)
        ada = next(user["id"] for user in http.get("/v1/users/").json() if user["name"] == "ada")
        page = visitor.see(f"/ui/people/{ada}/blocks/student/blame")
        expect(page.get_by_text("She likes espresso.").first).to_be_visible()
        look(page)
        http.post(
            "/users/ada/blocks/student/propose",
            json={
                "old_string": "Ada learns Italian.",
                "new_string": "Ada learns Italian, two lessons a week.",
                "agent_id": agent,
            },
        )
        home = visitor.see("/").screenshot()
    moving_picture(frames, SECONDS, tmp_path / "proposal.png")
    (tmp_path / "home.png").write_bytes(home)
    for name in ("proposal.png", "home.png"):
        if os.environ.get("RICORDO_PICTURES"):
            (IMAGES / name).write_bytes((tmp_path / name).read_bytes())
        assert size_of(IMAGES / name) == size_of(tmp_path / name), "run `make pictures`"
    assert (IMAGES / "proposal.png").read_bytes().count(b"fcTL") == len(frames), (
        "run `make pictures`"
    )


def size_of(picture: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    return width, height


@pytest.mark.parametrize("count", [1, 3])
def test_a_moving_picture_has_each_frame(tmp_path: Path, count: int) -> None:
    still = (IMAGES / "home.png").read_bytes()
    moving_picture([still] * count, 1.0, tmp_path / "made.png")
    made = (tmp_path / "made.png").read_bytes()
    assert (made.count(b"fcTL"), made.count(b"fdAT") >= count - 1, made.startswith(b"\x89PNG")) == (
        count,
        True,
        True,
    )
