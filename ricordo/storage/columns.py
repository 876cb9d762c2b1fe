"""The kinds of columns that the tables are made of, once for every database."""

import re
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    false,
    text,
)

metadata = MetaData(
    naming_convention={"uq": "%(table_name)s_%(column_0_N_name)s_key", "fk": "%(table_name)s_%(column_0_name)s_fkey"}
)
_Json = JSON()
_UUID = re.compile(r"-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_Seq = Integer().with_variant(BigInteger(), "postgresql")


class PackedId(TypeDecorator[str]):
    """An id such as `run-<uuid>` in 17 bytes where as text it takes 40: for what stands in every row of a long table.

    It is compared with values of Python alone: in SQL it is no text.
    """

    impl = LargeBinary
    cache_ok = True

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def bind_processor(self, dialect: Any) -> Any:  # noqa: ARG002 - SQLAlchemy's
        """`pack`: every driver takes bytes as they are."""
        return self.pack

    def result_processor(self, dialect: Any, coltype: Any) -> Any:  # noqa: ARG002 - SQLAlchemy's
        """`unpack`."""
        return self.unpack

    def pack(self, value: str | None) -> bytes | None:
        """The id as it is stored: a NUL and the uuid's bytes; one of any other form as its letters, none of which is a NUL."""
        if value is None:
            return None
        if value.startswith(self.kind) and _UUID.fullmatch(value, len(self.kind)):
            return b"\0" + bytes.fromhex(value[len(self.kind) + 1 :].replace("-", ""))
        return value.encode()

    def unpack(self, value: bytes | None) -> str | None:
        """The mirror of `pack`."""
        if value is None:
            return None
        if value[:1] != b"\0":
            return value.decode()
        digits = value[1:].hex()
        return f"{self.kind}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def seq() -> Column[int]:
    return Column("seq", _Seq, primary_key=True, autoincrement=True)


def public_id() -> Column[str]:
    return Column("id", String, nullable=False, unique=True)


def reference(name: str, target: str, *, null: bool = False) -> Column[str]:
    return Column(name, String, ForeignKey(f"{target}.id", ondelete="CASCADE"), nullable=null)


def packed_id(name: str, kind: str) -> Column[str]:
    return Column(name, PackedId(kind), nullable=True)


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
