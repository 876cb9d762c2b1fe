"""A server that reads pictures by tesseract, and pictures of words."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from PIL import Image, ImageDraw, ImageFont
from sqlalchemy import select

from ricordo.domain.message import Message
from ricordo.features.pictures.jobs import READ
from ricordo.storage import messages
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import jobs
from ricordo.storage.schema.core_tables import messages as messages_table
from tests.seams.databases import on_database
from tests.seams.http import Wire, ok
from tests.seams.jobs import quick_jobs
from tests.seams.server import MODEL, ServerInThread, serving
from tests.seams.waiting import wait_for
from tests.support.sandboxes import bubblewrap
from tests.support.tesseract import tesseract

__all__ = ["on_database", "quick_jobs"]


@pytest.fixture(autouse=True, scope="package")
def _reading() -> Iterator[None]:
    """Switch the reading of pictures on, which is off in other tests."""
    bubblewrap()
    tesseract()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RICORDO_PICTURE_TEXT", "tesseract")
        yield


@pytest.fixture(scope="module")
def running_server(
    tmp_path_factory: pytest.TempPathFactory,
    on_database: dict[str, Any],
    quick_jobs: None,
    _reading: None,
) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("pictures"), **on_database) as server:
        yield server


def png(text: str) -> bytes:
    """A white PNG with these lines in black."""
    picture = Image.new("RGB", (1000, 90 + 60 * text.count("\n")), "white")
    ImageDraw.Draw(picture).text((20, 20), text, "black", ImageFont.load_default(36))
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def part(content: bytes, media_type: str = "image/png") -> Wire:
    data = base64.b64encode(content).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def new_agent(http: httpx2.Client, **fields: object) -> str:
    id: str = ok(http.post("/v1/agents/", json={"name": "Nina", "model": MODEL} | fields))["id"]
    return id


def thread(http: httpx2.Client, agent: str, user: str) -> str:
    """A conversation of this user with the agent."""
    made = ok(http.post(f"/v1/conversations/?agent_id={agent}", json={"user_id": user}))
    id: str = made["id"]
    return id


def send(http: httpx2.Client, agent: str, *parts: Wire, thread: str | None = None) -> None:
    path = f"/v1/conversations/{thread}/messages" if thread else f"/v1/agents/{agent}/messages"
    body = {"messages": [{"role": "user", "content": list(parts)}], "streaming": False}
    ok(http.post(path, json=body))


def messages_with_pictures(tx: Transaction, agent: str, text: str = "image") -> list[Message]:
    """The agent's user messages with a picture, or with this text, oldest first."""
    rows = tx.all(
        select(messages_table.c.id)
        .where(messages_table.c.agent_id == agent, messages_table.c.role == "user")
        .order_by(messages_table.c.seq)
    )
    found = messages.by_ids(tx, [row.id for row in rows])
    if text == "image":
        return [message for message in found if message.pictures]
    return [message for message in found if text in message.text]


def open_jobs(tx: Transaction) -> list[str]:
    rows = tx.all(jobs.select().where(jobs.c.kind == READ))
    return [row.status for row in rows if row.status in ("waiting", "running")]


def wait_until_read(server: ServerInThread) -> None:
    """Wait until no job that reads pictures is open."""
    wait_for(lambda: not server.read(open_jobs))


def hits(http: httpx2.Client, agent: str, query: str, **fields: object) -> list[Wire]:
    body = {"query": query, "agent_id": agent, "search_mode": "fts"} | fields
    found: list[Wire] = ok(http.post("/v1/messages/search", json=body))
    return found
