"""A small HTTP client of a running server. Errors are RicordoErrors with the server's own sentence."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2

from ricordo.cli.sockets import address_of
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound, RicordoError, Unavailable
from ricordo.settings import Settings

Json = dict[str, Any]
# A silent stream still pings, so two minutes without data mean that the server is gone.
_TIMEOUT = httpx2.Timeout(120, connect=5)
# A proxy in the environment is never used for a server on this machine.
_LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")


class Client:
    """A client of one server."""

    def __init__(self, address: str, key: str | None = None) -> None:
        self.address = address.rstrip("/")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        if not self.address.startswith(("http://", "https://")):
            raise Invalid(f'"{address}" is not an address of a server. Write it as http://host:8283.')
        try:
            self._http = httpx2.Client(
                base_url=self.address, headers=headers, timeout=_TIMEOUT, mounts=dict.fromkeys(_LOOPBACK)
            )
        except httpx2.InvalidURL as error:
            raise Invalid(f'"{address}" is not an address of a server: {error}.') from None

    def close(self) -> None:
        self._http.close()

    def version(self) -> str | None:
        """Return the version of the server; None without one. Raises Invalid if something else answers."""
        try:
            response = self._http.get("/v1/health/", timeout=2)
        except httpx2.TransportError:
            return None
        except (httpx2.InvalidURL, httpx2.HTTPError) as error:
            raise Invalid(f"{self.address} cannot be called: {error}. Write an address as http://host:8283.") from None
        if response.status_code != 200 or _detail(response, "status") != "ok":
            raise Invalid(f"What answers at {self.address} is not Ricordo. Choose another address.")
        return str(_detail(response, "version"))

    def agents(self, name: str | None = None) -> list[Json]:
        """Return all agents, or those with this name, oldest first."""
        found: list[Json] = []
        query: dict[str, Any] = {"limit": 100, "order": "asc"} | ({"name": name} if name is not None else {})
        while page := self.ask("GET", "/v1/agents/", query=query):
            found += page
            query["after"] = page[-1]["id"]
        return found

    def agent(self, agent_id: str) -> Json:
        return self.object("GET", f"/v1/agents/{agent_id}")

    def create_agent(self, name: str, blocks: Mapping[str, str], model: str | None = None) -> Json:
        body: Json = {"name": name, "memory_blocks": [{"label": label, "value": blocks[label]} for label in blocks]}
        return self.object("POST", "/v1/agents/", body=body | ({"model": model} if model else {}))

    def change_model(self, agent_id: str, handle: str) -> Json:
        return self.object("PATCH", f"/v1/agents/{agent_id}", body={"model": handle})

    def models(self) -> list[str]:
        return [str(model["handle"]) for model in self.ask("GET", "/v1/models/")]

    def queue(self) -> Json:
        return self.object("GET", "/v1/jobs/queue")

    def search(self, agent_id: str, words: str) -> list[Json]:
        """Return the matching passages, best first."""
        answer = self.object("GET", f"/v1/agents/{agent_id}/archival-memory/search", query={"query": words})
        return list(answer["results"])

    def reset(self, agent_id: str) -> None:
        self.ask("PATCH", f"/v1/agents/{agent_id}/reset-messages")

    def cancel(self, agent_id: str) -> None:
        self.ask("POST", f"/v1/agents/{agent_id}/messages/cancel", body={})

    def send(self, agent_id: str, text: str) -> Iterator[Json]:
        """Send a message and yield the events of the answer, token by token. Leaving early does not stop the agent."""
        body = {"messages": [{"role": "user", "content": text}], "stream_tokens": True}
        try:
            with self._http.stream("POST", f"/v1/agents/{agent_id}/messages/stream", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise refusal(response)
                yield from _events(response.iter_lines())
        except httpx2.TransportError as error:
            raise Unavailable(f"The connection to {self.address} broke: {error or type(error).__name__}.") from None

    def object(self, method: str, path: str, *, query: Json | None = None, body: Json | None = None) -> Json:
        """Return the JSON object that the server answers. Raises RicordoError with the server's own sentence."""
        answer: Json = self.ask(method, path, query=query, body=body)
        return answer

    def ask(self, method: str, path: str, *, query: Json | None = None, body: Json | None = None) -> Any:
        """Return the JSON that the server answers. Raises RicordoError with the server's own sentence."""
        try:
            response = self._http.request(method, path, params=query, json=body)
        except httpx2.TransportError as error:
            raise Unavailable(
                f"The server at {self.address} does not answer: {error or type(error).__name__}."
            ) from None
        if response.status_code not in (200, 202):
            raise refusal(response)
        return response.json()


def _events(lines: Iterator[str]) -> Iterator[Json]:
    for line in lines:
        if line.startswith("data: "):
            if line == "data: [DONE]":
                return
            yield json.loads(line.removeprefix("data: "))
    raise Unavailable("The server ended the answer too early. Your message is stored; ask again.")


C = TypeVar("C", bound=Client)


def key_of(settings: Settings) -> str | None:
    """Return the key of the configured server, if it has one."""
    return settings.api_key.get_secret_value() if settings.api_key else None


@contextmanager
def running_server(kind: type[C], settings: Settings, address: str | None = None) -> Iterator[C | None]:
    """Yield a client of the server at `address` or of the settings; None if no server of the settings runs.

    Raises Unavailable if no server answers at `address`.
    """
    client = kind(address or address_of(settings.host, settings.port), key_of(settings))
    try:
        is_there = client.version() is not None
        if address and not is_there:
            raise Unavailable(f"No server answers at {address}. Start it, or leave --server out.")
        yield client if is_there else None
    finally:
        client.close()


def refusal(response: httpx2.Response) -> RicordoError:
    status = response.status_code
    error = _detail(response, "error")
    detail = error.get("message") if isinstance(error, dict) else _detail(response, "detail")
    text = str(detail or f"The server answered with status {status}.")
    code, _, rest = text.partition(": ")
    sentence = rest if code.isupper() and rest else text
    match status:
        case 401:
            return Forbidden("This server requires a key. Set RICORDO_API_KEY to the one it was started with.")
        case 403:
            return Forbidden(sentence)
        case 404:
            return NotFound(sentence)
        case 409:
            return Conflict(sentence)
    return Invalid(sentence) if status < 500 else Unavailable(sentence)


def _detail(response: httpx2.Response, name: str) -> Any:
    try:
        payload = response.json()
    except ValueError:
        return None
    return payload.get(name) if isinstance(payload, dict) else None
