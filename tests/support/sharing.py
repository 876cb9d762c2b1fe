"""Work that a server does once in its life, done once in the life of the tests: a test opens a new store in a moment, and what
the store before it has compiled and loaded is as good for the next, just as it is for the thousandth request of a server.

What comes out is the product's own; only how long it is kept is changed.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from sqlalchemy import Dialect, Engine

from ricordo.llm.embedding import embedded
from ricordo.llm.embedding.embedded import RelatedWords
from ricordo.storage.engine import sqlite
from ricordo.storage.engine.statements import Statements

LOAD = embedded._load  # for tests of the loading itself


@contextmanager
def shared_work() -> Iterator[None]:
    """Share prepared statements, compiled ones and the embedding model; read no certificates, which tests need not."""
    with pytest.MonkeyPatch.context() as patch:
        _share_statements(patch)
        _share_compiler(patch)
        _share_embedding_model(patch)
        patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_args, **_options: None)
        yield


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
