"""The one pool of HTTP connections to models: made when first needed, kept alive, bounded, and closed at the end."""

import httpx2

from ricordo.llm.policy import CONNECT_TIMEOUT

MAX_CONNECTIONS = 100
KEPT_ALIVE = 40
KEPT_SECONDS = 60
# A proxy named in the environment is for the world outside, never for a server on this machine.
_LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")


class Connections:
    """Hands out one shared client. `timeout` is the longest silence, in seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._client: httpx2.AsyncClient | None = None

    @property
    def timeout(self) -> httpx2.Timeout:
        """The time-outs of every call: silence counts, not the length of an answer."""
        return httpx2.Timeout(self._timeout, connect=min(CONNECT_TIMEOUT, self._timeout))

    def client(self) -> httpx2.AsyncClient:
        """The client; the first call makes it."""
        if self._client is None or self._client.is_closed:
            limits = httpx2.Limits(
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=KEPT_ALIVE,
                keepalive_expiry=KEPT_SECONDS,
            )
            self._client = httpx2.AsyncClient(timeout=self.timeout, limits=limits, mounts=dict.fromkeys(_LOOPBACK))
        return self._client

    async def close(self) -> None:
        """Close all connections. A later call opens new ones."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None
