"""A small HTTP client of a running server.

Its errors are RicordoErrors with the server's sentence.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2

from ricordo.cli.sockets import address_of
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound, RicordoError, Unavailable
from ricordo.logs import set_up_logs
from ricordo.secret import OPERATOR, operator_token
from ricordo.settings import LOOPBACK, Settings, load_settings

Json = dict[str, Any]
# Even a silent stream sends pings, so two minutes without data mean that the server is gone.
_TIMEOUT = httpx2.Timeout(120, connect=5)
# A proxy in the environment is never used for a server on this machine.
_LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")
_ERRORS = {403: Forbidden, 404: NotFound, 409: Conflict}


class Client:
    """A client of one server."""

    def __init__(self, address: str, key: Callable[[], str | None] = lambda: None) -> None:
        """Prepare calls to this address; `key` returns the key for each request."""
        self.address = address.rstrip("/")

        def sign(request: httpx2.Request) -> httpx2.Request:
            if token := key():
                request.headers["authorization"] = f"Bearer {token}"
            return request

        if not self.address.startswith(("http://", "https://")):
            raise Invalid(
                f'"{address}" is not an address of a server. Write it as http://host:8283.'
            )
        try:
            self._http = httpx2.Client(
                base_url=self.address, auth=sign, timeout=_TIMEOUT, mounts=dict.fromkeys(_LOOPBACK)
            )
        except httpx2.InvalidURL as error:
            raise Invalid(f'"{address}" is not an address of a server: {error}.') from None

    def close(self) -> None:
        self._http.close()

    def version(self) -> str | None:
        """Return the server's version; None if no server answers.

        Raises:
            Invalid: Something other than Ricordo answers, or the address cannot be called.
        """
        try:
            response = self._http.get("/v1/health/", timeout=2)
        except httpx2.TransportError:
            return None
        except (httpx2.InvalidURL, httpx2.HTTPError) as error:
            raise Invalid(
                f"{self.address} cannot be called: {error}. Write an address as http://host:8283."
            ) from None
        health = _object(response)
        if response.status_code != 200 or health.get("status") != "ok":
            raise Invalid(f"The server at {self.address} is not Ricordo. Choose another address.")
        return str(health.get("version"))

    def agents(self, name: str | None = None) -> list[Json]:
        """Return all agents, or those with this name, oldest first.

        Args:
            name: The exact name; None for all agents. Several agents may have one name.

        Raises:
            RicordoError: The server refused the request, or does not answer.
        """
        agents: list[Json] = []
        query: Json = {"limit": 100, "order": "asc"}
        if name is not None:
            query["name"] = name
        while page := self.ask("GET", "/v1/agents/", query=query):
            agents += page
            query["after"] = page[-1]["id"]
        return agents

    def agent(self, agent_id: str) -> Json:
        """Return one agent, as the server answers it.

        Args:
            agent_id: The agent.

        Raises:
            RicordoError: The server refused the request, or does not answer.
        """
        agent: Json = self.ask("GET", f"/v1/agents/{agent_id}")
        return agent

    def create_agent(self, name: str, blocks: Mapping[str, str], model: str | None = None) -> Json:
        """Create an agent, and return it as the server answers it.

        Args:
            name: The name of the agent, which other agents may have too.
            blocks: The initial values of its blocks, by label.
            model: The handle of its model; None for the server's default.

        Raises:
            RicordoError: The server refused the request, or does not answer.
        """
        body: Json = {
            "name": name,
            "memory_blocks": [{"label": label, "value": blocks[label]} for label in blocks],
        }
        if model:
            body["model"] = model
        agent: Json = self.ask("POST", "/v1/agents/", body=body)
        return agent

    def default_model(self) -> str | None:
        """Return the handle of the agents' default model; None if it is unknown."""
        return next(
            (
                model["handle"]
                for model in self.ask("GET", "/v1/models/")
                if model.get("is_default")
            ),
            None,
        )

    def change_model(self, agent_id: str, handle: str) -> Json:
        """Give the agent another model, and return the agent.

        Args:
            agent_id: The agent.
            handle: The handle of the model, such as "openai/gpt-4.1".

        Raises:
            RicordoError: The server refused the request, or does not answer.
        """
        changed: Json = self.ask("PATCH", f"/v1/agents/{agent_id}", body={"model": handle})
        return changed

    def send(self, agent_id: str, text: str) -> Iterator[Json]:
        """Send a message and yield the events of the answer, token by token.

        Leaving early does not stop the agent.

        Args:
            agent_id: The agent. The message goes to its default conversation.
            text: The text of the message, from the user.

        Raises:
            RicordoError: The server refused the request.
            Unavailable: The connection broke, or the answer ended too early.
        """
        body = {"messages": [{"role": "user", "content": text}], "stream_tokens": True}
        try:
            with self._http.stream(
                "POST", f"/v1/agents/{agent_id}/messages/stream", json=body
            ) as response:
                if response.status_code != 200:
                    response.read()
                    raise refusal(response)
                yield from _events(response.iter_lines())
        except httpx2.TransportError as error:
            raise Unavailable(
                f"The connection to {self.address} broke: {error or type(error).__name__}."
            ) from None

    def events_of(self, path: str, body: Json, headers: Mapping[str, str]) -> Iterator[str]:
        """Send a body, and yield the JSON texts of the answer.

        They are its events as they arrive, or its whole body, or nothing if it has no body.

        Args:
            path: The path at the server, with its beginning slash.
            body: The JSON to send with POST.
            headers: Further headers. The header `accept` asks for JSON and for events.

        Raises:
            RicordoError: The server refused the request, with the server's sentence. An error of
                JSON-RPC is yielded instead.
            Unavailable: The connection broke.
        """
        accepts = {"accept": "application/json, text/event-stream", **headers}
        try:
            with self._http.stream("POST", path, json=body, headers=accepts) as response:
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    lines = response.iter_lines()
                    yield from (
                        line[5:].strip()
                        for line in lines
                        if line.startswith("data:") and line[5:].strip()
                    )
                    return
                content = response.read().decode()
                if response.status_code >= 400 and "jsonrpc" not in _object(response):
                    raise refusal(response)
                yield from [content] if content else []
        except httpx2.TransportError as error:
            raise Unavailable(
                f"The connection to {self.address} broke: {error or type(error).__name__}."
            ) from None

    def ask(
        self, method: str, path: str, *, query: Json | None = None, body: Json | None = None
    ) -> Any:
        """Return the JSON of the server's answer.

        Args:
            method: The HTTP method.
            path: The path at the server, with its beginning slash.
            query: The query parameters.
            body: The JSON to send; None sends no body.

        Raises:
            RicordoError: The server refused the request, with the server's sentence.
            Unavailable: The server does not answer.
        """
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


@contextmanager
def running_server(settings: Settings, address: str | None = None) -> Iterator[Client | None]:
    """Yield a client of the server at `address` or in the settings.

    The client is None if no server with these settings runs.

    Args:
        settings: The settings, for the address of a server on this machine and the key.
        address: The address of a server, which must answer; None for the one in the settings.

    Raises:
        Unavailable: No server answers at `address`.
        Invalid: `address` is not the address of a server, or another program answers there.
    """
    with closing(
        Client(address or address_of(settings.host, settings.port), _key_of(settings, address))
    ) as client:
        is_there = client.version() is not None
        if address and not is_there:
            raise Unavailable(f"No server answers at {address}. Start it, or leave --server out.")
        yield client if is_there else None


@contextmanager
def any_server(address: str | None, before_start: Callable[[Settings], None]) -> Iterator[Client]:
    """Yield a client of the running server, or of a server that runs only for the block.

    Args:
        address: The address of a server, which must answer; None for the one in the settings.
        before_start: Called with the settings before a server is started.

    Raises:
        Unavailable: No server answers at `address`.
        Conflict: Another program has the database open.
    """
    settings, providers = load_settings()
    with running_server(settings, address) as client:
        if client:
            yield client
            return
    before_start(settings)
    # Slow to load, and needed only if no server runs.
    from ricordo.cli.serve import background_server

    with (
        background_server(settings, providers) as server_address,
        closing(Client(server_address, _key_of(settings, None))) as client,
    ):
        yield client


def require_database(settings: Settings, consequence: str) -> None:
    """Raise NotFound if the settings name a database file that does not exist.

    Args:
        settings: The settings. A database of PostgreSQL is not checked.
        consequence: The end of the error's sentence, after "so there is".
    """
    if settings.postgres_url is None and not settings.database_path.exists():
        raise NotFound(
            f"There is no database at {settings.database_path}, so there is {consequence}."
        )


def set_up_quiet_logs(settings: Settings) -> None:
    """Log only errors, so that a command's output is not disturbed.

    Args:
        settings: The settings. Their log level is used if it is another one than "info".
    """
    set_up_logs(
        "error" if settings.log_level == "info" else settings.log_level, settings.log_format
    )


def refusal(response: httpx2.Response) -> RicordoError:
    """Return the error for a refused request, with the server's sentence.

    Args:
        response: The whole answer. Its status decides the class of the error.
    """
    status = response.status_code
    answer = _object(response)
    if status == 401:
        token = response.request.headers.get("authorization", "").removeprefix("Bearer ")
        if token and not token.startswith(OPERATOR):
            return Forbidden(
                "This server does not accept the key in RICORDO_API_KEY: it is unknown, expired "
                "or revoked. Correct or unset it."
            )
        return Forbidden(
            "This server requires a key. Ask an administrator for one, and set RICORDO_API_KEY."
        )
    error = answer.get("error")
    detail = error.get("message") if isinstance(error, dict) else answer.get("detail")
    text = str(detail or f"The server answered with status {status}.")
    code, _, rest = text.partition(": ")
    error_type = _ERRORS.get(status, Invalid if status < 500 else Unavailable)
    # Commands send a body, but the person sees only its fields.
    return error_type((rest if code.isupper() and rest else text).removeprefix("body."))


def _key_of(settings: Settings, address: str | None) -> Callable[[], str | None]:
    """Return a function that returns the key for a request.

    It is the key in the settings. Without one, it is an operator's token for a server on this
    machine, which only a user with access to the data folder can make.
    """
    if settings.api_key:
        key = settings.api_key.get_secret_value()
        return lambda: key
    is_near = address is None or urlsplit(address).hostname in LOOPBACK
    return lambda: operator_token(settings.data_dir) if is_near else None


def _object(response: httpx2.Response) -> Json:
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
