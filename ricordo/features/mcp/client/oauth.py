"""OAuth for MCP servers: a person consents once, then tokens are refreshed.

The protocol is the official SDK's. Tokens are stored encrypted. A request for consent waits in this
process for ten minutes. Its unguessable `state` identifies it in the browser's answer. It does not
identify the person, who may have got the address of the consent page from another person.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx2

from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid, NotFound, RicordoError, Unavailable
from ricordo.features.mcp.client.listed_tools import plain
from ricordo.features.mcp.client.sessions import CONNECT_SECONDS, Traffic, client_to
from ricordo.features.mcp.client.tables import McpServer
from ricordo.setting_types import is_address

if TYPE_CHECKING:
    from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

Keep = Callable[[Mapping[str, Any]], Awaitable[None]]
"""A function that stores the result of OAuth.

The result has `tokens`, `client`, `metadata`, and `expires_at` in seconds.
"""
CONSENT_SECONDS = 600.0
# The most seconds until the server sends the address for the consent, and from the consent to the
# tokens.
_ANSWER_SECONDS = 30.0
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
    """The result of OAuth, in the form that the SDK reads and writes."""

    def __init__(self, credentials: Mapping[str, Any], keep: Keep) -> None:
        self.credentials = dict(credentials)
        self.refreshing = asyncio.Lock()
        self._keep = keep
        self.provider: OAuthClientProvider | None = None

    @property
    def is_old(self) -> bool:
        return (self.credentials.get("expires_at") or float("inf")) < time.time()

    async def get_tokens(self) -> "OAuthToken | None":
        from mcp.shared.auth import OAuthToken

        if "tokens" not in self.credentials:
            return None
        return OAuthToken.model_validate(self.credentials["tokens"])

    async def set_tokens(self, tokens: "OAuthToken") -> None:
        """Store new tokens, with the server's metadata for their refresh.

        Args:
            tokens: The tokens from the server; `expires_in` counts from now, in seconds.
        """
        if self.provider:
            metadata = self.provider.context.oauth_metadata
        else:
            metadata = None
        self.credentials["tokens"] = tokens.model_dump(mode="json", exclude_none=True)
        if tokens.expires_in:
            self.credentials["expires_at"] = time.time() + tokens.expires_in
        else:
            self.credentials["expires_at"] = None
        if metadata:
            self.credentials["metadata"] = metadata.model_dump(mode="json", exclude_none=True)
        await self._keep(self.credentials)

    async def get_client_info(self) -> "OAuthClientInformationFull | None":
        from mcp.shared.auth import OAuthClientInformationFull

        if "client" not in self.credentials:
            return None
        return OAuthClientInformationFull.model_validate(self.credentials["client"])

    async def set_client_info(self, client_info: "OAuthClientInformationFull") -> None:
        """Set the registration of this client; it is stored later, together with the tokens.

        Args:
            client_info: The registration that the server returned.
        """
        self.credentials["client"] = client_info.model_dump(mode="json", exclude_none=True)


class SharedTokens(httpx2.Auth):
    """Adds a server's tokens to the requests of all its sessions.

    The tokens are refreshed once for all sessions. Only a call that needs a refresh waits for
    another call.
    """

    def __init__(self, url: str, tokens: KeptTokens) -> None:
        self._url = url
        self._tokens = tokens

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request with the token.

        If the server no longer accepts the token, refresh it and send the request once more.

        Args:
            request: The request, which gets the header with the token.

        Raises:
            OAuthFlowError: The library cannot refresh the token, so a new consent is needed.
        """
        from mcp.client.auth import OAuthFlowError

        first_tokens = self._tokens.credentials.get("tokens", {})
        for is_last in (False, True):
            # Only one refresh runs at a time.
            needs_refresh = is_last or self._tokens.is_old
            async with self._tokens.refreshing if needs_refresh else nullcontext():
                if is_last and self._tokens.credentials.get("tokens") == first_tokens:
                    self._tokens.credentials["expires_at"] = 1.0
                # The SDK's object serves one request at a time, so each request has a separate one.
                flow = provider_for(self._url, self._tokens).async_auth_flow(request)
                try:
                    auth_request = await anext(flow)
                    while True:
                        auth_request = await flow.asend((yield auth_request))
                except StopAsyncIteration:
                    return
                except OAuthFlowError:
                    if is_last or "refresh_token" not in first_tokens:
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
    """Return the SDK's object that adds tokens to requests and refreshes them.

    Args:
        url: The server's address.
        tokens: The stored tokens. The object is set as their `provider`.
        callback: The address to which the browser returns after a consent; "" without a consent.
        redirect: Gets the address where a person consents. Without it, no consent is asked for.
        consent: Waits for the browser's answer.
    """
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata

    about = {"client_name": "Ricordo", "redirect_uris": [callback or "http://localhost/"]}
    about |= {"grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"]}
    provider = OAuthClientProvider(
        url, OAuthClientMetadata.model_validate(about), tokens, redirect, consent
    )
    tokens.provider = provider
    # The SDK keeps these values only in the process. Without them it would ask for consent after a
    # restart, although a refresh is enough.
    provider.context.token_expiry_time = tokens.credentials.get("expires_at")
    if "metadata" in tokens.credentials:
        provider.context.oauth_metadata = OAuthMetadata.model_validate(
            tokens.credentials["metadata"]
        )
    return provider


class WaitingConsent:
    """One waiting consent: the server, and the caller who began to connect it."""

    def __init__(self, server: McpServer, begun_by: Scope) -> None:
        self.server = server
        self.begun_by = begun_by
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
    """The waiting consents of this process, by their `state`."""

    def __init__(self) -> None:
        self._waiting: dict[str, WaitingConsent] = {}

    async def begin(
        self, server: McpServer, callback: str, keep: Keep, *, begun_by: Scope, allow_private: bool
    ) -> str:
        """Return the address where a person consents.

        Args:
            server: The server, reached by HTTP.
            callback: The address of this server to which the browser returns.
            keep: Stores the tokens after the consent.
            begun_by: The caller, whose organization's agents will use the consent.
            allow_private: Allow addresses of private networks.

        Raises:
            Unavailable: if the server fails, or sends no address in time.
            Conflict: if it asks for no consent.
        """
        url = server.config["server_url"]
        consent = WaitingConsent(server, begun_by)
        tokens = KeptTokens({}, keep)
        auth = provider_for(
            url, tokens, callback=callback, redirect=consent.redirect, consent=consent.wait
        )
        consent.task = asyncio.create_task(self._live(url, auth, allow_private=allow_private))
        first_events: list[asyncio.Future[Any]] = [consent.task, consent.address]
        await asyncio.wait(
            first_events, timeout=_ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if not consent.address.done():
            if consent.task.done():
                consent.task.result()
                raise Conflict(
                    "This server needs no consent: it answers without consent, or with the stored "
                    "token."
                )
            consent.task.cancel()
            raise Unavailable("It did not send its consent page's address in time.")
        address = consent.address.result()
        state = parse_qs(urlsplit(address).query).get("state", [""])[0]
        if not is_address(address) or not state:
            consent.task.cancel()
            raise Unavailable("It sent no address of a consent page.")
        self._waiting[state] = consent
        for oldest in list(self._waiting)[:-_MOST_WAITING]:
            self._end(oldest)
        consent.task.add_done_callback(lambda _: self._waiting.pop(state, None))
        return address

    def find(self, state: str) -> WaitingConsent:
        """Return the waiting consent.

        Args:
            state: The `state` of the browser's answer.

        Raises:
            NotFound: if the consent has expired, was used, or began in another process.
        """
        return self._waiting[self._own_state(state)]

    def _own_state(self, state: str) -> str:
        for waiting_state in self._waiting:
            if secrets.compare_digest(waiting_state.encode(), state.encode()):
                return waiting_state
        raise NotFound("This consent request has expired. Connect to the server again.")

    async def finish(
        self, state: str, code: str | None, issuer: str | None, error: str | None
    ) -> str:
        """Handle the browser's answer, and return the server's id once tokens are stored.

        Args:
            state: The `state` of the answer, which names the waiting consent.
            code: The code that the tokens are exchanged for; None if the person refused.
            issuer: The issuer in the answer (`iss`), or None.
            error: The error in the answer, or None.

        Raises:
            NotFound: if the consent has expired, was used, or began in another process.
            Invalid: if the answer has an error, or no code.
            Unavailable: if the server sent no tokens in time.
        """
        from mcp.client.auth import AuthorizationCodeResult

        consent = self._waiting.pop(self._own_state(state))
        if error or not code:
            self._cancel(consent)
            raise Invalid(
                f"The server was not connected: {(error or 'no code came')[:200]}. Connect to it "
                "again."
            )
        consent.answer.set_result(AuthorizationCodeResult(code=code, state=state, iss=issuer))
        assert consent.task  # noqa: S101 - set by `begin`
        await asyncio.wait({consent.task}, timeout=_ANSWER_SECONDS)
        if not consent.task.done():
            self._cancel(consent)
            raise Unavailable("The server sent no tokens in time. Connect to it again.")
        consent.task.result()
        return consent.server.id

    async def close(self) -> None:
        for state in list(self._waiting):
            self._end(state)

    async def _live(self, url: str, auth: httpx2.Auth, *, allow_private: bool) -> None:
        """Send one request to the server, which makes the SDK ask for consent.

        Raises Unavailable.
        """
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
            raise Unavailable("There was no consent in time. Connect to it again.") from error
        except Exception as error:
            first_line = (str(error) or type(error).__name__).splitlines()[0]
            reason = traffic.fault or plain(first_line)[:200]
            raise Unavailable(f"The connection by OAuth failed: {reason}") from error
        if status in (401, 403):
            raise Unavailable(f"It refused the consent with status {status}. Connect to it again.")

    def _end(self, state: str) -> None:
        with suppress(KeyError):
            self._cancel(self._waiting.pop(state))

    @staticmethod
    def _cancel(consent: WaitingConsent) -> None:
        if consent.task:
            consent.task.cancel()
