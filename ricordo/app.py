"""The composition root: opens the parts, builds the HTTP app, closes everything in order."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

from anyio.from_thread import start_blocking_portal
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import BaseRoute

from ricordo import __version__
from ricordo.agents import callbacks, deletion, note_taker, run_end, tracing
from ricordo.agents.run_end import close_all, close_expired
from ricordo.agents.run_watch import watched_runs
from ricordo.api.answers import AnswerBudget
from ricordo.api.authentication import Authentication
from ricordo.api.call import require_administrator
from ricordo.api.core_routers import CORE_ROUTERS, LABEL_ROUTERS
from ricordo.api.errors import install_error_handlers
from ricordo.api.guard import Guard
from ricordo.api.routing import Application, Routes, load_router
from ricordo.api.wire import ApiFormat
from ricordo.background import upkeep
from ricordo.background.postgres_worker import background_work
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, Unavailable
from ricordo.features import FEATURES
from ricordo.llm.chat import ChatModel, Embedder
from ricordo.llm.provider_table import Provider
from ricordo.llm.registry.models import Models
from ricordo.memory import normal_form
from ricordo.pages import statics
from ricordo.plugins import Plugins, load_plugins
from ricordo.runtime import Runtime, Wait
from ricordo.sandbox.service import Sandbox
from ricordo.search import pgvector
from ricordo.secret import FILE as SECRET_FILE
from ricordo.secret import load_secret, require_unneeded
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage import damage, keys, organizations
from ricordo.storage.engine.database import folders_of, open_store, queue_address
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.engine.work_folders import sweep
from ricordo.storage.schema.columns import metadata
from ricordo.tools.toolbox import Toolbox, sync_tools

# A search is a small computation. It takes ten times as much CPU time if OpenBLAS divides it among
# threads. numpy is imported after this line, and its OpenBLAS reads the variable then.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

log = logging.getLogger(__name__)
T = TypeVar("T")


@asynccontextmanager
async def open_runtime(
    settings: Settings,
    providers: ProviderSettings,
    *,
    extra_models: Sequence[ChatModel | Embedder] = (),
    plugins: Plugins | None = None,
    has_background_work: bool = True,
) -> AsyncIterator[Runtime]:
    """Open a runtime that is ready for turns, and close everything at the end.

    At the end, running turns get time to finish. Those that do not finish are stopped and marked as
    interrupted.

    Args:
        settings: The settings of the server.
        providers: The keys and addresses of model providers.
        extra_models: Models in addition to those of providers and plugins.
        plugins: The loaded plugins; None loads the built-in features and all installed plugins.
        has_background_work: Run jobs and schedules while the runtime is open.

    Raises:
        Invalid: A setting or a plugin cannot be used.
        Conflict: Another program has the database open.
        Unavailable: The database, or the secret key for its encrypted data, is missing or cannot be
            used.
    """
    plugins = plugins or load_plugins(FEATURES)
    sandbox = Sandbox(settings)
    toolbox = Toolbox(plugins.tools(), plugins.tool_runners(settings, sandbox))
    models = open_models(settings, providers, plugins, extra_models)
    indexes = plugins.vector_indexes(settings)
    kinds = plugins.memory_remotes()
    # From here on each opened part is closed, in the reverse order, whatever fails.
    async with AsyncExitStack() as opened:
        store = await asyncio.to_thread(open_store, settings)
        opened.push_async_callback(store.close)
        opened.push_async_callback(models.close)
        await asyncio.to_thread(sweep, *folders_of(settings))
        models.learned.keep_in(settings.data_dir)
        indexes |= await pgvector.index_of(store)
        runtime = Runtime(
            settings=settings,
            store=store,
            models=models,
            toolbox=toolbox,
            plugins=plugins,
            sandbox=sandbox,
            indexes=indexes,
            remotes=kinds,
            wire=ApiFormat(),
        )
        opened.push_async_callback(runtime.organization_providers.close)
        for index in indexes.values():
            opened.push_async_callback(index.close)
        opened_features = await opened.enter_async_context(AsyncExitStack())
        opened.push_async_callback(sandbox.close)
        opened.push_async_callback(toolbox.close)
        if settings.postgres_url:
            await opened.enter_async_context(watched_runs(runtime))
        opened.push_async_callback(finish_turns, runtime)
        await _prepare_database(runtime)
        for name, open_feature in plugins.openings():
            runtime.features[name] = await opened_features.enter_async_context(
                open_feature(runtime)
            )
        swept = (run_end.HANDLER,) if settings.postgres_url else ()
        core = (
            deletion.HANDLER,
            note_taker.HANDLER,
            tracing.HANDLER,
            callbacks.HANDLER,
            normal_form.HANDLER,
        )
        handlers = (*core, *upkeep.HANDLERS, *swept)
        if not has_background_work:
            yield runtime
            return
        async with background_work(runtime, handlers, address=queue_address(settings)):
            yield runtime


async def _prepare_database(runtime: Runtime) -> None:
    """Close runs of stopped servers, create tables of plugins, store the tools, load the secret.

    Raises:
        Invalid: RICORDO_MESSAGE_VECTORS names no index, or the key file holds no key.
        Unavailable: The secret key for encrypted data is missing, or cannot be read or created.
    """
    settings = runtime.settings
    store = runtime.store
    if settings.message_vectors not in ("native", *runtime.indexes):
        raise Invalid(
            f"RICORDO_MESSAGE_VECTORS names {settings.message_vectors}, which is not set up. "
            "Set it up, or remove the setting."
        )
    # On SQLite no other server can hold these runs. On PostgreSQL another server may hold them.
    closed = await store.write(close_expired if settings.postgres_url else close_all)
    if closed:
        log.warning("closed runs that a stopped server left open", extra={"runs": len(closed)})
    if tables := runtime.plugins.tables():
        await store.write(lambda tx: create_tables(tx, tables))
    await sync_all_tools(store, runtime.toolbox)
    if not (settings.data_dir / SECRET_FILE).exists():
        await _require_unneeded_secret(store, settings)
    await asyncio.to_thread(load_secret, settings.data_dir)


async def _require_unneeded_secret(store: Store, settings: Settings) -> None:
    """Raise Unavailable if the secret key is missing but the database has data encrypted with it.

    If the database was used before but has no encrypted data, the missing key may have signed
    callbacks and receipts. In this case, log that a new key is created.
    """
    require_unneeded(settings.data_dir, await store.read(keys.needing_secret))
    if await store.read(lambda tx: damage.some_conversations(tx, 0)):
        log.error(  # logged as an error, since commands do not show warnings
            "this database had no secret key, so a new one was created: callbacks and receipts "
            "are now signed with a new key. If you have the old secret.key, stop the server and "
            "put it back.",
            extra={"folder": str(settings.data_dir)},
        )


def create_tables(tx: Transaction, tables: Sequence[Any]) -> None:
    """Create missing tables of plugins; several servers may do so at once.

    Args:
        tx: The transaction, which locks out other servers on PostgreSQL.
        tables: Tables of SQLAlchemy, made with our `metadata`. Existing ones stay as they are.
    """
    if tx.connection.dialect.name == "postgresql":
        tx.connection.exec_driver_sql(
            "SELECT pg_advisory_xact_lock(hashtext('ricordo: tables of plugins'))"
        )
    metadata.create_all(tx.connection, tables=tables)


async def sync_all_tools(store: Store, toolbox: Toolbox) -> None:
    """Store the current built-in tools for each organization.

    Each organization is one transaction, so that other servers can write between them.

    Args:
        store: The database.
        toolbox: The tools of this server.
    """
    for organization_id in await store.read(organizations.every_id):
        await store.write(partial(sync_tools, scope=Scope(organization_id), toolbox=toolbox))


@contextmanager
def open_in_thread(
    settings: Settings, providers: ProviderSettings | None = None
) -> Iterator[tuple[Runtime, Wait]]:
    """Open a runtime in a separate thread, for programs without an event loop.

    The second value is a function that waits for a coroutine in that thread.

    Args:
        settings: The settings of the server.
        providers: The keys and addresses of model providers; None reads them from the environment.

    Raises:
        Invalid: A setting or a plugin cannot be used.
        Conflict: Another program has the database open.
        Unavailable: The database or the secret key cannot be used.
    """
    is_open = True
    opening = open_runtime(settings, providers or ProviderSettings())
    with (
        start_blocking_portal(name="ricordo runtime") as portal,
        portal.wrap_async_context_manager(opening) as runtime,
    ):

        def wait(work: Coroutine[Any, Any, T]) -> T:
            if not is_open:
                work.close()
                raise Unavailable(
                    "This runtime was closed. Use it inside its `with` block, or open another."
                )
            result: T = portal.start_task_soon(lambda: work).result()
            return result

        try:
            yield runtime, wait
        finally:
            is_open = False


def open_models(
    settings: Settings,
    providers: ProviderSettings,
    plugins: Plugins,
    extra_models: Sequence[ChatModel | Embedder] = (),
) -> Models:
    """Return the models of configured providers and of plugins, without calling any.

    Args:
        settings: The settings of the server.
        providers: The keys and addresses of model providers.
        plugins: The loaded plugins, which may offer providers and models.
        extra_models: Further chat models and embedding models.
    """
    offered = plugins.providers()
    models = Models(settings, providers, [item for item in offered if isinstance(item, Provider)])
    for model in (*(item for item in offered if not isinstance(item, Provider)), *extra_models):
        if isinstance(model, Embedder):
            models.embedders.add(model)
        else:
            models.add(model)
    return models


def create_app(
    settings: Settings,
    providers: ProviderSettings | None = None,
    *,
    extra_models: Sequence[ChatModel | Embedder] = (),
) -> FastAPI:
    """Return the whole server as an ASGI app.

    Its parts are opened when the app's lifespan begins.

    Args:
        settings: The settings of the server.
        providers: The keys and addresses of model providers; None reads them from the environment.
        extra_models: Models in addition to those of providers and plugins.

    Raises:
        Invalid: A plugin cannot be used.
    """
    plugins = load_plugins(FEATURES)
    routers = open_routers(plugins)

    @asynccontextmanager
    async def lifespan(app: Application) -> AsyncIterator[None]:
        async with open_runtime(
            settings,
            providers or ProviderSettings(),
            extra_models=extra_models,
            plugins=plugins,
        ) as runtime:
            await authentication.require_key(runtime)
            app.state.runtime = runtime
            # Providers are asked while the server already answers, so they never delay a start.
            looking = app.state.looking = asyncio.create_task(runtime.models.find_default())
            try:
                yield
            finally:
                app.stop_document()
                looking.cancel()
                await asyncio.wait((looking,))

    guarded = [router for router in routers if isinstance(router, Routes)]
    app = Application(
        settings.root_path,
        AnswerBudget(settings.max_answer_mb, settings.max_answers_mb),
        title="Ricordo",
        version=__version__,
        description="AI agents whose memory belongs to the people it is about. "
        "Compatible with letta-client.",
        lifespan=lifespan,
        # The framework's pages would load scripts from other hosts. The routes of
        # `features/web/api_docs` do not.
        docs_url=None,
        redoc_url=None,
        max_body_size=settings.max_body_mb * 1024 * 1024,
        # All servers of a process share the route objects. `include_router` would copy them.
        routes=[route for router in guarded for route in router.routes],
    )
    for router in routers:
        if not isinstance(router, Routes):
            include_plain(app, router)
    app.state.authentication = authentication = Authentication(settings)
    app.add_middleware(
        Guard,
        settings=settings,
        authentication=authentication,
        own_names=_own_names(app.routes),
        **_open_routes(guarded),
    )
    for middleware in plugins.middleware():
        app.add_middleware(middleware)
    install_error_handlers(app)
    return app


def open_routers(plugins: Plugins) -> list[APIRouter]:
    """Import the modules of routes, and return all routers in the order of their matching.

    Args:
        plugins: The loaded plugins. Modules that they name are imported now.
    """
    offered = [
        load_router(router) if isinstance(router, str) else router for router in plugins.routes()
    ]
    # The login page's router answers for every path below /ui that no other router has.
    offered.sort(key=lambda router: bool(getattr(router, "login_page", "")))
    first = [router for router in offered if getattr(router, "goes_first", False)]
    rest = [router for router in offered if router not in first]
    return [*first, *CORE_ROUTERS, statics.router, *rest, *LABEL_ROUTERS]


def include_plain(app: FastAPI, router: APIRouter) -> None:
    """Include a plugin's router that declares no scopes; its routes are for administrators.

    Args:
        app: The app, which gets the routes.
        router: A router of FastAPI.

    Raises:
        Invalid: One of its routes is not FastAPI's, so that it cannot be guarded.
    """
    for context in iter_route_contexts(router.routes):
        if not isinstance(context.original_route, APIRoute):
            raise Invalid(
                f"The plugin's route {context.path} has no authentication. Add it with FastAPI's "
                "decorators."
            )
    app.include_router(router, dependencies=[Depends(require_administrator)])


def _open_routes(routers: Sequence[Routes]) -> dict[str, Any]:
    """Return the guard's options: its open routes, and its pages for callers without a key."""
    return {
        "open_paths": [path for router in routers for path in router.open_paths],
        "login": next((router.login_page for router in routers if router.login_page), ""),
        "resources": {
            path: metadata for router in routers for path, metadata in router.resources.items()
        },
    }


def _own_names(routes: Sequence[BaseRoute]) -> set[str]:
    """Return the first names below `/v1/` of the routes whose refusals lack OpenAI's form."""
    names: set[str] = set()
    # A plugin's router without scopes is one route of the app, and has no path.
    for context in iter_route_contexts(routes):
        path = context.path or ""
        has_openai_errors = getattr(context.original_route, "has_openai_errors", False)
        if path.startswith("/v1/") and not has_openai_errors:
            names.add(path.split("/")[2])
    return names


async def finish_turns(runtime: Runtime, *, must_hurry: Callable[[], bool] = lambda: False) -> None:
    """Accept no new turn, let running turns finish for a while, then stop them.

    The end of each turn is saved.

    Args:
        runtime: The server's parts; its setting `shutdown_grace` is the time for running turns.
        must_hurry: Called often; if it returns True, running turns are stopped at once.
    """
    runtime.is_stopping = True
    if runtime.live:
        log.info("waiting for running turns", extra={"turns": len(runtime.live)})
    deadline = time.monotonic() + runtime.settings.shutdown_grace
    while runtime.live and time.monotonic() < deadline and not must_hurry():  # noqa: ASYNC110 - a signal sets it
        await asyncio.sleep(0.05)
    if runtime.live:
        log.warning("stopping turns that did not finish", extra={"turns": len(runtime.live)})
        await asyncio.gather(*(turn.cancel() for turn in list(runtime.live.values())))
    await asyncio.gather(*(recording.finish() for recording in list(runtime.recordings.values())))
    for closing in runtime.unended.values():  # the next start closes these runs
        closing.cancel()
    await asyncio.gather(*runtime.unended.values(), return_exceptions=True)
