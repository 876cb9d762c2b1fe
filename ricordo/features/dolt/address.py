"""Where a Dolt database is: a server at `mysql://user@host:3306/database`, or a file of doltlite at `doltlite:///path/file.db`.

A server is spoken to only where every machine behind its name is a public one, unless the operator allows others, and at the
very number that was checked. A file lies in one of the folders that the operator named.
"""

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from ricordo.errors import Invalid
from ricordo.features.remotes.service import PRIVATE, require_folder
from ricordo.llm.addresses import connect, require_public_host

SERVER, FILE = "mysql://", "doltlite://"
_PORT = 3306
_CONNECT = 10.0  # seconds
_ORDINARY = b"SQLite format 3\0"
_HOW = "Give a Dolt server as mysql://user@host:3306/database, or a file as doltlite:///folder/memory.db."


@dataclass(frozen=True, slots=True)
class Place:
    """An address without its password, and that password; `allow_private` and `folders` are what the operator allows."""

    address: str
    password: str | None = None
    allow_private: bool = False
    folders: tuple[Path, ...] = ()

    @property
    def is_file(self) -> bool:
        """Whether it is a file of doltlite on this machine."""
        return self.address.startswith(FILE)

    @property
    def path(self) -> Path:
        """The file."""
        return Path(unquote(urlsplit(self.address).path))

    @property
    def host(self) -> str:
        """The machine of the server."""
        return urlsplit(self.address).hostname or ""

    @property
    def port(self) -> int:
        """The server's port."""
        return urlsplit(self.address).port or _PORT

    @property
    def user(self) -> str:
        """The name with which the server is entered."""
        return unquote(urlsplit(self.address).username or "root")

    @property
    def database(self) -> str:
        """The database on the server."""
        return unquote(urlsplit(self.address).path.strip("/"))

    def require_usable(self) -> None:
        """Raise Invalid where it can be no remote, as far as that can be told without asking."""
        if self.is_file:
            self._require_file()
        elif not self.allow_private:
            require_public_host(self.host, setting=PRIVATE)

    def connect(self) -> socket.socket:
        """An open connection to the server. Raises Invalid where it may not be spoken to, Unavailable where nobody answers."""
        return connect(self.host, self.port, _CONNECT, allow_private=self.allow_private, setting=PRIVATE)

    def _require_file(self) -> None:
        path = self.path
        if urlsplit(self.address).netloc or not path.is_absolute() or not path.name:
            raise Invalid(f"The path of the file must be absolute. {_HOW}")
        require_folder(path, self.folders)
        if path.parent not in self.folders and not path.parent.is_dir():
            raise Invalid(f"There is no folder {path.parent}. Make it first.")
        if path.exists() and (not path.is_file() or _begins(path, _ORDINARY)):
            raise Invalid(f"{path} is no database of doltlite. Choose a file that is not there yet.")


def read_place(
    address: str, password: str | None = None, *, allow_private: bool = False, folders: tuple[Path, ...] = ()
) -> Place:
    """The place with this address; a password in it is taken out of it. Raises Invalid, which quotes no password."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise Invalid(f"The address cannot be read. {_HOW}") from None
    if any(sign.isspace() or not sign.isprintable() for sign in address) or parts.query or parts.fragment:
        raise Invalid(f"The address cannot be read. {_HOW}")
    if parts.scheme == "doltlite":
        return _checked(Place(f"{FILE}{parts.netloc}{parts.path}", None, allow_private, folders))
    if parts.scheme not in ("mysql", "dolt") or not parts.hostname or not parts.path.strip("/"):
        raise Invalid(f"This is no address of a Dolt database. {_HOW}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    user = quote(unquote(parts.username or "root"), safe="")
    found = unquote(parts.password) if parts.password is not None else password
    plain = f"{SERVER}{user}@{host}:{port or _PORT}/{quote(unquote(parts.path.strip('/')), safe='')}"
    return _checked(replace(Place(plain, found), allow_private=allow_private))


def _checked(place: Place) -> Place:
    place.require_usable()
    return place


def _begins(path: Path, sign: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(sign)) == sign
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}. Choose another file.") from error
