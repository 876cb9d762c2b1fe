"""The hooks of the SDK's authorization server, for one request.

The hooks register clients, and issue the tokens of their grants.
"""

import re
import time
from urllib.parse import urlsplit

from fastapi import Request
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    RegistrationError,
    TokenError,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyUrl

from ricordo.domain.ids import new_id
from ricordo.domain.scope import RECORDED_SCOPE, REQUEST_SCOPE, Limits, Scope
from ricordo.features.mcp.oauth import RESOURCE, grants
from ricordo.features.mcp.oauth.grants import SCOPES, Issued, ProgramConsent
from ricordo.features.mcp.oauth.requests import derive, public_address
from ricordo.pages.shell import base_of
from ricordo.settings import LOOPBACK

_HOST = re.compile(r"[A-Za-z0-9.-]+(?::\d{1,5})?|\[[0-9A-Fa-f:]+\](?::\d{1,5})?")
# URL schemes of programs on people's machines: well-known schemes, and schemes with the form of a
# domain.
_SCHEME = re.compile(r"cursor|vscode|vscode-insiders|windsurf|[a-z][a-z0-9-]*(?:\.[a-z0-9-]+)+")
_MOST_URIS = 5
_LONGEST_ID = 1500  # characters
_LONGEST_NAME = 60  # characters


class GrantProvider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Serves one request, and records its caller for the audit log."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._store = request.app.state.runtime.store
        self._key_secret: bytes = request.app.state.authentication.secret
        self._client_id = ""
        self.question = ""

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        """Return the registration that a client's id contains; None for another text.

        Args:
            client_id: The id that a program sent; a signed text that `register_client` made.
        """
        client = grants.read_signed(derive(self._request, "client"), client_id)
        if client is None:
            return None
        name, method, uris = client
        self._client_id = client_id
        return OAuthClientInformationFull(
            client_id=client_id,
            client_name=name,
            client_secret=None if method == "none" else self._secret_of(client_id),
            token_endpoint_auth_method=method,
            redirect_uris=[AnyUrl(uri) for uri in uris],
            scope=" ".join(SCOPES),
        )

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        """Set the client's id, which is the signed registration itself.

        Args:
            client_info: The program's metadata, which is changed: it gets the id, a printable name
                and all scopes.

        Raises:
            RegistrationError: The redirect addresses are not allowed, or too long.
        """
        uris = [str(uri) for uri in client_info.redirect_uris or []]
        printable = filter(str.isprintable, client_info.client_name or "")
        name = "".join(printable).strip()[:_LONGEST_NAME]
        if not 0 < len(uris) <= _MOST_URIS or not all(map(_is_allowed, uris)):
            raise RegistrationError(
                "invalid_redirect_uri",
                f"Send 1 to {_MOST_URIS} redirect addresses that use https or are on this machine.",
            )
        name = name or "A program"
        content = [name, client_info.token_endpoint_auth_method, uris]
        client_info.client_id = grants.sign(derive(self._request, "client"), content)
        if len(client_info.client_id) > _LONGEST_ID:
            raise RegistrationError(
                "invalid_client_metadata", "The addresses are too long. Send fewer or shorter ones."
            )
        if client_info.client_secret:
            client_info.client_secret = self._secret_of(client_info.client_id)
        client_info.client_name = name
        client_info.scope = " ".join(SCOPES)

    def _secret_of(self, client_id: str) -> str:
        return grants.sign(derive(self._request, "client secret"), client_id).rpartition(".")[2]

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        """Return the address of the page of consent.

        Args:
            client: The registered program.
            params: Its request. Scopes that the person lacks are left out of the question.

        Raises:
            AuthorizeError: The request is for another server, or the person has none of its scopes.
        """
        caller: Scope = self._request.scope[REQUEST_SCOPE]
        address = public_address(self._request)
        if params.resource and params.resource.rstrip("/") not in (address, f"{address}{RESOURCE}"):
            raise AuthorizeError(
                "invalid_target", f"Tokens are only issued for {address}{RESOURCE}."
            )
        scopes = [
            scope for scope in params.scopes or SCOPES if scope in SCOPES and caller.may(scope)
        ]
        if not scopes:
            raise AuthorizeError("invalid_scope", "The person has none of the requested scopes.")
        limits = caller.limits or Limits("")
        consent = ProgramConsent(
            grant_id=new_id("key"),
            organization_id=caller.organization_id,
            user_id=caller.user_id,
            asked_by=caller.key_id or "",
            client_id=client.client_id,
            client_name=client.client_name or "",
            scopes=scopes,
            challenge=params.code_challenge,
            redirect_uri=str(params.redirect_uri),
            is_explicit=params.redirect_uri_provided_explicitly,
            state=params.state,
            until=time.time() + grants.QUESTION_SECONDS,
            requests_per_minute=limits.requests_per_minute,
            max_body_bytes=limits.max_body_bytes,
        )
        self.question = consent.sign(derive(self._request, "question"))
        return f"{base_of(self._request)}/oauth/consent?question={self.question}"

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        """Return the contents of a code; None if the signature or the client is wrong.

        Args:
            client: The program that presents the code.
            authorization_code: The text that the program sent. The SDK checks its expiry and its
                challenge.
        """
        consent = ProgramConsent.read(derive(self._request, "code"), authorization_code)
        if consent is None or consent.client_id != client.client_id:
            return None
        return AuthorizationCode(
            code=authorization_code,
            scopes=consent.scopes,
            expires_at=consent.until,
            client_id=consent.client_id,
            code_challenge=consent.challenge,
            redirect_uri=AnyUrl(consent.redirect_uri),
            redirect_uri_provided_explicitly=consent.is_explicit,
        )

    async def exchange_authorization_code(
        self,
        client: OAuthClientInformationFull,  # noqa: ARG002 - the code was loaded for it
        authorization_code: AuthorizationCode,
    ) -> OAuthToken:
        """Open the grant of a code, and return its first tokens.

        Args:
            client: The program that presents the code.
            authorization_code: The code, as `load_authorization_code` returned it.

        Raises:
            TokenError: The code was already used, which ends its grant, or its person is disabled.
        """
        consent = ProgramConsent.read(derive(self._request, "code"), authorization_code.code)
        issued: Issued | Scope | None = None
        if consent is not None:
            issued = await self._store.write(
                lambda tx: grants.open_grant(tx, self._key_secret, consent)
            )
        if not isinstance(issued, Issued):
            self._end(issued)
            raise TokenError(
                "invalid_grant", "authorization code does not exist, or was used already"
            )
        return self._tokens(issued, authorization_code.scopes)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        """Return the refresh token with the scopes of its grant; None if it names no grant.

        Args:
            client: The program that presents the token.
            refresh_token: The text that the program sent. Its signature and its use are not checked
                here.
        """
        grant = await self._store.read(lambda tx: grants.find_grant(tx, refresh_token))
        if grant is None:
            return None
        return RefreshToken(
            token=refresh_token, client_id=client.client_id, scopes=list(grant.scopes)
        )

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        """Return new tokens for a refresh token, which then becomes invalid.

        Args:
            client: The program that presents the token.
            refresh_token: The token, as `load_refresh_token` returned it.
            scopes: The scopes of the new access token, which the SDK has found to be in the grant.

        Raises:
            TokenError: The token is not valid, or was already used, which ends its grant.
        """
        issued = await self._store.write(
            lambda tx: grants.refresh_grant(
                tx, self._key_secret, client.client_id, token=refresh_token.token, scopes=scopes
            )
        )
        if not isinstance(issued, Issued):
            self._end(issued)
            raise TokenError(
                "invalid_grant",
                "refresh token has expired or was used already; a second use also ends its grant",
            )
        self._end(None)  # the earlier access token was revoked
        return self._tokens(issued, scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        # `revoke_grant` checks the token's client.
        """Return the token for its revocation, without a check.

        Args:
            token: The text that the program sent.
        """
        return AccessToken(token=token, client_id=self._client_id, scopes=[])

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        """End the grant of this token, if it is the client's.

        Args:
            token: The token, as one of the two load functions returned it.
        """
        caller = await self._store.write(
            lambda tx: grants.revoke_grant(tx, self._key_secret, self._client_id, token.token)
        )
        if caller:
            self._end(caller)

    def _tokens(self, issued: Issued, scopes: list[str]) -> OAuthToken:
        self._request.scope[RECORDED_SCOPE] = issued.caller
        return OAuthToken(
            access_token=issued.access,
            expires_in=grants.ACCESS_SECONDS,
            scope=" ".join(scopes),
            refresh_token=issued.refresh,
        )

    def _end(self, caller: Scope | None) -> None:
        """Make this process forget an ended token at once, and record its caller."""
        self._request.app.state.authentication.forget()
        if caller:
            self._request.scope[RECORDED_SCOPE] = caller


def _is_allowed(uri: str) -> bool:
    parts = urlsplit(uri)
    if (
        parts.fragment
        or parts.username
        or parts.password
        or not uri.isascii()
        or not uri.isprintable()
    ):
        return False
    if parts.scheme in ("http", "https"):
        is_host = bool(_HOST.fullmatch(parts.netloc))
        return is_host and (parts.scheme == "https" or parts.hostname in LOOPBACK)
    return bool(_SCHEME.fullmatch(parts.scheme))
