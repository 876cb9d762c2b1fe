"""Attacks of one client, one upload or one model on a server.

Each attack checks the response that the attacker gets.
"""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ricordo.domain.git_objects import GitObject
from ricordo.features.sync.git.objects import git_object
from tests.support.attacked_server import LIMIT, AttackedServer
from tests.support.git import WHO, entry, pack
from tests.support.model_server import Answer, completion, tool_call

Attack = Callable[[AttackedServer], Awaitable[None]]
HEAD = b"POST /v1/agents/ HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
HEALTH = b"GET /v1/health/ HTTP/1.1\r\nhost: 127.0.0.1\r\n"
MEGABYTE = 1024 * 1024


async def fences_in_an_answer(server: AttackedServer) -> None:
    for text in (
        "```json\n{" * 12_000,
        "<invoke " * 12_000,
        "<tool_call>{" * 10_000,
        "[" * 100_000,
    ):
        assert (await server.answers(text, "ok")).status_code < 500


async def endless_whitespace_in_an_answer(server: AttackedServer) -> None:
    size = server.size(150_000, 500_000)
    for text in (" " * size, "\n" * size, "<think>" + " \n" * (size // 2)):
        assert (await server.answers(text, "ok", "ok")).status_code < 500


async def a_long_id_of_a_call(server: AttackedServer) -> None:
    call = tool_call("send_message", json.dumps({"message": "Hi."}), call_id="c" * 1_000_000)
    assert (await server.answers(completion(None, [call]), "ok")).status_code < 500


async def a_huge_answer(server: AttackedServer) -> None:
    heard = await server.answers("word " * server.size(2_000_000, 20_000_000))
    assert heard.status_code >= 400
    assert len(heard.content) < 10_000


async def an_answer_that_unpacks_to_much(server: AttackedServer) -> None:
    packed = Answer(
        await asyncio.to_thread(gzip.compress, b" " * server.size(20_000_000, 500_000_000), 1)
    )
    packed.headers["content-encoding"] = "gzip"
    assert (await server.answers(packed)).status_code >= 400


async def endless_headers(server: AttackedServer) -> None:
    size = server.size(1_000_000, 10_000_000)
    for data in (
        HEALTH + b"x: " + b"a" * size,
        HEALTH + b"x: y\r\n" * (size // 10),
        b"GET /" + b"a" * size,
    ):
        heard = await server.wire(*(data[at : at + 65536] for at in range(0, len(data), 65536)))
        # The server may also close the connection while the client still sends.
        assert not heard or b" 431 " in heard, heard
    assert b" 431 " in await server.wire(HEALTH + b"x: y\r\n" * 101 + b"\r\n")


async def bodies_that_come_a_byte_a_time(server: AttackedServer) -> None:
    pause, count = server.client_timeout / 10, server.size(10, 50)
    slow = [
        server.wire(HEAD + b"content-length: 1000\r\n\r\n", *[b" "] * 30, pause=pause)
        for _ in range(count)
    ]
    slow += [server.wire(HEALTH, *[b"x"] * 30, pause=pause) for _ in range(count)]
    heard = await asyncio.gather(*slow)
    assert {answer.split(b" ")[1] for answer in heard if answer} <= {b"408"}, heard


async def a_thousand_idle_connections(server: AttackedServer) -> None:
    lines = [await server.connect() for _ in range(1000)]
    ends = [asyncio.create_task(reader.read()) for reader, _ in lines]
    closed, kept = await asyncio.wait(ends, timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
    assert closed
    for end in kept:
        end.cancel()
    for _, writer in lines:
        writer.close()


async def readers_that_take_nothing(server: AttackedServer) -> None:
    block = {"label": "notes", "value": "word " * 100_000, "limit": 4_000_000}
    made = (await server.http.post("/v1/blocks/", json=block)).json()["id"]
    lines = [await server.connect() for _ in range(server.size(5, 20))]
    for _, writer in lines:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(HEALTH.replace(b"/v1/health/", f"/v1/blocks/{made}".encode()) + b"\r\n")
    await asyncio.sleep(server.client_timeout * 2 + 1)  # the server checks every second
    for _, writer in lines:
        writer.close()


async def too_many_messages(server: AttackedServer) -> None:
    agent = await server.agent()
    messages = [{"role": "user", "content": "Hello there, how are you?"}] * server.size(
        1_100, 50_000
    )
    for path in ("messages", "messages/stream", "messages/import"):
        heard = await server.http.post(f"/v1/agents/{agent}/{path}", json={"messages": messages})
        assert heard.status_code in (400, 422), heard.text
        assert "1000" in heard.json()["detail"] or "several requests" in heard.json()["detail"]
        assert len(heard.content) < 2_000


async def json_that_unfolds_to_much(server: AttackedServer) -> None:
    size = server.size(400_000, 10_000_000)
    for content in (
        b'{"a": [' + b"[]," * (size * 4 // 5) + b"0]}",
        b"[" * size,
        b'{"a":' * (size // 5),
    ):
        heard = await server.http.post(
            "/v1/agents/", content=content, headers={"content-type": "application/json"}
        )
        assert heard.status_code in (400, 422)


async def large_bodies_at_once(server: AttackedServer) -> None:
    content = json.dumps({"name": "x" * server.size(13, 28) * MEGABYTE}).encode()
    sent = [
        server.http.post(
            "/v1/agents/", content=content, headers={"content-type": "application/json"}
        )
        for _ in range(server.size(6, 12))
    ]
    assert {heard.status_code for heard in await asyncio.gather(*sent)} == {422, 503}


async def long_markdown(server: AttackedServer) -> None:
    """Front matter, headings and lists that take long to parse."""
    size = server.size(1, 10)
    texts = [
        "#" * size * MEGABYTE,
        "---\n" * (size * MEGABYTE // 4),
        "---\na: " + "[" * 100_000 + "\n---\n",
        "- " * 50_000,
        ">" * 90_000,
    ]
    for text in texts:
        heard = await server.http.put(
            "/users/ada/blocks/notes", content=text, headers={"content-type": "text/markdown"}
        )
        assert heard.status_code < 500, heard.text


async def long_toml(server: AttackedServer) -> None:
    for text in (
        "#" * server.size(1, 10) * MEGABYTE,
        "a=1\n" * (server.size(1, 10) * MEGABYTE // 4),
        "[a." * 30_000,
        "a = " + "[" * 90_000,
        'a = """' + "\\ " * 40_000,
    ):
        heard = await server.http.put(
            "/users/ada/blocks/notes", content=text, headers={"content-type": "application/toml"}
        )
        assert heard.status_code in (400, 413, 422), heard.text


async def a_tree_bomb(server: AttackedServer) -> None:
    """A push of trees of which each names the previous one ten times: ten billion files."""
    blob = git_object("blob", b"x")
    made = [_tree(("100644", "a.md", blob.id))]
    for _ in range(10):
        made.append(_tree(*(("40000", f"{number}", made[-1].id) for number in range(10))))
    commit = git_object(
        "commit",
        b"\n".join(
            [
                b"tree " + made[-1].id.hex().encode(),
                b"author " + WHO,
                b"committer " + WHO,
                b"",
                b"Bomb\n",
            ]
        ),
    )
    packed = pack(
        entry(3, blob.body), *(entry(2, tree.body) for tree in made), entry(1, commit.body)
    )
    assert "more than" in await _push(server, commit, packed)


async def a_pack_that_unpacks_to_much(server: AttackedServer) -> None:
    commit = git_object(
        "commit", b"tree " + b"4" * 40 + b"\nauthor " + WHO + b"\ncommitter " + WHO + b"\n\nBomb\n"
    )
    packed = pack(
        *(entry(3, bytes([number]) * 30 * MEGABYTE) for number in range(server.size(3, 8))),
        entry(1, commit.body),
    )
    heard = await _push(server, commit, packed)
    assert "unpack failed" in heard or "more than" in heard, heard


async def searches_of_one_client(server: AttackedServer) -> None:
    agent = await server.agent()
    past = [
        {"role": "user", "content": f"The weather in Turin was fine on day {number}, by the river"}
        for number in range(server.size(100, 1000))
    ]
    assert (
        await server.http.post(f"/v1/agents/{agent}/messages/import", json={"messages": past})
    ).status_code == 200
    sent = [
        server.http.post("/v1/messages/search", json={"query": f"weather {number}"})
        for number in range(server.size(40, 200))
    ]
    assert {heard.status_code for heard in await asyncio.gather(*sent)} == {200}


async def clients_that_leave_in_the_middle(server: AttackedServer) -> None:
    agent = await server.agent()
    body = json.dumps({"messages": [{"role": "user", "content": "Hello."}]}).encode()
    head = HEAD.replace(b"/v1/agents/", f"/v1/agents/{agent}/messages/stream".encode())
    for size in (0, 10, len(body)):
        for _ in range(30):
            _, writer = await server.connect()
            writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body[:size])
            with suppress(ConnectionError):
                await writer.drain()
            writer.transport.abort()


def _tree(*entries: tuple[str, str, bytes]) -> GitObject:
    return git_object(
        "tree", b"".join(f"{mode} {name}".encode() + b"\0" + id for mode, name, id in entries)
    )


async def _push(server: AttackedServer, commit: GitObject, packed: bytes) -> str:
    line = b"0" * 40 + b" " + commit.id.hex().encode() + b" refs/heads/main\0 report-status\n"
    content = b"%04x" % (len(line) + 4) + line + b"0000" + packed
    kind = "application/x-git-receive-pack-request"
    heard = await server.http.post(
        "/users/grace/memory.git/git-receive-pack",
        content=content,
        headers={"content-type": kind},
        timeout=LIMIT,
    )
    assert heard.status_code < 500
    return heard.text


ATTACKS: tuple[Attack, ...] = (
    fences_in_an_answer,
    endless_whitespace_in_an_answer,
    a_long_id_of_a_call,
    a_huge_answer,
    an_answer_that_unpacks_to_much,
    endless_headers,
    bodies_that_come_a_byte_a_time,
    a_thousand_idle_connections,
    readers_that_take_nothing,
    clients_that_leave_in_the_middle,
    too_many_messages,
    json_that_unfolds_to_much,
    large_bodies_at_once,
    long_markdown,
    long_toml,
    a_tree_bomb,
    a_pack_that_unpacks_to_much,
    searches_of_one_client,
)
