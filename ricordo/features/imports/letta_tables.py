"""The database of the retired Letta V1 server 0.16.8, read as it stands: one snapshot, in a transaction that cannot write.

Columns that another version of that server does not have are read as None, and its missing tables as empty. Deleted rows are
not read.
"""

from base64 import b64decode
from collections.abc import Iterator, Mapping, Set
from contextlib import closing
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from ricordo.errors import Invalid, Unavailable

Row = dict[str, Any]
BATCH = 200
_NEEDED = ("agents", "messages", "block")
_SALT, _IV, _ROUNDS = 16, 12, 100_000
_COLUMNS = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"


class LettaTables:
    """The tables, by name: `for row in letta.rows("agents", "id name", order="created_at"): …`."""

    def __init__(self, url: str) -> None:
        """Connect. Raises Invalid where this is no such database, Unavailable where it cannot be reached."""
        try:
            import psycopg
            from psycopg.rows import dict_row
        except ImportError as error:
            raise Unavailable(
                'Reading PostgreSQL needs its library: pip install "ricordo[postgres]"'
            ) from error
        scheme, _, rest = url.partition("://")
        if scheme.partition("+")[0] not in ("postgresql", "postgres"):
            raise Invalid(
                "--database is an address such as postgresql://letta:password@localhost:5432/letta."
            )
        self.organization: str | None = None  # whose rows are read; None: of all
        self._cursors = count(1)
        self._error = psycopg.Error
        self._sql = psycopg.sql
        try:
            self._connection = psycopg.connect(
                f"postgresql://{rest}", connect_timeout=10, row_factory=dict_row
            )
            self._connection.read_only = True
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            found = self._connection.execute(_COLUMNS).fetchall()
        except psycopg.Error as error:
            where = urlsplit(f"//{rest}").hostname or "the socket"
            reason = " ".join(str(error).split())[:300]
            raise Unavailable(f"The database at {where} cannot be read: {reason}") from error
        self._columns: dict[str, set[str]] = {}
        for row in found:
            self._columns.setdefault(row["table_name"], set()).add(row["column_name"])
        if missing := [name for name in _NEEDED if name not in self._columns]:
            self.close()
            raise Invalid(
                f"This is no database of the retired Letta V1 server: it has no table {missing[0]}."
            )

    def close(self) -> None:
        self._connection.close()

    def rows(self, table: str, columns: str, *, order: str = "", **equal: str) -> Iterator[Row]:
        """Yield the rows with these values, in this order, a batch at a time from the server. Raises Unavailable."""
        known = self._columns.get(table, set())
        if not known or not known.issuperset(equal):
            return
        name, sql = self._sql.Identifier, self._sql
        wanted = [
            name(one) if one in known else sql.SQL("NULL AS {}").format(name(one))
            for one in columns.split()
        ]
        query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(wanted), name(table))
        query += self._where(known, equal)
        if orders := [name(one) for one in order.split() if one in known]:
            query += sql.SQL(" ORDER BY ") + sql.SQL(", ").join(orders)
        try:
            with closing(self._connection.cursor(name=f"ricordo_{next(self._cursors)}")) as cursor:
                cursor.itersize = BATCH
                cursor.execute(query)
                yield from cursor
        except self._error as error:
            raise self._unreadable(table, error) from error

    def count(self, table: str) -> int:
        """Return how many rows a table has that are not deleted; 0 where there is no such table."""
        known = self._columns.get(table)
        if not known:
            return 0
        query = self._sql.SQL("SELECT count(*) AS rows FROM {}").format(self._sql.Identifier(table))
        query += self._where(known, {})
        try:
            return int(self._connection.execute(query).fetchone()["rows"])  # type: ignore[index]
        except self._error as error:
            raise self._unreadable(table, error) from error

    def _unreadable(self, table: str, error: Exception) -> Unavailable:
        reason = " ".join(str(error).split())[:300]
        return Unavailable(
            f"The table {table} cannot be read ({reason}). Run the command again to go on."
        )

    def _where(self, known: Set[str], equal: Mapping[str, str]) -> Any:
        sql, name = self._sql, self._sql.Identifier
        if self.organization and "organization_id" in known:
            equal = {**equal, "organization_id": self.organization}
        conditions = [
            sql.SQL("{} = {}").format(name(one), sql.Literal(value)) for one, value in equal.items()
        ]
        if "is_deleted" in known:
            conditions.append(sql.SQL("NOT coalesce(is_deleted, false)"))
        return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")


def decrypt(value: str, key: str) -> str:
    """Return what the other server encrypted with its LETTA_ENCRYPTION_KEY. Raises Invalid where it was another key."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC

    try:
        data = b64decode(value, validate=True)
        salt, iv, rest = data[:_SALT], data[_SALT : _SALT + _IV], data[_SALT + _IV :]
        made = PBKDF2HMAC(SHA256(), 32, salt, _ROUNDS).derive(key.encode())
        return AESGCM(made).decrypt(iv, rest, None).decode()
    except (InvalidTag, ValueError) as error:
        raise Invalid("The value cannot be decrypted with this key.") from error
