"""The kinds of columns for both databases, each with its erasure rule.

When a user is forgotten, the user's rows are deleted. `info["erasure"]` of a column, or of its
table as the default, says how the column can refer to a user:

- `delete`: it holds the user's texts or identity. It is deleted with the row.
- `blank`: it names the user in rows that stay, such as "created by". The name is replaced.
- `keep`: it holds nothing about a user. Columns of numbers, timestamps and ids of other rows have
  this rule by their kind.

The condition of a partial index is also in its `info["where"]`, where `postgres.py` reads it.
SQLAlchemy's own argument for it would import PostgreSQL's dialect at every start.
"""

import re
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem

from ricordo.domain.text import normal_name, normal_text

metadata = sa.MetaData(
    naming_convention={
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
    }
)
Erasure = Literal["delete", "blank", "keep"]
KEEP: dict[str, Erasure] = {"erasure": "keep"}
_Json = sa.JSON()
_UUID = re.compile(r"-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_Seq = sa.Integer().with_variant(sa.BigInteger(), "postgresql")


class NormalText(sa.TypeDecorator[str]):
    """Text in normal form, both when it is stored and when it is compared."""

    impl = sa.Text
    cache_ok = True
    normalise = staticmethod(normal_text)

    def bind_processor(self, dialect: Any) -> Any:  # noqa: ARG002 - SQLAlchemy's
        """Return the function that brings a text into its normal form.

        Args:
            dialect: Not used.
        """
        normalise = self.normalise
        return lambda text: normalise(text) if isinstance(text, str) else text


class NormalName(NormalText):
    """A name in normal form, used to look things up or to tell them apart."""

    cache_ok = True
    normalise = staticmethod(normal_name)


class NormalTag(NormalName):
    """A name in a column that was created with the type VARCHAR."""

    impl = sa.String  # type: ignore[assignment]  # a Text is a String
    cache_ok = True


def as_stored(column: sa.Column[Any]) -> Any:
    """Return the type of the column's stored values, without a normal form.

    Args:
        column: The column; a type without a normal form is returned as it is.
    """
    kind: Any = column.type
    if isinstance(kind, NormalText):
        return kind.impl_instance
    return kind


class PackedId(sa.TypeDecorator[str]):
    """An id such as `run-<uuid>` in 17 bytes instead of 40, for long tables.

    SQL can compare it with a parameter, but not with an id in a column of text.
    """

    impl = sa.LargeBinary
    cache_ok = True

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def bind_processor(self, dialect: Any) -> Any:  # noqa: ARG002 - SQLAlchemy's
        """Return the function that packs an id for the database.

        Args:
            dialect: Not used.
        """
        return self.pack  # every driver takes bytes unchanged

    def result_processor(self, dialect: Any, coltype: Any) -> Any:  # noqa: ARG002 - SQLAlchemy's
        """Return the function that unpacks an id of the database.

        Args:
            dialect: Not used.
            coltype: Not used.
        """
        return self.unpack

    def pack(self, id: str | None) -> bytes | None:
        """Return the stored form of the id.

        It is a NUL and the uuid's bytes. An id of any other form is stored as its letters, of
        which the first is no NUL.

        Args:
            id: An id; None stays None.
        """
        if id is None:
            return None
        if id.startswith(self.kind) and _UUID.fullmatch(id, len(self.kind)):
            return b"\0" + bytes.fromhex(id[len(self.kind) + 1 :].replace("-", ""))
        return id.encode()

    def unpack(self, stored: bytes | None) -> str | None:
        """Return the id of its stored form.

        Args:
            stored: The bytes that `pack` returned; None stays None.
        """
        if stored is None:
            return None
        if stored[:1] != b"\0":
            return stored.decode()
        digits = stored[1:].hex()
        return (
            f"{self.kind}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
        )


def table(name: str, *columns: SchemaItem, erasure: Erasure, **options: Any) -> sa.Table:
    """Return a new table of our metadata, with a rule for erasure.

    Args:
        name: The name of the table.
        *columns: Its columns, constraints and indexes.
        erasure: The default rule of the columns.
        **options: Further options of SQLAlchemy's Table.
    """
    return sa.Table(name, metadata, *columns, info={"erasure": erasure}, **options)


def tags_table(name: str, parent: str, *more: sa.Column[Any], users_by: str = "") -> sa.Table:
    """Return a table with the tags of another table's rows, indexed by tag.

    Args:
        name: The name of the table.
        parent: The name of the table with the rows, in the plural.
        *more: Further columns.
        users_by: The name of a column of `more`. If it is set, each row also names the user that it
            is about, and there is an index by this column and the user.
    """
    row = reference(f"{parent.removesuffix('s')}_id", parent)
    tag: sa.Column[str] = sa.Column("tag", NormalTag, nullable=False)
    # Erasure deletes the tags with the row that they belong to, so it needs no user here.
    if users_by:
        about = strings("user_id", erasure="keep")
    else:
        about = []
    indexes = [sa.Index(f"{name}_by_tag", *filter(None, [users_by]), "tag", row.name)]
    if users_by:
        indexes.append(
            partial_index(
                f"{name}_of_users", users_by, "user_id", "tag", where="user_id IS NOT NULL"
            )
        )
    return table(
        name,
        row,
        *more,
        tag,
        *about,
        sa.UniqueConstraint(row.name, "tag"),
        *indexes,
        erasure="delete",
    )


def seq() -> sa.Column[int]:
    return sa.Column("seq", _Seq, sa.Identity(), primary_key=True, autoincrement=True, info=KEEP)


def public_id() -> sa.Column[str]:
    return sa.Column("id", sa.String, nullable=False, unique=True, info=KEEP)


def root() -> list[sa.Column[Any]]:
    return [seq(), public_id(), reference("organization_id", "organizations")]


def reference(name: str, target: str) -> sa.Column[str]:
    """Return a column with the id of a row in another table, which is deleted with that row.

    No index is created.

    Args:
        name: The name of the column.
        target: The name of the other table.
    """
    return sa.Column(
        name,
        sa.String,
        sa.ForeignKey(f"{target}.id", ondelete="CASCADE"),
        nullable=False,
        info=KEEP,
    )


def timestamps(*names: str, null: bool = False) -> list[sa.Column[int]]:
    """Return columns with times in microseconds UTC.

    Args:
        *names: The names of the columns.
        null: The columns may be NULL.
    """
    return [sa.Column(name, sa.BigInteger, nullable=null, info=KEEP) for name in names]


def numbers(*names: str, null: bool = False) -> list[sa.Column[int]]:
    """Return columns with integers of 64 bits; 0 is the default if they may not be NULL.

    Args:
        *names: The names of the columns.
        null: The columns may be NULL.
    """
    default = None if null else sa.text("0")
    return [
        sa.Column(name, sa.BigInteger, nullable=null, server_default=default, info=KEEP)
        for name in names
    ]


def usage() -> list[sa.Column[int]]:
    optional = ("cached_tokens", "cache_write_tokens", "reasoning_tokens")
    return [*numbers("prompt_tokens", "completion_tokens"), *numbers(*optional, null=True)]


def flag(name: str) -> sa.Column[bool]:
    """Return a column that is true or false, and false by default.

    Args:
        name: The name of the column.
    """
    return sa.Column(
        name,
        sa.Boolean(create_constraint=False),
        nullable=False,
        server_default=sa.false(),
        info=KEEP,
    )


def strings(*names: str, null: bool = True, erasure: Erasure | None = None) -> list[sa.Column[str]]:
    """Return columns of text that is stored byte for byte.

    For example ids, kinds, hashes, programs, and texts of versions.

    Args:
        *names: The names of the columns.
        null: The columns may be NULL.
        erasure: The rule of the columns; None: that of the table.
    """
    return [sa.Column(name, sa.Text, nullable=null, info={"erasure": erasure}) for name in names]


def names(*names: str, null: bool = True, erasure: Erasure | None = None) -> list[sa.Column[str]]:
    """Return columns of names that people choose.

    They are stored and compared in normal form.

    Args:
        *names: The names of the columns.
        null: The columns may be NULL.
        erasure: The rule of the columns; None: that of the table.
    """
    return [sa.Column(name, NormalName, nullable=null, info={"erasure": erasure}) for name in names]


def texts(*names: str, null: bool = True, erasure: Erasure | None = None) -> list[sa.Column[str]]:
    """Return columns of text that people and models write.

    They are stored and compared in normal form.

    Args:
        *names: The names of the columns.
        null: The columns may be NULL.
        erasure: The rule of the columns; None: that of the table.
    """
    return [sa.Column(name, NormalText, nullable=null, info={"erasure": erasure}) for name in names]


def json_value(
    name: str, default: str = "'{}'", *, erasure: Erasure | None = None
) -> sa.Column[object]:
    """Return a column with a JSON value, which is never NULL.

    Args:
        name: The name of the column.
        default: The default value as SQL: JSON in quotes.
        erasure: The rule of the column; None: that of the table.
    """
    return sa.Column(
        name, _Json, nullable=False, server_default=sa.text(default), info={"erasure": erasure}
    )


def error() -> sa.Column[object]:
    return sa.Column("error", sa.JSON(none_as_null=True), nullable=True)


def git_id(name: str, *, null: bool = True) -> sa.Column[bytes]:
    """Return a column with the 20 bytes of a git id.

    Args:
        name: The name of the column.
        null: The column may be NULL.
    """
    return sa.Column(name, sa.LargeBinary, nullable=null)


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> sa.Index:
    """Return an index of only those rows that meet a condition.

    Args:
        name: The name of the index.
        *columns: The columns, in order.
        where: The condition as SQL, the same on both databases.
        unique: No two of these rows may have equal values.
    """
    return sa.Index(
        name, *columns, unique=unique, sqlite_where=sa.text(where), info={"where": where}
    )


def erasure_of(column: sa.Column[Any]) -> Erasure | None:
    """Return the column's erasure rule: its own, or that of its table.

    Args:
        column: A column of a table.

    Returns:
        The rule; None if neither the column nor its table has one.
    """
    erasure: Erasure | None = column.info.get("erasure") or column.table.info.get("erasure")
    return erasure
