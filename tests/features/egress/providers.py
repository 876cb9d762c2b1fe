"""Two servers of models over real HTTP, which record every byte that they get.

One is at 127.0.0.1, which the tests' settings do not call local: it is "openai". The other is at
127.0.0.2, the only local address: it is "vllm".
"""

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import SecretStr

from ricordo.settings import ProviderSettings
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import jobs
from tests.seams.server import LIMIT, ServerInThread, serving

CLOUD = "openai/gpt-4o-mini"
LOCAL = "vllm/llama"
EMBEDDING = "openai/text-embedding-3-small"


def says(text: str = "", *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a message of a model: a text, calls of tools, or both."""
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for number, (name, arguments) in enumerate(calls)
        ]
    return message


@dataclass
class RecordingProvider:
    """A server of chat and embedding models that keeps the body of each request."""

    host: str
    models: tuple[str, ...]
    bodies: list[str] = field(default_factory=list)
    script: deque[dict[str, Any]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._answer({"data": [{"id": name} for name in provider.models]})

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                body = json.loads(raw)
                # Escapes are undone, so that a text is found however it was encoded.
                provider.bodies.append(json.dumps(body, ensure_ascii=False))
                self._answer(provider.answer(self.path, body))

            def _answer(self, content: Any) -> None:
                data = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer((self.host, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self._server.server_port}"

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/embeddings"):
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            rows = [
                {"index": index, "embedding": [float(len(text) % 7 + 1), 1.0, 0.5, 0.25]}
                for index, text in enumerate(texts)
            ]
            return {"data": rows, "model": "embedding", "usage": {"prompt_tokens": 1}}
        message = self.script.popleft() if self.script else says("ok")
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13},
        }

    def saw(self, text: str) -> bool:
        return any(text in body for body in self.bodies)

    @property
    def last(self) -> str:
        return self.bodies[-1]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class World:
    """The server under test with both providers."""

    server: ServerInThread
    cloud: RecordingProvider
    local: RecordingProvider

    def forget(self) -> None:
        for provider in (self.cloud, self.local):
            provider.bodies.clear()
            provider.script.clear()


def wait_for_jobs(server: ServerInThread) -> None:
    """Wait until no job is due or running, and no turn runs."""
    statement = sa.select(sa.func.count()).where(jobs.c.status.in_(("waiting", "running")))

    def count(tx: Transaction) -> int:
        now = tx.clock.now()
        return int(tx.all(statement.where(jobs.c.not_before <= now), {})[0][0])

    deadline = time.monotonic() + LIMIT
    while True:
        is_busy = server.read(count) or server.runtime.live
        if not is_busy:
            return
        assert time.monotonic() < deadline, "the jobs did not end in time"
        time.sleep(0.02)


@contextmanager
def two_providers(data_dir: Path, **settings: Any) -> Iterator[World]:
    cloud = RecordingProvider("127.0.0.1", ("gpt-4o-mini", "text-embedding-3-small"))
    local = RecordingProvider("127.0.0.2", ("llama",))
    providers = ProviderSettings.model_construct(
        openai_api_key=SecretStr("sk-none"),
        openai_base_url=f"{cloud.url}/v1",
        vllm_api_base=local.url,
    )
    options = {"embedding": EMBEDDING, "egress_local": "127.0.0.2"} | settings
    try:
        with serving(data_dir, providers=providers, **options) as server:
            yield World(server, cloud, local)
    finally:
        cloud.close()
        local.close()
