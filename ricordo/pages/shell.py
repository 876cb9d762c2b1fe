"""The common parts of all pages: routes, rendering, refusals, forms, notices.

A page is a function of a request in a module with `router = Pages(scope=…)`. It asks the API by
`Api(request)`, and renders a template that extends `layout.html`. It answers a form with `done`,
and the next page shows the notice of `done`. A `RefusedByApi` or another RicordoError becomes a
page with its message.
"""

import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

import orjson
from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from ricordo.api.errors import status_of
from ricordo.api.guard import COOKIE, route_path
from ricordo.api.routing import GuardedRoute, Routes, refusal_of
from ricordo.domain.hidden_text import without_marks
from ricordo.domain.ids import is_any_id
from ricordo.domain.scope import ADMIN, APPROVE, OVERRIDE, REQUEST_SCOPE, Scope
from ricordo.domain.text import normal_text
from ricordo.errors import DatabaseFailed, Invalid, NotFound, RicordoError
from ricordo.memory.text import by_words
from ricordo.offload import SMALL, offload
from ricordo.pages import filters, statics
from ricordo.pages.inside import RefusedByApi
from ricordo.pages.navigation import Group, navigation
from ricordo.pages.reasons import own_reason
from ricordo.pages.titles import title_of
from ricordo.runtime import Runtime
from ricordo.secret import Secret
from ricordo.storage import organizations, proposals
from ricordo.storage.engine.store import Transaction

if TYPE_CHECKING:
    from jinja2 import Environment

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src "
    "'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors "
    "'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
_NOTICE_COOKIE = "ricordo_told"
_NOTICE_SECONDS = 60
_SEE_OTHER = 303
_INTERNAL = 500
_BAD_GATEWAY = 502
# Browsers read "//host" and "/\\host" as another server, and ignore tabs and line breaks.
_LOCAL = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")
# Fields of a form.
_MOST_FIELDS = 1000
_MOST_DIGITS = 15


class PageRoute(GuardedRoute):
    """A route of a page; a refused caller gets a page too."""

    async def handle(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if refusal := refusal_of(scope, self.scopes):
            response = await render(
                Request(scope, receive), "error.html", status=refusal[0], words=refusal[1]
            )
            await response(scope, receive, send)
            return
        await super().handle(scope, receive, send)


class Pages(Routes):
    """The pages of one module.

    `scope` works as for API routes: pages need `<scope>:read`, and forms `<scope>:write`.
    """

    guarded_class = PageRoute

    def __init__(self, prefix: str = "", *, scope: str | None = None, **options: Any) -> None:
        super().__init__(prefix, scope=scope, include_in_schema=False, **options)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **route_options: Any) -> None:
        """Add a page whose errors become pages too.

        Args:
            path: The path below the prefix.
            endpoint: The coroutine function of the page: it gets the request, and the parameters in
                the path.
            **route_options: The options of FastAPI's method.
        """
        super().add_api_route(path, _explaining(endpoint), **route_options)


def _explaining(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(endpoint)
    async def show(request: Request, **path_params: Any) -> Response:
        try:
            response: Response = await endpoint(request, **path_params)
        except RicordoError as error:
            if isinstance(error, RefusedByApi):
                status = error.status
            else:
                status = status_of(error)
            if status >= _INTERNAL and not isinstance(error, DatabaseFailed):
                status = _BAD_GATEWAY  # the failure is not in the page itself
            if is_part(request):
                template = "refused.html"
            else:
                template = "error.html"
            return await render(request, template, status=status, words=str(error))
        return response

    return show


async def render(
    request: Request, template: str, *, status: int = 200, **template_variables: Any
) -> HTMLResponse:
    """Return the page.

    Each template also has the variables `status`, `me` (the caller's Scope, or None), `base`,
    `path`, `navigation`, `waiting_count` (the number of the caller's open decisions), `told` (the
    notice of the last form) and `has_login` (OpenID Connect is set up).

    Args:
        request: The request that the page answers.
        template: The template's file name; that of a feature has the feature in front, as in
            "custom_tools.source/tool.html".
        status: The HTTP status.
        **template_variables: The template's other variables. `is_large` is not one of them: if
            true, the page is rendered in a thread, since that takes long.
    """
    me: Scope | None = request.scope.get(REQUEST_SCOPE)
    runtime: Runtime = request.app.state.runtime
    frame = _Frame()
    if me is not None and me.may(APPROVE, OVERRIDE, ADMIN) and not is_part(request):
        with suppress(DatabaseFailed):  # count and links to the whole server are then left out
            frame = await runtime.store.read(partial(_read_frame, me=me))
    notice = _notice(request)
    variables = {
        "status": status,
        "me": me,
        "base": base_of(request),
        "path": route_path(request.scope),
        "navigation": _navigation(request, me, frame),
        "waiting_count": frame.waiting_count,
        "told": notice,
        "has_login": runtime.settings.oidc_issuer is not None,
    }
    is_large = template_variables.pop("is_large", False)
    render_template = partial(
        environment().get_template(template).render, variables | template_variables
    )
    # Rendering a long history would block other requests for too long.
    if is_large:
        text = await offload(render_template, SMALL + 1)
    else:
        text = render_template()
    response = HTMLResponse(text, status, HEADERS)
    if notice:
        response.delete_cookie(_NOTICE_COOKIE, path=f"{base_of(request)}/")
    # The cookie of an ended session is removed. Otherwise every request with it would count as an
    # attempt with a wrong key.
    if me is None and COOKIE in request.cookies:
        response.delete_cookie(COOKIE, path=f"{base_of(request)}/")
    return response


@dataclass(frozen=True, slots=True)
class _Frame:
    """The parts of a page's frame that are read from the database.

    Attributes:
        waiting_count: The number of the caller's open decisions.
        sees_server: The caller may see data of all organizations.
    """

    waiting_count: int = 0
    sees_server: bool = False


async def render_secret(
    request: Request, template: str, *, status: int = 200, **template_variables: Any
) -> HTMLResponse:
    """Return a page whose address is a secret: browsers and search engines do not pass it on.

    Args:
        request: The request that the page answers.
        template: As for `render`.
        status: The HTTP status.
        **template_variables: As for `render`.
    """
    response = await render(request, template, status=status, **template_variables)
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["X-Robots-Tag"] = "noindex"
    return response


def _read_frame(tx: Transaction, me: Scope) -> _Frame:
    return _Frame(
        waiting_count=proposals.count_decidable(tx, me) if me.may(APPROVE, OVERRIDE) else 0,
        sees_server=me.may(ADMIN) and organizations.may_see_server(tx, me),
    )


def _navigation(request: Request, me: Scope | None, frame: _Frame) -> list[Group]:
    if me is None:
        return []
    return navigation(
        me,
        route_path(request.scope),
        request.app.state.runtime.plugins.pages(),
        sees_server=frame.sees_server,
    )


def done(request: Request, path: str, notice: str = "", *, undo: str = "") -> Response:
    """Redirect to a page after a form; that page shows the notice.

    Args:
        request: The request with the form.
        path: The page's path without the server's prefix, with query and fragment. `page_of` must
            have encoded the names in it. Here only characters that no address can have are encoded.
        notice: A sentence for the person, cut to 500 characters; "" shows none. It is lost if the
            page is not opened within a minute.
        undo: The path, without the prefix, of a POST that undoes the form. The notice gets a button
            for it. "" shows no button.
    """
    response = RedirectResponse(
        f"{base_of(request)}{quote(path, safe='/?=&%#,:')}", _SEE_OTHER, HEADERS
    )
    if notice:
        text = urlsafe_b64encode(orjson.dumps({"words": notice[:500], "undo": undo})).decode()
        response.set_cookie(
            _NOTICE_COOKIE,
            f"{text}.{_signature(request, text)}",
            max_age=_NOTICE_SECONDS,
            path=f"{base_of(request)}/",
            httponly=True,
            samesite="strict",
        )
    return response


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form; a repeated name has the value of its last field.

    Args:
        request: The request with the form, URL-encoded.

    Raises:
        Invalid: The form is malformed, or has more than 1,000 fields.
    """
    return dict(await fields_of(request))


async def fields_of(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form in their order, in normal form and without marks for hidden text.

    Args:
        request: The request with the form, URL-encoded.

    Raises:
        Invalid: The form is malformed, or has more than 1,000 fields.
    """
    body = await request.body()
    try:
        fields = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError as error:
        raise Invalid(
            "This form cannot be read. Load the page again, then send it again."
        ) from error
    # In forms, browsers end lines with CR LF, but memory has LF. Editors show marks for hidden
    # text, which are removed here.
    return [(name, without_marks(normal_text(text))) for name, text in fields]


def require_id(text: str, kind: str) -> str:
    """Return an id from a form or a query, which can then be used in a path of the API.

    Any other text could lead to another route.

    Args:
        text: The text that a browser sent.
        kind: The first part of such ids, as in "agent-…".

    Raises:
        NotFound: The text is not an id of this kind.
    """
    if not is_any_id(text, kind):
        raise NotFound(f'"{text[:80]}" is not an id of this kind: {kind}. Load the page again.')
    return text


def typed_number(text: str) -> int | str | None:
    """Return a number from a form. Other text is returned as it is, and an empty text as None.

    A number with too many digits for any setting is returned as text, and the API refuses that.

    Args:
        text: The text of a field. Blanks around it are ignored.
    """
    text = text.strip()
    if text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    return text or None


def local_path(path: str) -> str:
    """Return the path if it is on this server, else an empty text.

    Browsers read "//host" as another server's address.

    Args:
        path: The path with its query, as a browser sent it.
    """
    return path if _LOCAL.fullmatch(path) else ""


def is_part(request: Request) -> bool:
    """Return True for a request by htmx, which inserts the answer into a page.

    Args:
        request: The request of a page.
    """
    return request.headers.get("hx-request") == "true"


def base_of(request: Request) -> str:
    """Return the path prefix under which a proxy or another app serves this server.

    Args:
        request: Any request.

    Returns:
        The prefix without a slash at its end; "" for none.
    """
    return str(request.scope.get("root_path", "")).rstrip("/")


def page_of(*parts: str) -> str:
    """Return the path of a page, without the server's prefix.

    >>> page_of("people", "what?", "facts")
    '/ui/people/what%3F/facts'

    Args:
        *parts: The parts of the path after `/ui`, such as names that a person chose. Each is
            percent-encoded here.
    """
    return "/".join(("/ui", *(quote(part, safe="") for part in parts)))


def address_of(path: str, **query: Any) -> str:
    """Return the path with these query parameters.

    Args:
        path: The path, perhaps with a query.
        **query: Parameters; None, "" and an empty list are left out, and another list repeats its
            parameter.
    """
    parameters = {name: field for name, field in query.items() if field not in (None, "", [])}
    if not parameters:
        return path
    separator = "&" if "?" in path else "?"
    return f"{path}{separator}{urlencode(parameters, doseq=True)}"


@cache
def environment() -> "Environment":
    from jinja2 import (
        ChoiceLoader,
        Environment,
        FileSystemLoader,
        PrefixLoader,
        StrictUndefined,
    )

    frame = Path(__file__).with_name("templates")
    features = Path(__file__).parents[1] / "features"
    # The name of a feature's template has the feature in front: "custom_tools.source/tool.html".
    # The pages' templates have only a file name.
    page_loaders = [
        FileSystemLoader(folder) for folder in (frame, features / "web" / "pages" / "templates")
    ]
    of_features = {
        ".".join(folder.relative_to(features).parts[:-1]): FileSystemLoader(folder)
        for folder in features.glob("**/templates")
        if any(folder.glob("*.html"))
    }
    loader = ChoiceLoader((*page_loaders, PrefixLoader(of_features)))
    jinja = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=filters.shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.globals |= {"static": statics.address, "address_of": address_of, "by_words": by_words}
    jinja.globals |= {"title_of": title_of, "own_reason": own_reason}
    jinja.filters |= filters.FILTERS
    return jinja


def _notice(request: Request) -> Mapping[str, str] | None:
    text, _, signature = request.cookies.get(_NOTICE_COOKIE, "").rpartition(".")
    if not text or not hmac.compare_digest(signature.encode(), _signature(request, text).encode()):
        return None
    notice: dict[str, str] = orjson.loads(urlsafe_b64decode(text))
    return notice


def _signature(request: Request, text: str) -> str:
    secret = Secret(request.app.state.runtime.settings.data_dir).derive("pages")
    return hmac.digest(secret, text.encode(), "sha256").hex()[:32]
