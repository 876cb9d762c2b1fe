"""Git repositories elsewhere: a bare one in a folder of this machine, or one at an http address.

A server is connected to only where all machines behind its name are public (unless the operator allows others), at the very IP
address that was checked, and redirects are not followed.
"""

import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from itertools import chain
from pathlib import Path
from socket import SHUT_RDWR, socket
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ricordo.errors import Forbidden, Invalid, TooLong, Unavailable
from ricordo.features.git.objects import MOST_BYTES, GitObject
from ricordo.features.git.repository import make_repository, open_repository, packed
from ricordo.features.remotes.service import PRIVATE, RemoteMoved, require_folder
from ricordo.llm.addresses import connect, require_callable

if TYPE_CHECKING:
    from dulwich.client import GitClient

T = TypeVar("T")
_CONNECT = 10.0  # seconds to wait for a machine
_TIMEOUT = 60.0  # and then for the next sign of life
_LONGEST = 600.0  # and for all of an exchange: a thread waits for it, and so does the server's end
_MOST_TOLD = (
    16 * 1024 * 1024
)  # bytes of a remote's answers beside a pack: the names of its branches above all
_ZERO = b"0" * 40
Refs = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class GitAddress:
    """A folder or an http address with its credentials, and what the operator allows: private addresses, and these folders."""

    address: str
    username: str = "git"
    password: str | None = None
    allow_private: bool = False
    folders: tuple[Path, ...] = ()

    @property
    def is_folder(self) -> bool:
        return not self.address.startswith(("http://", "https://"))

    def require_usable(self) -> str:
        """Return the address, a folder's with every link resolved. Raises Invalid where it can be no remote."""
        if not self.is_folder:
            require_callable(self.address, allow_private=self.allow_private, setting=PRIVATE)
            return self.address
        if not Path(self.address).is_absolute():
            raise Invalid(
                "A remote is an address that begins with https:// or the absolute path of a folder."
            )
        return str(require_folder(Path(self.address), self.folders))


def branches(address: GitAddress) -> dict[bytes, bytes]:
    """The branches of the remote and the commits they name (20 bytes); a folder that is not there is made. Raises Unavailable."""
    if address.is_folder and not Path(address.address).exists():
        make_repository(Path(address.address))

    def ask(client: "GitClient", path: str) -> dict[bytes, bytes]:
        refs = client.get_refs(path.encode()).refs
        if getattr(client, "dumb", False):
            raise Unavailable("The remote does not speak git's smart protocol. Check the address.")
        return {
            name: bytes.fromhex(id.decode())
            for name, id in refs.items()
            if id and name.startswith(b"refs/heads/")
        }

    return _ask(address, ask)


def fetch(address: GitAddress, wanted: bytes, repository: Path) -> bytes:
    """A pack with the commit and all that the repository here lacks of it. Raises Unavailable, TooLong."""
    pack = bytearray()

    def take(data: bytes) -> int:
        pack.extend(data)
        if len(pack) > MOST_BYTES:
            raise TooLong(
                f"The remote sent more than {MOST_BYTES} bytes. Push what is there to the memory in portions."
            )
        return len(data)

    def want(refs: Any, depth: int | None = None) -> Any:
        return [wanted.hex().encode()] if refs and depth is None else []

    def ask(client: "GitClient", path: str) -> bytes:
        with closing(open_repository(repository)) as here:
            client.fetch_pack(path.encode(), want, here.get_graph_walker(), take)
        return bytes(pack)

    return _ask(address, ask, MOST_BYTES)


def push(
    address: GitAddress,
    repository: Path,
    seen: Refs,
    wanted: Mapping[bytes, bytes | None],
    extra: Collection[GitObject] = (),
) -> None:
    """Move the remote's branches to commits of the repository or `extra` (None: delete). Raises RemoteMoved, Unavailable."""

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
                store: Any = here.object_store
                known, lacking = ({id for id in ids if id in store} for ids in (have, want))
                count, records = here.generate_pack_data(known, lacking, **options)
                # Strict servers refuse a pack that holds an object twice.
                more = packed([one for one in extra if one.id.hex().encode() not in store])
                return count + len(more), chain(records, more)

            result = client.send_pack(path.encode(), update, pack)
        if refused := {
            name: message for name, message in (result.ref_status or {}).items() if message
        }:
            name, message = next(iter(refused.items()))
            raise Unavailable(
                f"The remote refused the branch {name.decode(errors='replace')}: {message}"
            )

    _ask(address, ask)


def _ask(address: GitAddress, ask: Callable[["GitClient", str], T], most: int = 0) -> T:
    """What a client of the repository answers, its errors in our words; `most` are the bytes of a pack that it may send."""
    from dulwich.client import HTTPUnauthorized, LocalGitClient
    from dulwich.errors import GitProtocolError, HangupException, NotGitRepository

    place = address.require_usable()
    try:
        if address.is_folder:
            return ask(LocalGitClient(), place)
        with _GitConnections(address) as connections:
            try:
                return ask(
                    _http_client(address, connections, most + _MOST_TOLD),
                    urlsplit(address.address).path,
                )
            except Exception as error:
                if connections.is_over:
                    raise Unavailable(
                        f"The remote took longer than {_LONGEST:g} seconds. It is tried again."
                    ) from error
                raise
    except HTTPUnauthorized as error:
        raise Forbidden("The remote requires another name or token. Enter it again.") from error
    except NotGitRepository as error:
        raise Unavailable(
            "There is no git repository at the remote. Make one there, empty."
        ) from error
    except (
        GitProtocolError,
        HangupException,
        HTTPException,
        OSError,
        ValueError,
        AssertionError,
    ) as error:
        raise Unavailable(
            f"The remote could not be reached or understood ({type(error).__name__})."
        ) from error


class _GitConnections(ExitStack):
    """The connections of one exchange, each to an IP address that was checked; they are shut down where it takes too long."""

    def __init__(self, address: GitAddress) -> None:
        super().__init__()
        self.is_over = False
        self._allow_private = address.allow_private
        self._sockets: list[socket] = []
        timer = threading.Timer(_LONGEST, self._break_off)
        timer.daemon = True
        timer.start()
        self.callback(timer.cancel)

    def ask(self, url: str, headers: Mapping[str, str], data: Any) -> HTTPResponse:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        host = parts.hostname or ""
        connection = (
            HTTPSConnection(host, parts.port) if is_tls else HTTPConnection(host, parts.port)
        )
        opened = connect(
            host, connection.port, _CONNECT, allow_private=self._allow_private, setting=PRIVATE
        )
        self._sockets.append(self.enter_context(opened))
        opened.settimeout(_TIMEOUT)
        if is_tls:
            opened = ssl.create_default_context().wrap_socket(opened, server_hostname=host)
            self._sockets.append(self.enter_context(opened))
        connection.sock = opened
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request("GET" if data is None else "POST", path, data, dict(headers))
        return self.enter_context(connection.getresponse())

    def _break_off(self) -> None:
        self.is_over = True
        for opened in list(self._sockets):
            with suppress(OSError):
                opened.shutdown(SHUT_RDWR)


def _http_client(address: GitAddress, connections: _GitConnections, most: int) -> "GitClient":
    """A client that reads so many bytes of all answers together."""
    from dulwich.client import AbstractHttpGitClient, HTTPUnauthorized
    from dulwich.errors import GitProtocolError, NotGitRepository

    usual = {"User-Agent": "git/ricordo", "Pragma": "no-cache"}
    if address.password:
        token = b64encode(f"{address.username}:{address.password}".encode()).decode()
        usual["Authorization"] = f"Basic {token}"

    class CheckedClient(AbstractHttpGitClient):
        """Follows no redirect, which would lead to an address that was not checked, and uses no proxy."""

        def _http_request(
            self, url: str, headers: Any = None, data: Any = None, raise_for_status: bool = True
        ) -> tuple[Any, Callable[[int], bytes]]:
            answer: Any = connections.ask(url, {**usual, **(headers or {})}, data)
            if raise_for_status and answer.status != HTTPStatus.OK:
                if answer.status == HTTPStatus.UNAUTHORIZED:
                    raise HTTPUnauthorized(None, url)
                if answer.status == HTTPStatus.NOT_FOUND:
                    raise NotGitRepository
                raise GitProtocolError(f"unexpected status {answer.status}")
            answer.content_type = answer.headers.get("Content-Type")
            answer.redirect_location = ""
            return answer, partial(read, answer)

    left = most

    def read(answer: Any, size: int) -> bytes:
        nonlocal left
        data: bytes = answer.read(min(size, left + 1))
        left -= len(data)
        if left < 0:
            raise TooLong(f"The remote answered with more than {most} bytes. Check the address.")
        return data

    url = urlsplit(address.address)
    return CheckedClient(f"{url.scheme}://{url.netloc}", quiet=True)
