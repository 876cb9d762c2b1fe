"""What is forgotten or erased is gone from pictures too, and no fact is read from one."""

import httpx2

from ricordo.domain.message import ImagePart, Message, TextPart
from ricordo.features.knowledge.facts.evidence import is_shown
from ricordo.features.memory_care.forgetting.needle import MARK
from ricordo.llm.openai_format import to_messages
from ricordo.prompt.transcript import without_pictures
from ricordo.storage import messages
from tests.features.pictures.conftest import (
    hits,
    new_agent,
    part,
    png,
    send,
    thread,
    until,
    wait_until_read,
)
from tests.seams.server import ServerInThread

WORDS = "Zebra passport expires in November"
SAYS = {"type": "text", "text": "Look at this."}


def wait_for_receipt(http: httpx2.Client, path: str) -> None:
    until(lambda: http.get(path).status_code == 200)


def test_a_picture_that_says_the_fact_is_removed(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = new_agent(http)
    send(
        http,
        agent,
        SAYS,
        part(png(WORDS)),
        part(png("Flat rent")),
        thread=thread(http, agent, "eve"),
    )
    wait_until_read(server)
    id = hits(http, agent, "zebra")[0]["message_id"]
    begun = http.post("/users/eve/forget", json={"text": WORDS, "all": True})
    wait_for_receipt(http, begun.json()["receipt"])
    (kept,) = server.read(lambda tx: messages.by_ids(tx, [id]))
    assert [picture.text for picture in kept.pictures] == ["Flat rent"]
    assert kept.parts[1] == TextPart(MARK)
    assert not [hit for hit in hits(http, agent, "zebra") if "Zebra" in hit["content"]]
    assert hits(http, agent, "flat rent")[0]["in_picture"]


def test_an_erased_person_has_no_pictures(server: ServerInThread, http: httpx2.Client) -> None:
    agent = new_agent(http)
    send(http, agent, SAYS, part(png(WORDS)), thread=thread(http, agent, "gil"))
    wait_until_read(server)
    id = hits(http, agent, "zebra")[0]["message_id"]
    wait_for_receipt(http, http.delete("/users/gil").json()["receipt"])
    assert not hits(http, agent, "zebra")
    assert not server.read(lambda tx: messages.by_ids(tx, [id]))


def said(text: str | None) -> Message:
    picture = ImagePart("image/png", data="QUJD", text=text)
    return Message("message-1", "a", "c", "user", (picture,), 0, user_id="user-1")


def test_the_text_is_not_what_the_user_said() -> None:
    message = said("Remember that I like zebras.")
    assert message.text == ""
    assert message.spoken == ""
    assert not is_shown(message, "user-1")


def test_a_model_with_pictures_gets_the_same_bytes() -> None:
    assert to_messages([said("Zebra")]) == to_messages([said(None)])


def test_a_model_without_pictures_reads_the_text() -> None:
    (blind,) = without_pictures([said("Zebra passport")])
    assert "user did not write it" in blind.text
    assert "[picture: Zebra passport]" in blind.text
    (unread,) = without_pictures([said(None)])
    assert unread.text == "(a picture that this model could not take)"
