"""Many rows in one statement.

The database stores the same values in the same order as with one statement for each row.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    insert,
    select,
    text,
)

from ricordo.errors import Invalid
from ricordo.storage.engine.postgres import PostgresStore
from ricordo.storage.engine.store import Transaction
from tests.seams.stores import count_statements

DATABASES = ("postgresql",)
_FREE = MetaData()
things = Table(
    "things",
    _FREE,
    Column("seq", Integer, primary_key=True),
    Column("name", String),
    Column("words", Text),
    Column("number", BigInteger),
    Column("flag", Boolean),
    Column("share", Float),
    Column("data", LargeBinary),
    Column("settings", JSON),
    Column("error", JSON(none_as_null=True)),
)
prices = Table("prices", _FREE, Column("price", Numeric(10, 2)))
_WHOLE, _ALL = insert(things), select(things).where(text("1 = 1")).order_by(things.c.seq)
_PLAIN = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_PLAIN, inner, max_size=3),
    max_leaves=5,
)
_ROW = st.fixed_dictionaries(
    {
        "name": st.none() | _PLAIN,
        "words": st.none() | _PLAIN,
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "flag": st.none() | st.booleans(),
        "share": st.none() | st.floats(allow_nan=False),
        "data": st.none() | st.binary(),
        "settings": _JSON,
        "error": st.none() | _JSON,
    }
)


@pytest.fixture
async def tables(store: PostgresStore) -> AsyncIterator[None]:
    await store.write(lambda tx: _FREE.create_all(tx.connection))
    yield
    await store.write(lambda tx: _FREE.drop_all(tx.connection))


@pytest.mark.usefixtures("tables")
async def test_rows_stored_together_equal_rows_stored_one_by_one(
    store: PostgresStore,
) -> None:
    def read(tx: Transaction) -> list[dict[str, Any]]:
        return [dict(row._mapping) for row in tx.connection.execute(_ALL)]

    def stored(rows: list[dict[str, Any]], together: bool) -> Any:
        def work(tx: Transaction) -> list[dict[str, Any]]:
            tx.connection.execute(things.delete())
            numbered = [row | {"seq": number} for number, row in enumerate(rows)]
            for some in [numbered] if together else [[row] for row in numbered]:
                assert tx.run(_WHOLE, some) == len(some)
            return read(tx)

        return work

    examples: list[list[dict[str, Any]]] = []

    @given(st.lists(_ROW, min_size=2, max_size=4))
    def collect(rows: list[dict[str, Any]]) -> None:
        examples.append(rows)

    collect()
    for rows in examples:
        alone, together = (
            await store.write(stored(rows, False)),
            await store.write(stored(rows, True)),
        )
        wanted = [
            {name: number if name == "seq" else row[name] for name in things.c.keys()}  # noqa: SIM118 - no mapping
            for number, row in enumerate(rows)
        ]
        # True differs from 1, and JSON keeps the order of its keys.
        assert repr(alone) == repr(together) == repr(wanted)


@pytest.mark.usefixtures("tables")
async def test_one_statement_stores_many_rows_numbered_in_order(
    store: PostgresStore,
) -> None:
    rows = [{"name": f"row {number % 7}", "number": number} for number in range(700)]
    with count_statements(store) as counted:
        await store.write(lambda tx: tx.run(insert(things), rows))
    assert len(counted.statements) == 1
    found = await store.read(lambda tx: tx.connection.execute(_ALL).all())
    assert [(row.name, row.number) for row in found] == [
        (row["name"], row["number"]) for row in rows
    ]


@pytest.mark.usefixtures("tables")
async def test_values_that_cannot_be_stored_are_refused_and_no_row_is_kept(
    store: PostgresStore,
) -> None:
    for bad in (
        {"number": 2**63},
        {"number": -(2**63) - 1},
        {"words": "half of \ud83d"},
        {"words": "a\0b"},
    ):
        rows = [{"number": 1, "words": "fine"}, {"number": 2, "words": "fine", **bad}]
        with pytest.raises(Invalid):
            await store.write(lambda tx, rows=rows: tx.run(insert(things), rows))  # type: ignore[misc]
    assert await store.read(lambda tx: tx.connection.execute(_ALL).all()) == []


@pytest.mark.usefixtures("tables")
async def test_rows_with_a_column_of_another_type_are_stored(store: PostgresStore) -> None:
    with count_statements(store) as counted:
        await store.write(lambda tx: tx.run(insert(prices), [{"price": 1}, {"price": 2}]))
    assert len(counted.statements) == 1
    found = await store.read(
        lambda tx: tx.connection.execute(select(prices.c.price)).scalars().all()
    )
    assert sorted(map(int, found)) == [1, 2]
