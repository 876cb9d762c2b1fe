"""The embedded API: a server in this process, without a port, and its official client.

Programs use it by `ricordo.open` and `ricordo.open_async`.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI

from ricordo.app import create_app
from ricordo.errors import Invalid, Unsupported
from ricordo.llm.chat import ChatModel, Embedder
from ricordo.settings import NO_PORT, Settings, load_settings

try:
    import httpx
    from letta_client import AsyncLetta, Letta

    from ricordo.embedded.transport import ADDRESS, AppTransport, PortalTransport
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("httpx", "letta_client"):
        raise
    raise Unsupported(
        "ricordo.open provides a client of letta-client, which is not installed. "
        'Install it: pip install "ricordo[embedded]"'
    ) from error

# Settings that `open` decides.
_FIXED = frozenset(("data_dir", "host", "port", "root_path"))


@contextmanager
def open_client(
    folder: str | PathLike[str],
    models: Sequence[ChatModel | Embedder],
    options: Mapping[str, Any],
) -> Iterator[Letta]:
    """Run a server in a separate thread, and provide its client.

    Args:
        folder: The data folder, which is created if missing.
        models: Chat models and embedding models in addition to those of the settings.
        options: Settings by name, which override the environment. Settings of the address and the
            folder are refused.

    Raises:
        Invalid: A setting is wrong, unknown or refused.
        Conflict: Another program has the database of this folder open.
        Unavailable: The database or the secret key cannot be used.
    """
    app = _make_app(folder, models, options)
    # Close the server without the error of the `with` block, so that it stops normally.
    with ExitStack() as parts:
        portal = parts.enter_context(start_blocking_portal(name="ricordo"))
        server = parts.enter_context(ExitStack())
        server.enter_context(portal.wrap_async_context_manager(app.router.lifespan_context(app)))
        transport = AppTransport(app)
        server.callback(portal.call, transport.aclose)
        http = httpx.Client(
            transport=PortalTransport(portal, transport), follow_redirects=True, trust_env=False
        )
        client = Letta(base_url=ADDRESS, api_key=_key_of(app), http_client=http)
        server.callback(client.close)
        try:
            yield client
        finally:
            server.close()


@asynccontextmanager
async def open_async_client(
    folder: str | PathLike[str],
    models: Sequence[ChatModel | Embedder],
    options: Mapping[str, Any],
) -> AsyncIterator[AsyncLetta]:
    """Run a server in the running event loop, and provide its client.

    Args:
        folder: The data folder, which is created if missing.
        models: Chat models and embedding models in addition to those of the settings.
        options: Settings by name, which override the environment. Settings of the address and the
            folder are refused.

    Raises:
        Invalid: A setting is wrong, unknown or refused.
        Conflict: Another program has the database of this folder open.
        Unavailable: The database or the secret key cannot be used.
    """
    app = _make_app(folder, models, options)
    server = AsyncExitStack()
    try:
        await server.enter_async_context(app.router.lifespan_context(app))
        transport = AppTransport(app)
        http = httpx.AsyncClient(transport=transport, follow_redirects=True, trust_env=False)
        client = AsyncLetta(base_url=ADDRESS, api_key=_key_of(app), http_client=http)
        server.push_async_callback(client.close)
        yield client
    finally:
        # Close the server without the error of the `with` block, so that it stops normally.
        await server.aclose()


def _make_app(
    folder: str | PathLike[str],
    models: Sequence[ChatModel | Embedder],
    options: Mapping[str, Any],
) -> FastAPI:
    """Return the app for this folder. Raises Invalid for a wrong or unknown setting."""
    for name in options:
        if name in _FIXED or name not in Settings.model_fields:
            raise Invalid(
                f"ricordo.open takes no setting {name}. `ricordo settings` lists all settings; "
                "settings of features are read from the environment."
            )
    settings, providers = load_settings(
        data_dir=Path(folder), host="127.0.0.1", port=NO_PORT, root_path="", **options
    )
    return create_app(settings, providers, extra_models=models)


def _key_of(app: FastAPI) -> str:
    key: str = app.state.authentication.make_process_key()
    return key
