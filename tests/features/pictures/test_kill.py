"""A server that is killed while a model describes a picture: it is described once afterwards."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.features.pictures.conftest import hits, new_agent, part, png, send
from tests.seams.http import ok
from tests.seams.waiting import wait_for
from tests.support.model_server import Answer, ModelServer, Seen, completion
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK, ServerProcess

CAPTION = "A zebra on a bicycle."
SAYS = {"type": "text", "text": "Look at this."}


class Describer:
    """A model over HTTP. The first question about a picture gets no answer."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, seen: Seen) -> Answer:
        if seen.method == "GET":
            return Answer({"object": "list", "data": [{"id": "small", "object": "model"}]})
        if "search finds pictures" not in str(seen.body["messages"][0]["content"]):
            return completion("Nice.")
        self.asked.append(seen.body)
        return completion(CAPTION) if len(self.asked) > 1 else Answer(delay=600)


@pytest.mark.skipif(not CAN_FORK, reason="the helper forks")
async def test_a_picture_is_described_once_after_a_sigkill(tmp_path: Path, helper: Helper) -> None:
    describer = Describer()
    async with ModelServer(describer) as models:
        environment = {
            "OPENAI_BASE_URL": models.url,
            "OPENAI_API_KEY": "key",
            "RICORDO_PICTURE_TEXT": "model",
        }
        server = ServerProcess(helper, tmp_path, environment, None)
        await asyncio.to_thread(_kill_and_check, server, describer)
    (asked,) = {str(body["messages"]) for body in describer.asked}
    assert "data:image/png;base64," in asked
    assert len(describer.asked) == 2


def _kill_and_check(server: ServerProcess, describer: Describer) -> None:
    server.start()
    with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        agent = new_agent(http, model="openai/small")
        send(http, agent, SAYS, part(png("Nothing")))
        wait_for(lambda: describer.asked)
        before = ok(http.get(f"/v1/agents/{agent}/messages"))
    server.kill()
    server.start()
    with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        wait_for(lambda: hits(http, agent, "zebra bicycle"))
        (hit,) = [hit for hit in hits(http, agent, "zebra bicycle") if hit["in_picture"]]
        assert hit["pictures"] == [{"number": 0, "text": CAPTION, "is_stored": True}]
        assert ok(http.get(f"/v1/agents/{agent}/messages")) == before
        ended = ok(http.get("/v1/jobs/", params={"kind": "pictures.read"}))
        assert [job["status"] for job in ended] == ["completed"]
    server.stop()
