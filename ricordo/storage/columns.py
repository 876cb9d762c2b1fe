"""The kinds of columns that the tables are made of, once for every database."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    false,
    text,
)

metadata = MetaData(
    naming_convention={"uq": "%(table_name)s_%(column_0_N_name)s_key", "fk": "%(table_name)s_%(column_0_name)s_fkey"}
)
_Json = JSON()
_Seq = Integer().with_variant(BigInteger(), "postgresql")


def seq() -> Column[int]:
    return Column("seq", _Seq, primary_key=True, autoincrement=True)


def public_id() -> Column[str]:
    return Column("id", String, nullable=False, unique=True)


def reference(name: str, target: str, *, null: bool = False) -> Column[str]:
    return Column(name, String, ForeignKey(f"{target}.id", ondelete="CASCADE"), nullable=null)


def organization() -> Column[str]:
    return reference("organization_id", "organizations")


def moment(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=null)


def json_value(name: str, default: str = "'{}'") -> Column[object]:
    return Column(name, _Json, nullable=False, server_default=text(default))


def error() -> Column[object]:
    return Column("error", JSON(none_as_null=True), nullable=True)


def words(name: str, *, null: bool = True) -> Column[str]:
    return Column(name, Text, nullable=null)


def flag(name: str) -> Column[bool]:
    return Column(name, Boolean(create_constraint=False), nullable=False, server_default=false())


def number(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=null, server_default=None if null else text("0"))


def only_one(name: str, *columns: str, where: str) -> Index:
    # PostgreSQL's own module takes the condition from `info`: to name that dialect here would import all of it at every start.
    return Index(name, *columns, unique=True, sqlite_where=text(where), info={"where": where})


def usage() -> list[Column[int]]:
    optional = ("cached_tokens", "cache_write_tokens", "reasoning_tokens")
    return [number("prompt_tokens"), number("completion_tokens"), *(number(name, null=True) for name in optional)]
