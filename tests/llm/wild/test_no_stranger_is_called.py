"""The server calls no host that was not configured.

With the network closed except for this machine, a server starts, lists models and answers.
"""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ricordo.app import create_app
from ricordo.settings import ProviderSettings, Settings
from tests.support.model_server import Answer, ModelServer, Seen, say_ok

LOOPBACK = ("127.0.0.1", "localhost", "::1")
NONE: dict[str, Any] = dict.fromkeys(ProviderSettings.model_fields)


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Hosts outside this machine that somebody tried to reach; the attempt fails."""
    tried: list[str] = []
    look_up, connect, connect_ex = (
        socket.getaddrinfo,
        socket.socket.connect,
        socket.socket.connect_ex,
    )

    def refuse(host: object) -> None:
        name = host.decode() if isinstance(host, bytes) else host
        if isinstance(name, str) and name not in LOOPBACK:
            tried.append(name)
            raise OSError(f"The network is shut for {name}.")

    def guarded_look_up(host: Any, *rest: Any, **named: Any) -> Any:
        refuse(host)
        return look_up(host, *rest, **named)

    def guarded_connect(own: socket.socket, address: Any) -> None:
        refuse(address[0] if isinstance(address, tuple) else None)
        connect(own, address)

    def guarded_connect_ex(own: socket.socket, address: Any) -> int:
        refuse(address[0] if isinstance(address, tuple) else None)
        return connect_ex(own, address)

    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    yield tried
    assert tried == []


def ollama(seen: Seen) -> Answer:
    if seen.path == "/v1/models":
        return Answer(
            {
                "object": "list",
                "data": [{"id": "qwen3:8b", "object": "model", "owned_by": "library"}],
            }
        )
    if seen.path.startswith("/api/"):
        return Answer(
            {
                "models": [],
                "model_info": {"qwen3.context_length": 40_960},
                "parameters": "num_ctx 16384",
            }
        )
    return say_ok(seen)


@pytest.mark.usefixtures("strangers")
async def test_a_start_a_model_list_and_a_local_turn_call_no_other_host(
    tmp_path: Path,
) -> None:
    async with ModelServer(ollama) as local:
        settings = Settings(_env_file=None, data_dir=tmp_path, port=0)
        providers = ProviderSettings(_env_file=None, **NONE | {"ollama_base_url": local.root})
        app = create_app(settings, providers)
        async with app.router.lifespan_context(app):
            transport = httpx2.ASGITransport(app, client=("127.0.0.1", 50_000))
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://localhost:8283"
            ) as client:
                listed = (await client.get("/v1/models/")).json()
                assert {"ollama/qwen3:8b", "ricordo/librarian"} <= {row["handle"] for row in listed}
                (row,) = [row for row in listed if row["handle"] == "ollama/qwen3:8b"]
                assert row["context_window"] == 16_384
                agent = (
                    await client.post(
                        "/v1/agents/", json={"name": "Nina", "model": "ollama/qwen3:8b"}
                    )
                ).json()
                sent = {"messages": [{"role": "user", "content": "Hello."}]}
                answer = await client.post(f"/v1/agents/{agent['id']}/messages", json=sent)
                assert answer.status_code == 200, answer.text
                assert any(each.get("content") == "ok" for each in answer.json()["messages"])
        assert any(seen.path == "/v1/chat/completions" for seen in local.requests)


def test_the_network_guard_of_this_test_works(strangers: list[str]) -> None:
    with pytest.raises(OSError, match="shut"):
        socket.create_connection(("198.51.100.7", 443), timeout=0.1)
    with socket.socket() as own, pytest.raises(OSError, match="shut"):
        own.connect(("198.51.100.7", 443))
    assert strangers.copy() == ["198.51.100.7", "198.51.100.7"]
    strangers.clear()
