"""The pool of HTTP connections to models: made when first needed, kept alive, bounded, and closed at the end."""

import httpx2

from ricordo.llm.addresses import PROVIDERS, Lookup, PinnedTransport
from ricordo.llm.policy import CONNECT_TIMEOUT

MAX_CONNECTIONS = 100
LIMITS = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=40, keepalive_expiry=60)
# A proxy named in the environment is for the world outside, never for a server on this machine.
_LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")


class Connections:
    """Hands out one shared client. `timeout` is the longest silence, in seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._client: httpx2.AsyncClient | None = None

    @property
    def timeout(self) -> httpx2.Timeout:
        return httpx2.Timeout(self._timeout, connect=min(CONNECT_TIMEOUT, self._timeout))

    def client(self) -> httpx2.AsyncClient:
        """Return the client; the first call makes it."""
        if self._client is None or self._client.is_closed:
            self._client = self._open()
        return self._client

    def _open(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(timeout=self.timeout, limits=LIMITS, mounts=dict.fromkeys(_LOOPBACK))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


class PublicConnections(Connections):
    """Connections to public addresses alone, for addresses that users gave. `lookup` is replaceable for tests."""

    def __init__(self, timeout: float, lookup: Lookup | None = None) -> None:
        super().__init__(timeout)
        self._lookup = lookup

    def _open(self) -> httpx2.AsyncClient:
        # No proxy, which would resolve the name again; no redirect, which would lead to an address nobody checked.
        transport = PinnedTransport(PROVIDERS, lookup=self._lookup, limits=LIMITS)
        return httpx2.AsyncClient(timeout=self.timeout, transport=transport, trust_env=False, follow_redirects=False)
