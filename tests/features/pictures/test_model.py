"""The agent's model describes pictures within its budget, and the ledger has the cost."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from ricordo.domain.ids import new_id
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply, ModelRequest
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.features.pictures.jobs import READ
from ricordo.llm.scripted import Line
from ricordo.search.index import insert_messages
from ricordo.storage import messages
from ricordo.storage.schema.core_tables import expenses, jobs
from tests.features.pictures.conftest import (
    hits,
    new_agent,
    open_jobs,
    part,
    png,
    send,
    wait_until_read,
)
from tests.seams.http import ok
from tests.seams.server import ServerInThread, serving
from tests.seams.waiting import wait_for

SAYS = {"type": "text", "text": "Look at this."}
CAPTION = "A zebra on a bicycle."


def asks_for_caption(request: ModelRequest) -> bool:
    return "search finds pictures" in request.messages[0].text


@pytest.fixture(scope="module")
def running_server(
    tmp_path_factory: pytest.TempPathFactory,
    on_database: dict[str, Any],
    quick_jobs: None,
    _reading: None,
) -> Iterator[ServerInThread]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RICORDO_PICTURE_TEXT", "model")
        with serving(tmp_path_factory.mktemp("model"), **on_database) as server:
            yield server


def test_a_picture_is_found_by_its_caption(server: ServerInThread, http: httpx2.Client) -> None:
    server.answers_with(lambda request: CAPTION if asks_for_caption(request) else "ok")
    agent = new_agent(http)
    send(http, agent, SAYS, part(png("Nothing")))
    wait_until_read(server)
    hit = hits(http, agent, "zebra bicycle")[0]
    assert hit["in_picture"]
    assert hit["pictures"][0]["text"] == CAPTION
    (asked,) = [request for request in server.model.requests if asks_for_caption(request)]
    assert len(asked.messages[1].pictures) == 1
    rows = server.read(lambda tx: tx.all(expenses.select()))
    assert [row.agent_id for row in rows] == [agent]


def test_a_model_that_refuses_the_picture_ends_the_job(
    server: ServerInThread, http: httpx2.Client
) -> None:
    def answer(request: ModelRequest) -> Line:
        if asks_for_caption(request):
            return ModelError("llm_bad_request", "No pictures.")
        return "ok"

    server.answers_with(answer)
    agent = new_agent(http)
    send(http, agent, SAYS, part(png("Nothing")))
    wait_until_read(server)
    id = hits(http, agent, "look at this")[0]["message_id"]
    (kept,) = server.read(lambda tx: messages.by_ids(tx, [id]))
    assert [picture.text for picture in kept.pictures] == [""]


def test_a_failure_at_a_later_picture_keeps_what_was_paid_for(
    server: ServerInThread, http: httpx2.Client
) -> None:
    failure = ModelError("llm_server_error", "Try again.")
    outcomes: list[Line] = ["Caption one.", failure, "Caption two."]
    server.answers_with(lambda request: outcomes.pop(0) if asks_for_caption(request) else "ok")
    agent = new_agent(http)
    send(http, agent, SAYS, part(png("One")), part(png("Two")))
    wait_until_read(server)
    (hit,) = [hit for hit in hits(http, agent, "caption") if hit["in_picture"]]
    assert [picture["text"] for picture in hit["pictures"]] == ["Caption one.", "Caption two."]
    of_agent = expenses.select().where(expenses.c.agent_id == agent)
    assert len(server.read(lambda tx: tx.all(of_agent))) == 2


def test_a_spent_budget_stops_between_two_pictures(
    server: ServerInThread, http: httpx2.Client
) -> None:
    reply = ModelReply((TextPart(CAPTION),), usage=Usage(100_000))
    server.answers_with(lambda request: reply if asks_for_caption(request) else "ok")
    agent = new_agent(http)
    ok(http.patch(f"/v1/agents/{agent}/budget", json={"daily_tokens": 90_000}))
    send(http, agent, SAYS, part(png("One")), part(png("Two")))

    def asked() -> list[ModelRequest]:
        return [request for request in server.model.requests if asks_for_caption(request)]

    # The job waits before its start too, so wait until it has asked the model and was put off.
    wait_for(lambda: asked() and server.read(open_jobs) == ["waiting"])
    assert len(asked()) == 1
    (hit,) = [hit for hit in hits(http, agent, "zebra") if hit["in_picture"]]
    assert [picture["text"] for picture in hit["pictures"]] == [CAPTION, ""]
    ok(http.patch(f"/v1/agents/{agent}/budget", json={"daily_tokens": None}))
    server.write(lambda tx: tx.run(update(jobs).where(jobs.c.kind == READ).values(not_before=0)))
    wait_until_read(server)
    (hit,) = [hit for hit in hits(http, agent, "zebra") if hit["in_picture"]]
    assert [picture["text"] for picture in hit["pictures"]] == [CAPTION, CAPTION]


def test_a_picture_withheld_by_policy_is_not_captioned(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = new_agent(http)
    send(http, agent, SAYS, part(png("Nothing")))
    wait_until_read(server)
    id = hits(http, agent, "look at this")[0]["message_id"]
    (kept,) = server.read(lambda tx: messages.by_ids(tx, [id]))
    server.forget()
    unread = replace(kept.pictures[0], text=None)
    labelled = replace(
        kept, id=new_id("message"), seq=0, otid=None, parts=(unread,), egress="openai"
    )
    server.write(lambda tx: insert_messages(tx, [labelled]))
    wait_until_read(server)
    assert not server.model.requests
    (same,) = server.read(lambda tx: messages.by_ids(tx, [labelled.id]))
    assert same.pictures[0].text is None
