"""Work that a server does once, shared by all servers of a test run.

A new store uses the statements that an earlier store compiled, just as later requests use those of
earlier ones in a server. The product's code makes the shared objects; they only live longer.
Some waits are shorter, certificates are not read, and slow writes give no warning.
"""

import asyncio
import os
import shutil
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakKeyDictionary

import httpx
import httpx2
import pytest
import uvicorn.server
from pydantic_settings import DotEnvSettingsSource, EnvSettingsSource
from sqlalchemy import Dialect, Engine

from ricordo import installed_plugins
from ricordo.api import openapi_document
from ricordo.api.routing import Application, GuardedRoute
from ricordo.llm.embedding import embedded
from ricordo.llm.embedding.embedded import RelatedWords
from ricordo.search import write_buffer
from ricordo.storage.engine import sqlite, store
from ricordo.storage.engine.statements import Statements
from ricordo.storage.schema.columns import metadata
from ricordo.tools import toolbox

LOAD = embedded._load  # used by tests of the loading itself
SLEEP_SECONDS = 0.02
MAKE_PRIVATE_FILE = sqlite.make_private_file  # used by tests of a database's first start


@contextmanager
def shared_work() -> Iterator[None]:
    """Share the objects that are slow to make, such as statements and the embedding model.

    Certificates are not read.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        TemporaryDirectory(prefix="ricordo-empty-") as folder,
    ):
        share(patch, Path(folder))
        yield


def share(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Share the work until the patch is undone.

    No write counts as slow enough for a warning, since the machine may be busy.
    """
    _share_statements(patch)
    _share_compiler(patch)
    _share_empty_database(patch, folder)
    _share_tools(patch)
    _share_entry_points(patch)
    _share_embedding_model(patch)
    _share_document(patch)
    _share_environment(patch)
    _share_addresses(patch)
    _hurry_uvicorn(patch)
    patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_args, **_options: None)
    patch.setattr(store, "SLOW_WRITE", 3600)
    # Normally the index is flushed half a second after a message, which may be while a test counts
    # statements. Tests of the delay restore it.
    patch.setattr(write_buffer, "QUICK_DELAY", write_buffer.FLUSH_DELAY)


def _share_statements(patch: pytest.MonkeyPatch) -> None:
    """Let stores of one kind share prepared statements, which compile slowly."""
    prepared: dict[str, WeakKeyDictionary[Any, Any]] = {}
    bulk: dict[str, WeakKeyDictionary[Any, Any]] = {}
    prepare = Statements.__init__

    def share(self: Statements, dialect: Dialect) -> None:
        prepare(self, dialect)
        self.prepared = prepared.setdefault(dialect.name, self.prepared)
        self._bulk = bulk.setdefault(dialect.name, self._bulk)

    patch.setattr(Statements, "__init__", share)


def _share_compiler(patch: pytest.MonkeyPatch) -> None:
    """Let SQLite engines share SQLAlchemy's compiled statements, except prepared ones."""
    make = sqlite.make_engine
    first = make(Path(":memory:"), "normal")
    first.connect().close()  # The first connection tells the dialect the server's version.
    first._compiled_cache.capacity = 5000  # type: ignore[union-attr]

    def share(path: Path, durability: str) -> Engine:
        engine = make(path, durability)
        engine.dialect = engine.pool._dialect = first.dialect
        engine._compiled_cache = first._compiled_cache
        return engine

    patch.setattr(sqlite, "make_engine", share)


def _share_empty_database(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Copy new SQLite files from an empty database, which saves a third of the time of a start."""

    def make_copy(path: Path) -> None:
        is_new = not path.exists()
        MAKE_PRIVATE_FILE(path)
        if is_new and path.parent != folder:
            shutil.copyfile(empty(), path)

    def empty() -> Path:
        # Modules that are imported later add more tables.
        place = folder / f"{len(metadata.tables)}.db"
        if not place.exists():
            new = folder / f"{os.getpid()}.db"  # forks of one process may come here at once
            sqlite.open_sqlite(new)._close()
            new.replace(place)
        return place

    patch.setattr(sqlite, "make_private_file", make_copy)


def _share_tools(patch: pytest.MonkeyPatch) -> None:
    """Let servers share the models of tool arguments, another third of the time of a start."""
    models: WeakKeyDictionary[Callable[..., Any], Any] = WeakKeyDictionary()
    schemas: WeakKeyDictionary[Callable[..., Any], Any] = WeakKeyDictionary()
    arguments_model, describe = toolbox.arguments_model, toolbox.describe

    def model_once(function: Callable[..., Any]) -> Any:
        if function not in models:
            models[function] = arguments_model(function)
        return models[function]

    def describe_once(function: Callable[..., Any], arguments: Any) -> Any:
        if function not in schemas:
            schemas[function] = describe(function, arguments)
        return schemas[function]

    patch.setattr(toolbox, "arguments_model", model_once)
    patch.setattr(toolbox, "describe", describe_once)


def _share_entry_points(patch: pytest.MonkeyPatch) -> None:
    """Read the entry points of all installed packages once for each search path."""
    read = installed_plugins.entry_points

    @cache
    def read_once(_path: tuple[str, ...], group: str) -> Any:
        return read(group=group)

    patch.setattr(
        installed_plugins, "entry_points", lambda *, group: read_once(tuple(sys.path), group)
    )


def _share_embedding_model(patch: pytest.MonkeyPatch) -> None:
    """Let all models share the files of the installed package and the words in them."""
    loaded, words = cache(lambda: LOAD(None)), cache(lambda: RelatedWords(*loaded()))

    def know_once(tokenizer: Any, table: Any) -> Any:
        return words() if tokenizer is loaded()[0] else RelatedWords(tokenizer, table)

    patch.setattr(embedded, "_load", lambda folder: LOAD(folder) if folder else loaded())
    patch.setattr(embedded, "RelatedWords", know_once)


def _share_document(patch: pytest.MonkeyPatch) -> None:
    """Let apps with the same routes share their OpenAPI document, since making it is slow."""
    documents: dict[Any, dict[str, Any]] = {}
    make = Application.openapi

    def share(self: Application) -> dict[str, Any]:
        guarded = tuple(id(route) for route in self.routes if isinstance(route, GuardedRoute))
        others = tuple(
            getattr(route, "path", "")
            for route in self.routes
            if not isinstance(route, GuardedRoute)
        )
        key = (self.title, self.version, self.description, self.root_path, guarded, others)
        if key not in documents:
            documents[key] = make(self)
        return documents[key]

    patch.setattr(Application, "openapi", share)
    # A child process would make a separate copy.
    patch.setattr(openapi_document, "MAY_FORK", False)


def _share_environment(patch: pytest.MonkeyPatch) -> None:
    """Read each kind of settings once from the same variables, since reading is slow."""
    found: dict[Any, dict[str, Any]] = {}

    def once(look: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
        def look_once(self: EnvSettingsSource) -> dict[str, Any]:
            key = (
                look,
                self.settings_cls,
                type(self),
                self.env_prefix,
                frozenset(self.env_vars.items()),
            )
            if key not in found:
                found[key] = look(self)
            return deepcopy(found[key])

        return look_once

    for source in (EnvSettingsSource, DotEnvSettingsSource):
        patch.setattr(source, "__call__", once(source.__call__))


def _share_addresses(patch: pytest.MonkeyPatch) -> None:
    """Let clients parse each address once; normally they parse it several times for a request."""
    for urls, parsing in ((httpx._urls, httpx._urlparse), (httpx2._urls, httpx2._urlparse)):
        parse_once = lru_cache(maxsize=4096)(parsing.urlparse)
        patch.setattr(parsing, "urlparse", parse_once)
        patch.setattr(urls, "urlparse", parse_once)


class _ShortSleeps:
    """The module `asyncio`, whose sleeps last no longer than SLEEP_SECONDS."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, SLEEP_SECONDS))


def _hurry_uvicorn(patch: pytest.MonkeyPatch) -> None:
    """Let servers check for a stop every 20 ms instead of every 100 ms."""
    patch.setattr(uvicorn.server, "asyncio", _ShortSleeps())
