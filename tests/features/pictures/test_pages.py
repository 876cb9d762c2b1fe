"""The page Search shows a picture in which it found something."""

import base64

import httpx2
from playwright.sync_api import Browser, expect

from tests.features.pictures.conftest import (
    hits,
    new_agent,
    part,
    png,
    send,
    wait_until_read,
)
from tests.seams.server import ServerInThread
from tests.support.browser import visit

WORDS = "Zebra passport expires in November"


def test_a_search_hit_in_a_picture_shows_the_picture(
    server: ServerInThread, http: httpx2.Client, browser: Browser
) -> None:
    agent = new_agent(http)
    sent = part(png(WORDS))
    send(http, agent, {"type": "text", "text": "Look."}, sent)
    wait_until_read(server)
    hit = hits(http, agent, "zebra")[0]
    id = hit["message_id"]
    talk = f"conversation={hit['conversation_id']}"
    with visit(browser, server.url) as visitor:
        page = visitor.see(f"/ui/search?q=zebra&agent={agent}")
        card = page.locator("article.card").first
        expect(card).to_contain_text("Found in a picture.")
        picture = card.locator("img.picture")
        expect(picture).to_have_attribute("alt", WORDS)
        expect(picture).to_have_js_property("naturalWidth", 1000)
        height = picture.bounding_box()
        assert height
        assert height["height"] <= 120
        chat = visitor.see(f"/ui/agents/{agent}/chat?{talk}").locator("img.picture")
        expect(chat).to_have_attribute("alt", WORDS)
    shown = http.get(f"/ui/search/pictures/{id}")
    assert shown.headers["content-type"] == "image/png"
    assert shown.content == base64.b64decode(sent["source"]["data"])
    assert http.get(f"/ui/search/pictures/{id}?number=1").status_code == 404
    assert http.get(f"/ui/search/pictures/{id}?number=-1").status_code == 404
