"""The pictures of the README and of the pages for students, teachers and operators.

`make pictures` makes the pictures again.
"""

import os
import re
import struct
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from ricordo.llm.scripted import call
from tests.seams.http import bearer
from tests.seams.server import MODEL, serving
from tests.support.browser import moving_picture, visit

IMAGES = Path(__file__).parents[4] / "docs" / "images"
WIDTH, HEIGHT = 1200, 700
SECONDS = 2.5


@pytest.mark.soak
def test_a_moving_picture_of_a_proposal_can_be_made_for_the_docs(
    browser: Browser, tmp_path: Path
) -> None:
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


COURSE = f"""
title = "Essay coach"
[[agent]]
name = "coach"
model = "{MODEL}"
instructions = "Coach students who write essays."
[[block]]
label = "student"
description = "Who the student is, as far as it matters for the essay."
value = "Writes an essay about tea."
policy = "propose"
teachers_see = true
"""
KEY = "the-operators-own-key"
CLASS = """name,email,role,course
Ada Lovelace,ada@example.org,student,essays
Ben,ben@example.org,student,essays
Tess,tess@example.org,teacher,
"""
SMALL = {"width": 1000, "height": 560}


@pytest.mark.soak
def test_pictures_of_a_school_can_be_made_for_the_docs(browser: Browser, tmp_path: Path) -> None:
    pictures: dict[str, bytes] = {}
    with (
        serving(tmp_path / "data", api_key=KEY) as server,
        server.http(headers=bearer(KEY)) as http,
        visit(browser, server.url, **SMALL) as operator,
    ):
        answer = http.put("/v1/courses/essays", json={"source": COURSE})
        assert answer.status_code == 200, answer.text
        rows = http.post("/v1/invitations", json={"csv": CLASS}).json()
        paths = {row["user"]: row["path"] for row in rows}
        operator.page.goto(f"{server.url}/ui/login")
        operator.page.get_by_label("Key").fill(KEY)
        operator.page.get_by_role("button", name="Log in", exact=True).click()
        pictures["operator-invitations"] = operator.see("/ui/invitations").screenshot()
        with visit(browser, server.url, **SMALL) as student:
            _accept(student.page, server.url, paths["Ada Lovelace"], pictures, "student-invitation")
            edit = call(
                "memory_insert", label="student", new_string="Works best early in the morning."
            )
            server.says(edit, "Mornings, then. I have proposed to remember that; you decide.")
            page = student.page
            page.get_by_label(re.compile("^Message to ")).fill("I write best early in the morning.")
            page.keyboard.press("Enter")
            expect(page.locator("#transcript .wants")).to_be_visible()
            pictures["student-chat"] = page.screenshot()
            ada = next(row["user_id"] for row in rows if row["user"] == "Ada Lovelace")
            pictures["student-memory"] = student.see(f"/ui/people/{ada}").screenshot()
        with visit(browser, server.url, **SMALL) as teacher:
            _accept(teacher.page, server.url, paths["Tess"])
            pictures["teacher-course"] = teacher.see("/ui/courses/essays").screenshot()
            pictures["teacher-students"] = teacher.see("/ui/courses/essays/students").screenshot()
        operator.see("/ui/backups").get_by_role("button", name="Back up now").click()
        expect(operator.page.get_by_text("verified as it was made")).to_be_visible()
        pictures["operator-backups"] = operator.page.screenshot()
    for name, picture in pictures.items():
        made = tmp_path / f"{name}.png"
        made.write_bytes(picture)
        if os.environ.get("RICORDO_PICTURES"):
            (IMAGES / made.name).write_bytes(_with_few_colours(picture))
        assert size_of(IMAGES / made.name) == size_of(made), "run `make pictures`"


def _accept(
    page: Page, url: str, path: str, pictures: dict[str, bytes] | None = None, name: str = ""
) -> None:
    """Accept an invitation; with `pictures`, first take a picture of its page."""
    page.goto(f"{url}{path}")
    if pictures is not None:
        pictures[name] = page.screenshot()
    page.get_by_role("button", name="Accept and begin").click()
    page.wait_for_url(lambda address: path not in address and "/invitation" not in address)


def _with_few_colours(picture: bytes) -> bytes:
    """Return the picture with 128 colours, which makes its file a third as large."""
    palette = Image.open(BytesIO(picture)).convert("RGB").quantize(128)
    file = BytesIO()
    palette.save(file, "PNG", optimize=True)
    return file.getvalue()


def size_of(picture: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    return width, height


@pytest.mark.parametrize("count", [1, 3])
def test_a_moving_picture_contains_each_frame(tmp_path: Path, count: int) -> None:
    still = (IMAGES / "home.png").read_bytes()
    moving_picture([still] * count, 1.0, tmp_path / "made.png")
    made = (tmp_path / "made.png").read_bytes()
    assert (made.count(b"fcTL"), made.count(b"fdAT") >= count - 1, made.startswith(b"\x89PNG")) == (
        count,
        True,
        True,
    )
