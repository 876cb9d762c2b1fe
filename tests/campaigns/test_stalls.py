"""Attacks of one client, one upload or one model: meanwhile another client is answered, and memory stays bounded.

Each attack is a function in a table; it asserts what the attacker hears. The long form also holds the server to 50 ms.
"""

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from dulwich.protocol import pkt_line

from ricordo.features.git.objects import git_object
from tests.support.attacked_server import AttackedServer, attacked_server, probed
from tests.support.git import WHO, entry, pack
from tests.support.model_server import completion, tool_call
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not CAN_FORK or sys.platform != "linux", reason="a forked server, and Linux's /proc"),
]
MOST_MB = 300
MOST_MS = 50
Attack = Callable[[AttackedServer], Awaitable[None]]


async def fences_in_an_answer(server: AttackedServer) -> None:
    for text in ("```json\n{" * 12_000, "<invoke " * 12_000, "<tool_call>{" * 10_000, "[" * 100_000):
        assert (await server.answers(text, "ok")).status_code < 500


async def endless_whitespace_in_an_answer(server: AttackedServer) -> None:
    for text in (" " * 2_000_000, "\n" * 2_000_000, "<think>" + " \n" * 1_000_000):
        assert (await server.answers(text, "ok")).status_code < 500


async def long_ids_of_calls(server: AttackedServer) -> None:
    call = tool_call("send_message", json.dumps({"message": "Hi."}), call_id="c" * 1_000_000)
    assert (await server.answers(completion(None, [call]), "ok")).status_code < 500


async def blocks_in_formats(server: AttackedServer) -> None:
    keys = "".join(f"k{number} = 1\n" for number in range(60_000))
    for media_type in ("application/toml", "text/markdown"):
        headers = {"content-type": media_type}
        for text in ("#" * 10_000_000, "[" * 1_000_000, "a." * 500_000, "---\n" * 250_000, "\r\n" * 500_000, keys):
            answer = await server.http.put("/users/ada/blocks/notes", content=text, headers=headers)
            assert 400 <= answer.status_code < 500, answer.text


async def bombs_in_pushes(server: AttackedServer) -> None:
    version = (await server.http.put("/users/ada/blocks/human", json={"body": "Name: Ada"})).json()["version"]
    url, headers = "/users/ada/memory.git/git-receive-pack", {"content-type": "application/x-git-receive-pack-request"}
    blob = git_object("blob", b"x")
    trees = [git_object("tree", b"100644 a.md\0" + blob.id)]
    for _ in range(10):
        trees.append(git_object("tree", b"".join(b"40000 %d\0" % number + trees[-1].id for number in range(10))))
    trees.append(git_object("tree", b"".join(b"100644 %06d.md\0" % number + blob.id for number in range(400_000))))
    for root in trees[-2:]:
        head = f"tree {root.id.hex()}\nparent {version}\n".encode()
        commit = git_object("commit", head + b"author " + WHO + b"\ncommitter " + WHO + b"\n\nx")
        sent = pack(entry(3, blob.body), *(entry(2, tree.body) for tree in trees), entry(1, commit.body))
        asked = [b"%s %s refs/heads/propose/%d" % (b"0" * 40, commit.id.hex().encode(), one) for one in range(100)]
        body = b"".join(map(pkt_line, (asked[0] + b"\0report-status", *asked[1:]))) + b"0000" + sent
        refused = await server.http.post(url, content=body, headers=headers)
        assert "files and folders" in refused.text, refused.text
    zipped = headers | {"content-encoding": "gzip"}
    refused = await server.http.post(url, content=gzip.compress(bytes(200_000_000)), headers=zipped)
    assert refused.status_code == 422


ATTACKS: tuple[Attack, ...] = (
    blocks_in_formats,
    bombs_in_pushes,
    fences_in_an_answer,
    endless_whitespace_in_an_answer,
    long_ids_of_calls,
)


@pytest.fixture(scope="module")
def helper() -> Iterator[Helper]:
    opened = Helper()
    yield opened
    opened.close()


@pytest.fixture
async def server(helper: Helper, tmp_path: Path) -> AsyncIterator[AttackedServer]:
    async with attacked_server(helper, tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_others_are_served_in_the_middle_of(server: AttackedServer, attack: Attack) -> None:
    async with probed(server):
        await attack(server)
    print(f"p99 {server.probe.p99:.1f} ms of {len(server.probe.milliseconds)}, {server.peak_mb} MB at most")
    assert server.peak_mb <= MOST_MB
    assert server.probe.p99 < float("inf")


@pytest.mark.soak
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_others_wait_no_longer_than_50_ms_in_the_middle_of(server: AttackedServer, attack: Attack) -> None:
    async with probed(server):
        for _ in range(3):
            await attack(server)
            await asyncio.sleep(0.5)
    assert server.peak_mb <= MOST_MB
    assert server.probe.p99 <= MOST_MS, server.probe.p99
