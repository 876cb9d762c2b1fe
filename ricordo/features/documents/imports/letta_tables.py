"""Read the database of the retired Letta V1 server 0.16.8 in one read-only snapshot.

Databases of other versions may lack a column or a table. A missing column is read as None, a
missing table as empty. Deleted rows are not read.
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
_REQUIRED_TABLES = ("agents", "messages", "block")
# The format of encrypted values: the bytes of salt and nonce, and the rounds of PBKDF2.
_SALT_BYTES = 16
_IV_BYTES = 12
_ROUNDS = 100_000
_COLUMNS = (
    "SELECT table_name, column_name FROM information_schema.columns "
    "WHERE table_schema = current_schema()"
)


class LettaTables:
    """The tables by name: `for row in letta.rows("agents", "id name", order="created_at"): …`."""

    def __init__(self, url: str) -> None:
        """Connect to the database.

        Raises Invalid if this is not such a database, and Unavailable if it cannot be reached.
        """
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
        # Only rows of this organization are read; None means all organizations.
        self.organization: str | None = None
        self._cursors = count(1)
        self._error = psycopg.Error
        self._sql = psycopg.sql
        try:
            self._connection = psycopg.connect(
                f"postgresql://{rest}",
                connect_timeout=10,
                client_encoding="utf8",
                row_factory=dict_row,
            )
            self._connection.read_only = True
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            columns = self._connection.execute(_COLUMNS).fetchall()
        except psycopg.Error as error:
            host = urlsplit(f"//{rest}").hostname or "the socket"
            reason = " ".join(str(error).split())[:300]
            raise Unavailable(f"The database at {host} cannot be read: {reason}") from error
        self._columns: dict[str, set[str]] = {}
        for row in columns:
            self._columns.setdefault(row["table_name"], set()).add(row["column_name"])
        if missing := [name for name in _REQUIRED_TABLES if name not in self._columns]:
            self.close()
            raise Invalid(
                "This is not a database of the retired Letta V1 server: it has no table "
                f"{missing[0]}."
            )

    def close(self) -> None:
        self._connection.close()

    def rows(self, table: str, columns: str, *, order: str = "", **equal: str) -> Iterator[Row]:
        """Yield the rows with these columns, in this order.

        The server sends them in batches. If the table lacks a column of `equal`, there are none.

        Args:
            table: The name of the table.
            columns: The names of the columns, separated by blanks. A missing one is read as None.
            order: The names of the columns to sort by, separated by blanks; missing ones are
                ignored.
            **equal: Values that the rows must have, by column.

        Raises:
            Unavailable: The table cannot be read.
        """
        table_columns = self._columns.get(table, set())
        if not table_columns or not table_columns.issuperset(equal):
            return
        sql = self._sql
        identifier = sql.Identifier
        selected = [
            identifier(name)
            if name in table_columns
            else sql.SQL("NULL AS {}").format(identifier(name))
            for name in columns.split()
        ]
        query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(selected), identifier(table))
        query += self._where(table_columns, equal)
        if orders := [identifier(name) for name in order.split() if name in table_columns]:
            query += sql.SQL(" ORDER BY ") + sql.SQL(", ").join(orders)
        try:
            with closing(self._connection.cursor(name=f"ricordo_{next(self._cursors)}")) as cursor:
                cursor.itersize = BATCH
                cursor.execute(query)
                yield from cursor
        except self._error as error:
            raise self._unreadable(table, error) from error

    def count(self, table: str) -> int:
        """Return the number of rows that are not deleted; 0 for a missing table.

        Args:
            table: The name of the table. If `organization` is set, only its rows count.

        Raises:
            Unavailable: The table cannot be read.
        """
        table_columns = self._columns.get(table)
        if not table_columns:
            return 0
        query = self._sql.SQL("SELECT count(*) AS rows FROM {}").format(self._sql.Identifier(table))
        query += self._where(table_columns, {})
        try:
            return int(self._connection.execute(query).fetchone()["rows"])  # type: ignore[index]
        except self._error as error:
            raise self._unreadable(table, error) from error

    def _unreadable(self, table: str, error: Exception) -> Unavailable:
        reason = " ".join(str(error).split())[:300]
        return Unavailable(
            f"The table {table} cannot be read ({reason}). Run the command again to continue."
        )

    def _where(self, table_columns: Set[str], equal: Mapping[str, str]) -> Any:
        sql = self._sql
        identifier = sql.Identifier
        if self.organization and "organization_id" in table_columns:
            equal = {**equal, "organization_id": self.organization}
        conditions = [
            sql.SQL("{} = {}").format(identifier(name), sql.Literal(value))
            for name, value in equal.items()
        ]
        if "is_deleted" in table_columns:
            conditions.append(sql.SQL("NOT coalesce(is_deleted, false)"))
        if not conditions:
            return sql.SQL("")
        return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions)


def decrypt(value: str, key: str) -> str:
    """Decrypt a value with the LETTA_ENCRYPTION_KEY of its server.

    Args:
        value: Base64 of salt, nonce and ciphertext.
        key: The LETTA_ENCRYPTION_KEY.

    Raises:
        Invalid: The value was encrypted with another key, or has another form.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC

    try:
        encrypted = b64decode(value, validate=True)
        salt = encrypted[:_SALT_BYTES]
        iv = encrypted[_SALT_BYTES : _SALT_BYTES + _IV_BYTES]
        ciphertext = encrypted[_SALT_BYTES + _IV_BYTES :]
        derived_key = PBKDF2HMAC(SHA256(), 32, salt, _ROUNDS).derive(key.encode())
        return AESGCM(derived_key).decrypt(iv, ciphertext, None).decode()
    except (InvalidTag, ValueError) as error:
        raise Invalid("The value cannot be decrypted with this key.") from error
