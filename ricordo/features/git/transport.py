"""The way to a repository elsewhere: a bare one in a folder of this machine, or one at an http address.

An address is spoken to only where all machines behind its name are public ones (unless the operator allows others), at the very
number that was checked, and redirects are not followed.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ricordo.errors import Forbidden, Invalid, TooLong, Unavailable
from ricordo.features.git.packs import BOUNDS
from ricordo.features.git.repository import make_repository, open_repository
from ricordo.features.remotes.service import PRIVATE, require_folder
from ricordo.llm.addresses import connect, require_callable

if TYPE_CHECKING:
    from socket import socket

    from dulwich.client import GitClient

T = TypeVar("T")
_CONNECT = 10.0  # seconds to wait for a machine
_TIMEOUT = 60.0  # and then for the next sign of life
_LONGEST = 600.0  # and for all of an exchange: a thread waits for it, and so does the server's end
_ZERO = b"0" * 40
_SCHEMES = ("http://", "https://")
Refs = dict[bytes, bytes]


class Moved(Exception):
    """The branch at the remote is not any more what it was a moment ago."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a repository is, an absolute folder or an address, and what it takes to get in: a name and a password or token.

    `allow_private` and `folders` are what the operator allows: private addresses, and folders of this machine.
    """

    address: str
    username: str = "git"
    password: str | None = None
    allow_private: bool = False
    folders: tuple[Path, ...] = ()

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of this machine."""
        return not self.address.startswith(_SCHEMES)

    def require_usable(self) -> None:
        """Raise Invalid where it can be no remote."""
        if not self.is_folder:
            require_callable(self.address, allow_private=self.allow_private, setting=PRIVATE)
        elif not Path(self.address).is_absolute():
            raise Invalid("A remote is an address that begins with https:// or the absolute path of a folder.")
        else:
            require_folder(Path(self.address), self.folders)


def branches(place: Place) -> Refs:
    """The branches of the remote and the commits they name (20 bytes); a folder that is not there is made. Raises Unavailable."""
    if place.is_folder and not Path(place.address).exists():
        make_repository(Path(place.address))

    def ask(client: "GitClient", path: str) -> Refs:
        refs = client.get_refs(path.encode()).refs
        if getattr(client, "dumb", False):
            raise Unavailable("The remote does not speak git's smart protocol. Check the address.")
        return {name: bytes.fromhex(id.decode()) for name, id in refs.items() if id and name.startswith(b"refs/heads/")}

    return _ask(place, ask)


def fetch(place: Place, wanted: bytes, repository: Path) -> bytes:
    """A pack with the commit and all that the repository here lacks of it. Raises Unavailable, TooLong."""
    pack = bytearray()

    def take(data: bytes) -> int:
        pack.extend(data)
        if len(pack) > BOUNDS.bytes:
            raise TooLong(
                f"The remote sent more than {BOUNDS.bytes} bytes. Push what is there to the memory in portions."
            )
        return len(data)

    def want(refs: Any, depth: int | None = None) -> Any:
        return [wanted.hex().encode()] if refs and depth is None else []

    def ask(client: "GitClient", path: str) -> bytes:
        with closing(open_repository(repository)) as here:
            client.fetch_pack(path.encode(), want, here.get_graph_walker(), take)
        return bytes(pack)

    return _ask(place, ask)


def push(place: Place, repository: Path, seen: Refs, wanted: Mapping[bytes, bytes | None]) -> None:
    """Let branches of the remote name these commits of the repository here, None: no such branch.

    Raises Moved where one of them is not what was seen, Unavailable where the remote refuses.
    """

    def ask(client: "GitClient", path: str) -> None:
        with closing(open_repository(repository)) as here:

            def update(refs: Any) -> Any:
                for name in wanted:
                    now = refs.get(name)
                    if (bytes.fromhex(now.decode()) if now else None) != seen.get(name):
                        raise Moved
                return {name: id.hex().encode() if id else _ZERO for name, id in wanted.items()}

            def pack(have: Collection[Any], want: Any, **options: Any) -> Any:
                # What others have there, and we do not, tells us nothing of what they lack.
                return here.generate_pack_data({id for id in have if id in here.object_store}, want, **options)

            result = client.send_pack(path.encode(), update, pack)
        if refused := {name: said for name, said in (result.ref_status or {}).items() if said}:
            name, said = next(iter(refused.items()))
            raise Unavailable(f"The remote refused the branch {name.decode(errors='replace')}: {said}")

    _ask(place, ask)


def _ask(place: Place, ask: Callable[["GitClient", str], T]) -> T:
    """What a client of the place answers, its errors in our words."""
    from dulwich.client import HTTPUnauthorized, LocalGitClient, Urllib3HttpGitClient
    from dulwich.errors import GitProtocolError, HangupException, NotGitRepository

    place.require_usable()
    try:
        if place.is_folder:
            return ask(LocalGitClient(), place.address)
        url = urlsplit(place.address)
        with closing(_pool(place)) as pool, _limited(pool) as clock:
            client = Urllib3HttpGitClient(
                f"{url.scheme}://{url.netloc}",
                pool_manager=pool,
                username=place.username if place.password else None,
                password=place.password,
                timeout=_TIMEOUT,
                quiet=True,
            )
            try:
                return ask(client, url.path)
            except Exception as error:
                if clock.is_over:
                    raise Unavailable(
                        f"The remote took longer than {_LONGEST:g} seconds. It is tried again."
                    ) from error
                raise
    except HTTPUnauthorized as error:
        raise Forbidden("The remote wants another name or token. Give it anew.") from error
    except NotGitRepository as error:
        raise Unavailable("There is no git repository at the remote. Make one there, empty.") from error
    except (GitProtocolError, HangupException, OSError, ValueError, AssertionError) as error:
        raise Unavailable(f"The remote could not be reached or understood ({type(error).__name__}).") from error


class _Clock:
    is_over = False


@contextmanager
def _limited(pool: Any) -> Iterator[_Clock]:
    """Breaks the pool's connections once an exchange took too long."""
    clock = _Clock()

    def end() -> None:
        clock.is_over = True
        pool.break_off()

    timer = threading.Timer(_LONGEST, end)
    timer.daemon = True
    timer.start()
    try:
        yield clock
    finally:
        timer.cancel()


def _pool(place: Place) -> Any:
    import urllib3
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Checked(HTTPConnection):
        """Connects to the number that was checked, whatever its name means a moment later."""

        def connect(self) -> None:
            super().connect()
            pool.sockets.append(self.sock)  # with TLS another than the one below, which it took the place of

        def _new_conn(self) -> "socket":
            opened = connect(self.host, self.port, _CONNECT, allow_private=place.allow_private, setting=PRIVATE)
            pool.sockets.append(opened)
            return opened

    class CheckedTls(Checked, HTTPSConnection):
        """The same, and then TLS with the name."""

    class Plain(HTTPConnectionPool):
        ConnectionCls = Checked

    class Tls(HTTPSConnectionPool):
        ConnectionCls = CheckedTls

    class Pool(urllib3.PoolManager):
        """Follows no redirect, which would lead to an address nobody checked, and uses no proxy."""

        answers: list[Any]
        sockets: list[Any]

        def break_off(self) -> None:
            """Let whoever reads or writes find the connection at its end."""
            for opened in list(self.sockets):
                with suppress(OSError, AttributeError):
                    opened.shutdown(SHUT_RDWR)

        def request(self, method: str, url: str, *arguments: Any, **options: Any) -> Any:
            answer = super().request(method, url, *arguments, **{**options, "redirect": False, "retries": False})
            self.answers.append(answer)
            return answer

        def close(self) -> None:
            """Close every connection, also of answers that nobody read to their end."""
            for answer in self.answers:
                answer.close()
            self.clear()

    pool = Pool(headers={"User-Agent": "git/ricordo"})
    pool.answers, pool.sockets = [], []
    pool.pool_classes_by_scheme = {"http": Plain, "https": Tls}
    return pool
