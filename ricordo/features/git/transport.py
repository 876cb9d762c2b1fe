"""Git repositories elsewhere: a bare one in a folder of this machine, or one at an http address.

A server is connected to only where all machines behind its name are public (unless the operator allows others), at the very IP
address that was checked, and redirects are not followed.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ricordo.errors import Forbidden, Invalid, TooLong, Unavailable
from ricordo.features.git.objects import GitObject
from ricordo.features.git.packs import BOUNDS
from ricordo.features.git.repository import make_repository, open_repository, packed
from ricordo.features.remotes.service import PRIVATE, RemoteMoved, require_folder
from ricordo.llm.addresses import connect, require_callable

if TYPE_CHECKING:
    from socket import socket

    from dulwich.client import GitClient

T = TypeVar("T")
_CONNECT = 10.0  # seconds to wait for a machine
_TIMEOUT = 60.0  # and then for the next sign of life
_LONGEST = 600.0  # and for all of an exchange: a thread waits for it, and so does the server's end
_ZERO = b"0" * 40
Refs = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class GitAddress:
    """An absolute folder or an http address, and a name and a password or token for it.

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
        return not self.address.startswith(("http://", "https://"))

    def require_usable(self) -> None:
        """Raise Invalid where it can be no remote."""
        if not self.is_folder:
            require_callable(self.address, allow_private=self.allow_private, setting=PRIVATE)
        elif not Path(self.address).is_absolute():
            raise Invalid("A remote is an address that begins with https:// or the absolute path of a folder.")
        else:
            require_folder(Path(self.address), self.folders)


def branches(address: GitAddress) -> dict[bytes, bytes]:
    """The branches of the remote and the commits they name (20 bytes); a folder that is not there is made. Raises Unavailable."""
    if address.is_folder and not Path(address.address).exists():
        make_repository(Path(address.address))

    def ask(client: "GitClient", path: str) -> dict[bytes, bytes]:
        refs = client.get_refs(path.encode()).refs
        if getattr(client, "dumb", False):
            raise Unavailable("The remote does not speak git's smart protocol. Check the address.")
        return {name: bytes.fromhex(id.decode()) for name, id in refs.items() if id and name.startswith(b"refs/heads/")}

    return _ask(address, ask)


def fetch(address: GitAddress, wanted: bytes, repository: Path) -> bytes:
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

    return _ask(address, ask)


def push(
    address: GitAddress,
    repository: Path,
    seen: Refs,
    wanted: Mapping[bytes, bytes | None],
    extra: Collection[GitObject] = (),
) -> None:
    """Let branches of the remote name these commits, None: no such branch; they are in the repository here or `extra`.

    Raises RemoteMoved where one of them is not what was seen, Unavailable where the remote refuses.
    """

    def ask(client: "GitClient", path: str) -> None:
        with closing(open_repository(repository)) as here:

            def update(refs: Any) -> Any:
                for name in wanted:
                    now = refs.get(name)
                    if (bytes.fromhex(now.decode()) if now else None) != seen.get(name):
                        raise RemoteMoved
                return {name: id.hex().encode() if id else _ZERO for name, id in wanted.items()}

            def pack(have: Collection[Any], want: Collection[Any], **options: Any) -> Any:
                # What others have there, and we do not, says nothing of what they lack.
                known, lacking = ({id for id in ids if id in here.object_store} for ids in (have, want))
                count, records = here.generate_pack_data(known, lacking, **options)
                return count + len(extra), chain(records, packed(extra))

            result = client.send_pack(path.encode(), update, pack)
        if refused := {name: message for name, message in (result.ref_status or {}).items() if message}:
            name, message = next(iter(refused.items()))
            raise Unavailable(f"The remote refused the branch {name.decode(errors='replace')}: {message}")

    _ask(address, ask)


def _ask(address: GitAddress, ask: Callable[["GitClient", str], T]) -> T:
    """What a client of the repository answers, its errors in our words."""
    from dulwich.client import HTTPUnauthorized, LocalGitClient, Urllib3HttpGitClient
    from dulwich.errors import GitProtocolError, HangupException, NotGitRepository

    address.require_usable()
    try:
        if address.is_folder:
            return ask(LocalGitClient(), address.address)
        url = urlsplit(address.address)
        with closing(_pool(address)) as pool:
            client = Urllib3HttpGitClient(
                f"{url.scheme}://{url.netloc}",
                pool_manager=pool,
                username=address.username if address.password else None,
                password=address.password,
                timeout=_TIMEOUT,
                quiet=True,
            )
            try:
                return ask(client, url.path)
            except Exception as error:
                if pool.is_over:
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


def _pool(address: GitAddress) -> Any:
    import urllib3
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Checked(HTTPConnection):
        """Connects to the IP address that was checked, whatever its name means a moment later."""

        def connect(self) -> None:
            super().connect()
            pool.sockets.append(self.sock)  # with TLS another than the one below, which it took the place of

        def _new_conn(self) -> "socket":
            opened = connect(self.host, self.port, _CONNECT, allow_private=address.allow_private, setting=PRIVATE)
            pool.sockets.append(opened)
            return opened

    class CheckedTls(Checked, HTTPSConnection):
        """The same, and then TLS with the name."""

    class Plain(HTTPConnectionPool):
        ConnectionCls = Checked

    class Tls(HTTPSConnectionPool):
        ConnectionCls = CheckedTls

    class Pool(urllib3.PoolManager):
        """Follows no redirect, which would lead to an address that was not checked, and uses no proxy."""

        def __init__(self) -> None:
            super().__init__(headers={"User-Agent": "git/ricordo"})
            self.pool_classes_by_scheme = {"http": Plain, "https": Tls}
            self.answers: list[Any] = []
            self.sockets: list[Any] = []
            self.is_over = False
            self.timer = threading.Timer(_LONGEST, self.break_off)
            self.timer.daemon = True
            self.timer.start()

        def break_off(self) -> None:
            """Shut the connections down, so that reads and writes on them end: the exchange took too long."""
            self.is_over = True
            for opened in list(self.sockets):
                with suppress(OSError, AttributeError):
                    opened.shutdown(SHUT_RDWR)

        def request(self, method: str, url: str, *arguments: Any, **options: Any) -> Any:
            answer = super().request(method, url, *arguments, **{**options, "redirect": False, "retries": False})
            self.answers.append(answer)
            return answer

        def close(self) -> None:
            """Close every connection, also of answers that were not read to their end."""
            self.timer.cancel()
            for answer in self.answers:
                answer.close()
            self.clear()

    pool = Pool()
    return pool
