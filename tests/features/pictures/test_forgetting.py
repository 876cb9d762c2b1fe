"""Forgotten and erased things are removed from pictures too, and no fact is read from a picture."""

import asyncio
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from ricordo.domain.message import ImagePart, Message, TextPart
from ricordo.features.knowledge.facts.evidence import is_shown
from ricordo.features.memory_care.forgetting import jobs as forgetting_jobs
from ricordo.features.memory_care.forgetting.needle import MARK
from ricordo.features.pictures import jobs as reading_jobs
from ricordo.features.pictures.jobs import READ, add_job
from ricordo.llm.openai_format import to_messages
from ricordo.prompt.transcript import without_pictures
from ricordo.storage import messages
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import jobs
from tests.features.pictures.conftest import (
    hits,
    messages_with_pictures,
    new_agent,
    open_jobs,
    part,
    png,
    send,
    thread,
    wait_until_read,
)
from tests.seams.http import erase, wait_for_receipt
from tests.seams.server import ServerInThread
from tests.seams.waiting import wait_for

WORDS = "Zebra passport expires in November"
SAYS = {"type": "text", "text": "Look at this."}


def test_a_picture_with_the_forgotten_text_is_removed(
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


def test_erasing_a_user_removes_their_pictures(server: ServerInThread, http: httpx2.Client) -> None:
    agent = new_agent(http)
    send(http, agent, SAYS, part(png(WORDS)), thread=thread(http, agent, "gil"))
    wait_until_read(server)
    id = hits(http, agent, "zebra")[0]["message_id"]
    erase(http, "gil")
    assert not hits(http, agent, "zebra")
    assert not server.read(lambda tx: messages.by_ids(tx, [id]))


class SlowReader:
    """A fake tesseract that has read the picture, and waits for `end` before it writes the text."""

    def __init__(self, server: ServerInThread) -> None:
        self.is_reading = False
        self._loop = server.loop
        self._may_end = asyncio.Event()

    async def __call__(self, *_arguments: object) -> str:
        self.is_reading = True
        await self._may_end.wait()
        return WORDS

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._may_end.set)


@pytest.fixture
def slow_reader(server: ServerInThread, monkeypatch: pytest.MonkeyPatch) -> SlowReader:
    reader = SlowReader(server)
    monkeypatch.setattr(reading_jobs.tesseract, "read", reader)
    return reader


def test_a_picture_read_during_forgetting_is_removed(
    server: ServerInThread,
    http: httpx2.Client,
    slow_reader: SlowReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[bool] = []
    end_added_texts = forgetting_jobs._end_added_texts

    def noted(*arguments: Any, **named: Any) -> bool:
        answers.append(end_added_texts(*arguments, **named))
        return answers[-1]

    monkeypatch.setattr(forgetting_jobs, "_end_added_texts", noted)
    agent = new_agent(http)
    send(http, agent, SAYS, part(png(WORDS)), thread=thread(http, agent, "ivy"))
    wait_for(lambda: slow_reader.is_reading)
    begun = http.post("/users/ivy/forget", json={"text": WORDS, "all": True})
    # The job has removed the texts that it found, and waits for the reader.
    wait_for(lambda: answers)
    assert not any(answers)
    slow_reader.end()
    wait_for_receipt(http, begun.json()["receipt"])
    assert not hits(http, agent, "zebra passport")
    (kept,) = server.read(lambda tx: messages_with_pictures(tx, agent, MARK))
    assert kept.parts[1] == TextPart(MARK)


def test_forgetting_removes_the_users_waiting_picture_jobs(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = new_agent(http)
    with monkeypatch.context() as patch:
        patch.setenv("RICORDO_PICTURE_TEXT", "off")
        for user in ("jan", "kim"):
            send(http, agent, SAYS, part(png(WORDS)), thread=thread(http, agent, user))
    unread = server.read(lambda tx: messages_with_pictures(tx, agent))
    assert len(unread) == 2

    def add_for_tomorrow(tx: Transaction) -> None:
        for message in unread:
            add_job(tx, message)
        tx.run(
            update(jobs)
            .where(jobs.c.kind == READ, jobs.c.status == "waiting")
            .values(not_before=tx.clock.now() + 10**11)
        )

    server.write(add_for_tomorrow)
    begun = http.post("/users/jan/forget", json={"text": WORDS, "all": True, "never_again": False})
    wait_for_receipt(http, begun.json()["receipt"])
    assert server.read(open_jobs) == ["waiting"]
    server.write(lambda tx: tx.run(update(jobs).where(jobs.c.kind == READ).values(not_before=0)))
    wait_until_read(server)
    stored = server.read(lambda tx: messages_with_pictures(tx, agent))
    assert [message.pictures[0].text for message in stored] == [None, WORDS]


def test_a_picture_read_during_its_users_erasure_is_removed(
    server: ServerInThread, http: httpx2.Client, slow_reader: SlowReader
) -> None:
    agent = new_agent(http)
    send(http, agent, SAYS, part(png(WORDS)), thread=thread(http, agent, "lea"))
    wait_for(lambda: slow_reader.is_reading)
    receipt = http.delete("/users/lea").json()["receipt"]
    slow_reader.end()
    wait_for_receipt(http, receipt)
    wait_until_read(server)
    assert not hits(http, agent, "zebra passport")
    assert not server.read(lambda tx: messages_with_pictures(tx, agent))


def picture_message(text: str | None) -> Message:
    picture = ImagePart("image/png", data="QUJD", text=text)
    return Message("message-1", "a", "c", "user", (picture,), 0, user_id="user-1")


def test_the_text_of_a_picture_does_not_count_as_said_by_the_user() -> None:
    message = picture_message("Remember that I like zebras.")
    assert message.text == ""
    assert message.spoken == ""
    assert not is_shown(message, "user-1")


def test_a_model_that_takes_pictures_gets_the_same_message() -> None:
    assert to_messages([picture_message("Zebra")]) == to_messages([picture_message(None)])


def test_a_model_without_picture_support_gets_the_recognized_text() -> None:
    (blind,) = without_pictures([picture_message("Zebra passport")])
    assert "user did not write it" in blind.text
    assert "[picture: Zebra passport]" in blind.text
    (unread,) = without_pictures([picture_message(None)])
    assert unread.text == "(a picture that this model could not take)"
