"""Work that a server does once in its life, done once in the life of the tests: a test opens a new store in a moment, and what
the store before it has compiled and loaded is as good for the next, just as it is for the thousandth request of a server.

What comes out is the product's own; only how long it is kept is changed.
"""

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from sqlalchemy import Dialect, Engine

from ricordo import app, plugins
from ricordo.llm.embedding import embedded
from ricordo.llm.embedding.embedded import RelatedWords
from ricordo.settings import Settings
from ricordo.storage.engine import sqlite, store
from ricordo.storage.engine.sqlite import open_sqlite
from ricordo.storage.engine.statements import Statements
from ricordo.storage.engine.store import Store
from ricordo.tools import toolbox

LOAD = embedded._load  # for tests of the loading itself


@contextmanager
def shared_work() -> Iterator[None]:
    """Share what is compiled, the embedding model, tools, plugins and the schema; read no certificates, which tests need not."""
    with pytest.MonkeyPatch.context() as patch:
        share(patch)
        yield


def share(patch: pytest.MonkeyPatch) -> None:
    """Share it until the patch is undone. No write is slow enough to be warned of, since the machine may be busy."""
    _share_statements(patch)
    _share_compiler(patch)
    _share_embedding_model(patch)
    _share_tools(patch)
    _share_plugins(patch)
    _share_schema(patch)
    patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_args, **_options: None)
    patch.setattr(store, "SLOW_WRITE", 3600)


def _share_statements(patch: pytest.MonkeyPatch) -> None:
    """Let all stores on databases of one kind share their prepared statements, which it takes tens of milliseconds to compile."""
    prepared: dict[str, WeakKeyDictionary[Any, Any]] = {}
    bulk: dict[str, WeakKeyDictionary[Any, Any]] = {}
    prepare = Statements.__init__

    def share(self: Statements, dialect: Dialect) -> None:
        prepare(self, dialect)
        self._prepared = prepared.setdefault(dialect.name, self._prepared)
        self._bulk = bulk.setdefault(dialect.name, self._bulk)

    patch.setattr(Statements, "__init__", share)


def _share_compiler(patch: pytest.MonkeyPatch) -> None:
    """Let all engines of SQLite share what SQLAlchemy compiles for the statements that are not prepared."""
    make = sqlite.make_engine
    first = make(Path(":memory:"), "normal")
    first.connect().close()  # the first connection tells the dialect what it speaks to
    first._compiled_cache.capacity = 5000  # type: ignore[union-attr]

    def share(path: Path, durability: str) -> Engine:
        engine = make(path, durability)
        engine.dialect = engine.pool._dialect = first.dialect
        engine._compiled_cache = first._compiled_cache
        return engine

    patch.setattr(sqlite, "make_engine", share)


def _share_embedding_model(patch: pytest.MonkeyPatch) -> None:
    """Let all models that read the files of the installed package share them, and the words they find in them."""
    loaded, words = cache(lambda: LOAD(None)), cache(lambda: RelatedWords(*loaded()))

    def know_once(tokenizer: Any, table: Any) -> Any:
        return words() if tokenizer is loaded()[0] else RelatedWords(tokenizer, table)

    patch.setattr(embedded, "_load", lambda folder: LOAD(folder) if folder else loaded())
    patch.setattr(embedded, "RelatedWords", know_once)


def _share_tools(patch: pytest.MonkeyPatch) -> None:
    """Let all servers share the models of their tools' arguments, which follow from the functions alone."""
    make, describe = cache(toolbox.arguments_model), toolbox.describe
    described = cache(lambda function: describe(function, make(function)))
    patch.setattr(toolbox, "arguments_model", make)
    patch.setattr(toolbox, "describe", lambda function, _arguments: described(function))


def _share_plugins(patch: pytest.MonkeyPatch) -> None:
    """Let all servers share the list of installed plugins, as long as the same packages are on the path."""
    read = cache(lambda _path, group: metadata.entry_points(group=group))
    patch.setattr(plugins, "entry_points", lambda group: read(tuple(sys.path), group))


def _share_schema(patch: pytest.MonkeyPatch) -> None:
    """Let a server that starts on an empty folder copy a file with the schema in it, which is faster than to migrate a new one."""
    open_store = app.open_store

    def share(settings: Settings) -> Store:
        path = settings.database_path
        if settings.postgres_url is None and not path.exists() and path.parent.is_dir():
            path.write_bytes(_schema())
            path.chmod(0o600)
        return open_store(settings)

    patch.setattr(app, "open_store", share)


@cache
def _schema() -> bytes:
    """A file of SQLite with the schema in it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ricordo.db"
        open_sqlite(path)._close()
        return path.read_bytes()
