"""Addresses of Dolt databases: `mysql://user@host:3306/database`, or a file of doltlite at `doltlite:///path/file.db`.

A server is connected to only where every machine behind its name is public, unless the operator allows others, and at the very
IP address that was checked. A file lies in one of the folders that the operator named.
"""

import socket
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from ricordo.errors import Invalid
from ricordo.features.remotes.service import PRIVATE, require_folder
from ricordo.llm.addresses import connect, require_public_host

_PORT = 3306
_CONNECT = 10.0  # seconds
_ORDINARY = b"SQLite format 3\0"
_HOW = "Give a Dolt server as mysql://user@host:3306/database, or a file as doltlite:///folder/memory.db."


@dataclass(frozen=True, slots=True)
class DoltAddress:
    """An address without its password, and its parts: a file of doltlite at `path`, or a server.

    `allow_private` and `folders` are what the operator allows.
    """

    address: str
    path: Path | None = None
    host: str = ""
    port: int = _PORT
    user: str = ""
    password: str | None = field(default=None, repr=False)
    database: str = ""
    allow_private: bool = False
    folders: tuple[Path, ...] = ()

    def require_usable(self) -> None:
        """Raise Invalid where it can be no remote, as far as that can be told without a connection."""
        path = self.path
        if path is None:
            if not self.allow_private:
                require_public_host(self.host, setting=PRIVATE)
            return
        if self.host or not path.is_absolute() or not path.name:
            raise Invalid(f"The path of the file must be absolute. {_HOW}")
        require_folder(path, self.folders)
        if path.parent not in self.folders and not path.parent.is_dir():
            raise Invalid(f"There is no folder {path.parent}. Make it first.")
        try:
            with path.open("rb") as file:
                is_other = file.read(len(_ORDINARY)) == _ORDINARY
        except FileNotFoundError:
            return
        except IsADirectoryError:
            is_other = True
        except OSError as error:
            raise Invalid(f"{path} cannot be read: {error.strerror}. Choose another file.") from error
        if is_other:
            raise Invalid(f"{path} is no database of doltlite. Choose a file that is not there yet.")

    def connect(self) -> socket.socket:
        """An open connection to the server. Raises Invalid where that is not allowed, Unavailable where none answers."""
        return connect(self.host, self.port, _CONNECT, allow_private=self.allow_private, setting=PRIVATE)


def read_address(
    address: str, password: str | None = None, *, allow_private: bool = False, folders: tuple[Path, ...] = ()
) -> DoltAddress:
    """The parsed address; a password in it is taken out. Raises Invalid, which quotes no password."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise Invalid(f"The address cannot be read. {_HOW}") from None
    if any(sign.isspace() or not sign.isprintable() for sign in address) or parts.query or parts.fragment:
        raise Invalid(f"The address cannot be read. {_HOW}")
    if parts.scheme == "doltlite":
        path = Path(unquote(parts.path))
        plain = f"doltlite://{parts.netloc}{parts.path}"
        found = DoltAddress(plain, path, host=parts.netloc, folders=folders)
    elif parts.scheme not in ("mysql", "dolt") or not parts.hostname or not parts.path.strip("/"):
        raise Invalid(f"This is no address of a Dolt database. {_HOW}")
    else:
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        user, database = unquote(parts.username or "root"), unquote(parts.path.strip("/"))
        plain = f"mysql://{quote(user, safe='')}@{host}:{port or _PORT}/{quote(database, safe='')}"
        password = password if parts.password is None else unquote(parts.password)
        found = DoltAddress(
            plain, None, parts.hostname, port or _PORT, user, password, database, allow_private=allow_private
        )
    found.require_usable()
    return found
