"""OAuth for MCP servers: somebody consents once in a browser, and the tokens are kept encrypted and refreshed.

The protocol is the official SDK's. A consent that is waited for lives in this process, for ten minutes; its `state`, which nobody
can guess, leads the browser's answer back to it.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx2

from ricordo.errors import Conflict, Invalid, NotFound, RicordoError, Unavailable
from ricordo.features.mcp.listed_tools import plain
from ricordo.features.mcp.sessions import CONNECT_SECONDS, Traffic, client_to
from ricordo.setting_types import is_address

if TYPE_CHECKING:
    from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

Keep = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Stores what OAuth gave: `tokens`, `client`, `metadata`, and `expires_at` in seconds."""
CONSENT_SECONDS = 600.0
_ANSWER_SECONDS = (
    30.0  # from the question to the address of consent, and from the consent to the tokens
)
_MOST_WAITING = 20
_HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "Ricordo", "version": "1"},
    },
}
_ACCEPTED = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}


class KeptTokens:
    """What OAuth gave, as the SDK reads and writes it."""

    def __init__(self, kept: Mapping[str, Any], keep: Keep) -> None:
        self.kept = dict(kept)
        self.refreshing = asyncio.Lock()
        self._keep = keep
        self.provider: OAuthClientProvider | None = None

    @property
    def is_old(self) -> bool:
        return (self.kept.get("expires_at") or float("inf")) < time.time()

    async def get_tokens(self) -> "OAuthToken | None":
        from mcp.shared.auth import OAuthToken

        return OAuthToken.model_validate(self.kept["tokens"]) if "tokens" in self.kept else None

    async def set_tokens(self, tokens: "OAuthToken") -> None:
        """Keep new tokens, with where they are refreshed."""
        metadata = self.provider.context.oauth_metadata if self.provider else None
        self.kept["tokens"] = tokens.model_dump(mode="json", exclude_none=True)
        self.kept["expires_at"] = time.time() + tokens.expires_in if tokens.expires_in else None
        if metadata:
            self.kept["metadata"] = metadata.model_dump(mode="json", exclude_none=True)
        await self._keep(self.kept)

    async def get_client_info(self) -> "OAuthClientInformationFull | None":
        from mcp.shared.auth import OAuthClientInformationFull

        return (
            OAuthClientInformationFull.model_validate(self.kept["client"])
            if "client" in self.kept
            else None
        )

    async def set_client_info(self, client_info: "OAuthClientInformationFull") -> None:
        """Keep who this server is at that one; stored with the tokens, which follow."""
        self.kept["client"] = client_info.model_dump(mode="json", exclude_none=True)


class SharedTokens(httpx2.Auth):
    """Adds a server's tokens to requests of all its sessions: they are refreshed once, and no call waits for another's answer."""

    def __init__(self, url: str, kept: KeptTokens) -> None:
        self._url, self._kept = url, kept

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request with the token, and once more with a refreshed one where the server has forgotten it early."""
        from mcp.client.auth import OAuthFlowError

        sent = self._kept.kept.get("tokens", {})
        for is_last in (False, True):
            # One at a time where it is to be refreshed.
            async with self._kept.refreshing if is_last or self._kept.is_old else nullcontext():
                if is_last and self._kept.kept.get("tokens") == sent:
                    self._kept.kept["expires_at"] = 1.0
                # The SDK's own object lets one request at a time wait for its answer, so each has one of its own.
                flow = provider_for(self._url, self._kept).async_auth_flow(request)
                try:
                    asked = await anext(flow)
                    while True:
                        asked = await flow.asend((yield asked))
                except StopAsyncIteration:
                    return
                except OAuthFlowError:
                    if is_last or "refresh_token" not in sent:
                        raise
                finally:
                    await flow.aclose()


def provider_for(
    url: str,
    tokens: KeptTokens,
    *,
    callback: str = "",
    redirect: Callable[[str], Awaitable[None]] | None = None,
    consent: "Callable[[], Awaitable[AuthorizationCodeResult]] | None" = None,
) -> "OAuthClientProvider":
    """Return what adds tokens to requests and refreshes them. Without `redirect` and `consent` it asks nobody."""
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata

    about = {"client_name": "Ricordo", "redirect_uris": [callback or "http://localhost/"]}
    about |= {"grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"]}
    made = OAuthClientProvider(
        url, OAuthClientMetadata.model_validate(about), tokens, redirect, consent
    )
    tokens.provider = made
    # The SDK forgets these with the process, and would ask for consent where a refresh is enough.
    made.context.token_expiry_time = tokens.kept.get("expires_at")
    if "metadata" in tokens.kept:
        made.context.oauth_metadata = OAuthMetadata.model_validate(tokens.kept["metadata"])
    return made


class _Consent:
    """One consent that is waited for."""

    def __init__(self, server_id: str) -> None:
        self.server_id = server_id
        loop = asyncio.get_running_loop()
        self.address: asyncio.Future[str] = loop.create_future()
        self.answer: asyncio.Future[AuthorizationCodeResult] = loop.create_future()
        self.task: asyncio.Task[None] | None = None

    async def redirect(self, address: str) -> None:
        if not self.address.done():
            self.address.set_result(address)

    async def wait(self) -> "AuthorizationCodeResult":
        async with asyncio.timeout(CONSENT_SECONDS):
            return await self.answer


class Consents:
    """The consents that this process waits for, by their `state`."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Consent] = {}

    async def begin(
        self, server_id: str, url: str, callback: str, keep: Keep, *, allow_private: bool
    ) -> str:
        """Return where somebody consents. Raises Unavailable where the server fails, Conflict where it asks for no consent."""
        waiting = _Consent(server_id)
        tokens = KeptTokens({}, keep)
        auth = provider_for(
            url, tokens, callback=callback, redirect=waiting.redirect, consent=waiting.wait
        )
        waiting.task = asyncio.create_task(self._live(url, auth, allow_private=allow_private))
        waited: list[asyncio.Future[Any]] = [waiting.task, waiting.address]
        await asyncio.wait(waited, timeout=_ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.address.done():
            if waiting.task.done():
                waiting.task.result()
                raise Conflict(
                    "This server asks for no consent: it answers without, or with the token that it was given."
                )
            waiting.task.cancel()
            raise Unavailable("It did not say in time where to consent.")
        address = waiting.address.result()
        state = parse_qs(urlsplit(address).query).get("state", [""])[0]
        if not is_address(address) or not state:
            waiting.task.cancel()
            raise Unavailable("It named no address where to consent.")
        for other in list(self._waiting)[: len(self._waiting) - _MOST_WAITING + 1]:
            self._end(other)
        self._waiting[state] = waiting
        waiting.task.add_done_callback(lambda _: self._waiting.pop(state, None))
        return address

    async def finish(
        self, state: str, code: str | None, issuer: str | None, error: str | None
    ) -> str:
        """Take the browser's answer; returns the server's id once the tokens are stored. Raises NotFound, Invalid, Unavailable."""
        from mcp.client.auth import AuthorizationCodeResult

        found = next(
            (
                known
                for known in self._waiting
                if secrets.compare_digest(known.encode(), state.encode())
            ),
            None,
        )
        if found is None:
            raise NotFound(
                "Nobody waits for this consent, or no longer. Connect to the server again."
            )
        waiting = self._waiting.pop(found)
        if error or not code:
            self._cancel(waiting)
            raise Invalid(
                f"The server was not connected: {(error or 'no code came')[:200]}. Connect to it again."
            )
        waiting.answer.set_result(AuthorizationCodeResult(code=code, state=state, iss=issuer))
        assert waiting.task  # noqa: S101 - set by `begin`
        await asyncio.wait({waiting.task}, timeout=_ANSWER_SECONDS)
        if not waiting.task.done():
            self._cancel(waiting)
            raise Unavailable("The server gave no tokens in time. Connect to it again.")
        waiting.task.result()
        return waiting.server_id

    async def close(self) -> None:
        for state in list(self._waiting):
            self._end(state)

    async def _live(self, url: str, auth: httpx2.Auth, *, allow_private: bool) -> None:
        """Ask the server once, which leads through the consent. Raises Unavailable."""
        traffic = Traffic()
        try:
            async with (
                asyncio.timeout(CONSENT_SECONDS + 2 * CONNECT_SECONDS),
                client_to(
                    traffic, {}, CONNECT_SECONDS, allow_private=allow_private, auth=auth
                ) as http,
                http.stream("POST", url, json=_HELLO, headers=_ACCEPTED) as answer,
            ):
                status = answer.status_code
        except RicordoError:
            raise
        except TimeoutError as error:
            raise Unavailable("Nobody consented in time. Connect to it again.") from error
        except Exception as error:
            why = traffic.fault or plain((str(error) or type(error).__name__).splitlines()[0])[:200]
            raise Unavailable(f"It could not be connected to by OAuth: {why}") from error
        if status in (401, 403):
            raise Unavailable(f"It refused the consent with status {status}. Connect to it again.")

    def _end(self, state: str) -> None:
        with suppress(KeyError):
            self._cancel(self._waiting.pop(state))

    @staticmethod
    def _cancel(waiting: _Consent) -> None:
        if waiting.task:
            waiting.task.cancel()
