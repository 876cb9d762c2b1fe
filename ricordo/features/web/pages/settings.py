"""The administrator's page: users, keys, and the server's settings."""

from fastapi import Request, Response

from ricordo import __version__
from ricordo.api.routing import needs
from ricordo.domain.scope import ADMIN, REQUEST_SCOPE, ROLE_SCOPES
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, form_of, render, typed_number
from ricordo.storage import conversation_overviews

router = Pages("/ui/settings")
_PAGE = 50
_OF_KEYS = ("user", "name", "role", "requests_per_minute", "max_body_bytes")


@router.get("")
@needs(ADMIN)
async def show_settings(request: Request) -> Response:
    return await _page(request)


@router.post("/keys")
@needs(ADMIN)
async def make_key(request: Request) -> Response:
    """Make a key, and show it once."""
    form = await form_of(request)
    body = {name: form[name].strip() for name in _OF_KEYS if form.get(name, "").strip()}
    if days := form.get("days", "").strip():
        # The API explains a wrong number.
        number = typed_number(days)
        body["expires_in"] = str(number * 86_400) if isinstance(number, int) else days
    key = await Api(request).ask("POST", "/v1/keys/", body)
    return await _page(request, new_key=key)


@router.post("/keys/{key_id}/revoke")
@needs(ADMIN)
async def revoke_key(request: Request, key_id: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/keys/{key_id}")
    return done(request, "/ui/settings", "The key was revoked. It no longer works.")


@router.post("/users")
@needs(ADMIN)
async def add_user(request: Request) -> Response:
    form = await form_of(request)
    body = {name: form[name].strip() for name in ("name", "email") if form.get(name, "").strip()}
    user = await Api(request).ask("POST", "/v1/users/", body)
    return done(request, "/ui/settings", f"{user['name']} was added.")


@router.post("/users/{user}")
@needs(ADMIN)
async def change_user(request: Request, user: str) -> Response:
    """Rename a user, or disable or enable the user."""
    form = await form_of(request)
    body: dict[str, object] = {}
    if name := form.get("name", "").strip():
        body["name"] = name
    if form.get("disabled") in ("yes", "no"):
        body["disabled"] = form["disabled"] == "yes"
    changed = await Api(request).ask("PATCH", f"/v1/users/{user}", body)
    return done(request, "/ui/settings", f"{changed['name']} was changed.")


async def _page(request: Request, new_key: object = None) -> Response:
    api = Api(request)
    runtime = request.app.state.runtime
    url = runtime.settings.database_url
    is_postgres = url is not None and url.get_secret_value().startswith("postgres")
    after = {name: request.query_params.get(name) or None for name in ("keys", "users")}
    # The API refuses callers who may not see keys or users.
    keys = await api.get("/v1/keys/", limit=_PAGE + 1, after=after["keys"])
    users = await api.get("/v1/users/", limit=_PAGE + 1, after=after["users"])
    older_users = older_keys = ""
    if users[_PAGE:]:
        older_users = address_of("/ui/settings", **{**after, "users": users[_PAGE - 1]["id"]})
    if keys[_PAGE:]:
        older_keys = address_of("/ui/settings", **{**after, "keys": keys[_PAGE - 1]["id"]})
    scope = request.scope[REQUEST_SCOPE]
    user_ids = [key["user_id"] for key in keys]
    return await render(
        request,
        "settings.html",
        users=users[:_PAGE],
        older_users=older_users,
        names=await runtime.store.read(
            lambda tx: conversation_overviews.names_of_users(tx, scope, user_ids)
        ),
        keys=keys[:_PAGE],
        older_keys=older_keys,
        roles=sorted(ROLE_SCOPES),
        made=new_key,
        version=__version__,
        settings=runtime.settings,
        database="PostgreSQL" if is_postgres else "SQLite",
        embedding=runtime.models.embedders.default_handle(),
        plugins=runtime.plugins.names,
    )
