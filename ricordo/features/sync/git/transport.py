"""Access to git repositories elsewhere, in a local folder or at an http address.

A server must have only public IP addresses, unless the operator allows private ones. The connection
uses the IP address that was checked. Redirects are not followed.
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

from ricordo.domain.git_objects import GitObject
from ricordo.errors import Forbidden, Invalid, TooLong, Unavailable
from ricordo.features.sync.git.objects import MOST_BYTES
from ricordo.features.sync.git.repository import make_repository, open_repository, packed
from ricordo.features.sync.remotes.service import PRIVATE, RemoteMoved, require_folder
from ricordo.llm.addresses import connect, require_callable

if TYPE_CHECKING:
    from dulwich.client import GitClient

T = TypeVar("T")
_CONNECT = 10.0  # seconds to wait for a connection
_TIMEOUT = 60.0  # seconds to wait for the next bytes
# The most seconds of a whole exchange, which occupies a thread. A server that stops waits for it.
_LONGEST = 600.0
# The most bytes in a remote's answers besides packs. Most of these bytes are names of branches.
_MOST_ANSWERED = 16 * 1024 * 1024
_ZERO = b"0" * 40
Refs = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class GitAddress:
    """A folder or an http address, with credentials and the operator's permissions.

    `allow_private` allows private IP addresses; `folders` are the folders in which remotes may be.
    """

    address: str
    username: str = "git"
    password: str | None = None
    allow_private: bool = False
    folders: tuple[Path, ...] = ()

    @property
    def is_folder(self) -> bool:
        return not self.address.startswith(("http://", "https://"))

    def require_usable(self) -> str:
        """Return the address; for a folder, every link is resolved.

        Raises:
            Invalid: if it cannot be a remote.
        """
        if not self.is_folder:
            require_callable(self.address, allow_private=self.allow_private, setting=PRIVATE)
            return self.address
        if not Path(self.address).is_absolute():
            raise Invalid(
                "The remote must be an address that begins with https://, or the absolute "
                "path of a folder."
            )
        return str(require_folder(Path(self.address), self.folders))


def branches(address: GitAddress) -> dict[bytes, bytes]:
    """Return the branches of the remote with the ids of their commits (20 bytes).

    A folder that does not exist is created.

    Args:
        address: The remote.

    Raises:
        Invalid: if the address may not be used.
        Unavailable: if the remote cannot be reached.
        Forbidden: if it requires other credentials.
        TooLong: if the answer is too large.
    """
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


def fetch(address: GitAddress, commit_id: bytes, repository: Path) -> bytes:
    """Fetch a pack with the commit and all objects that the repository lacks.

    Args:
        address: The remote.
        commit_id: The id of a commit at the remote (20 bytes).
        repository: The path of the local repository, which is not changed.

    Raises:
        Invalid: if the address may not be used.
        Unavailable: if the remote cannot be reached.
        Forbidden: if it requires other credentials.
        TooLong: if the pack is too large.
    """
    pack = bytearray()

    def take(chunk: bytes) -> int:
        pack.extend(chunk)
        if len(pack) > MOST_BYTES:
            raise TooLong(
                f"The remote sent more than {MOST_BYTES} bytes. Push the remote's commits to the "
                "memory in portions."
            )
        return len(chunk)

    def want(refs: Any, depth: int | None = None) -> Any:
        if refs and depth is None:
            return [commit_id.hex().encode()]
        return []

    def ask(client: "GitClient", path: str) -> bytes:
        with closing(open_repository(repository)) as local:
            client.fetch_pack(path.encode(), want, local.get_graph_walker(), take)
        return bytes(pack)

    return _ask(address, ask, MOST_BYTES)


def push(
    address: GitAddress,
    repository: Path,
    expected: Refs,
    targets: Mapping[bytes, bytes | None],
    extra: Collection[GitObject] = (),
) -> None:
    """Move the remote's branches to commits of the repository or of `extra`.

    Args:
        address: The remote.
        repository: The path of the local repository.
        expected: The remote's branches as they were read.
        targets: The new commit of each branch; None deletes the branch.
        extra: Objects to send that the repository lacks.

    Raises:
        RemoteMoved: if a branch is not as expected.
        Invalid: if the address may not be used.
        Unavailable: if the remote cannot be reached or refuses.
        Forbidden: if it requires other credentials.
        TooLong: if the answer is too large.
    """

    def ask(client: "GitClient", path: str) -> None:
        with closing(open_repository(repository)) as local:

            def update(refs: Any) -> Any:
                for name in targets:
                    now = refs.get(name)
                    if (bytes.fromhex(now.decode()) if now else None) != expected.get(name):
                        raise RemoteMoved
                return {name: id.hex().encode() if id else _ZERO for name, id in targets.items()}

            def pack(have: Collection[Any], want: Collection[Any], **options: Any) -> Any:
                # Only ids that are stored here can tell which objects the remote lacks.
                store: Any = local.object_store
                known_ids, missing_ids = ({id for id in ids if id in store} for ids in (have, want))
                count, records = local.generate_pack_data(known_ids, missing_ids, **options)
                # Strict servers refuse a pack that contains an object twice.
                new = [
                    git_object for git_object in extra if git_object.id.hex().encode() not in store
                ]
                extra_records = packed(new)
                return count + len(extra_records), chain(records, extra_records)

            answer = client.send_pack(path.encode(), update, pack)
        for name, message in (answer.ref_status or {}).items():
            if message:
                raise Unavailable(
                    f"The remote refused the branch {name.decode(errors='replace')}: {message}"
                )

    _ask(address, ask)


def drop_unreachable(address: GitAddress) -> None:
    """Delete the objects of a local repository that no branch reaches any more.

    At an http address, the server decides when to delete them. Raises Unavailable, and Invalid if
    the address may not be used.
    """
    if not address.is_folder:
        return
    from dulwich.gc import garbage_collect

    try:
        with closing(open_repository(Path(address.require_usable()))) as repository:
            garbage_collect(repository, prune=True, grace_period=None)
    except OSError as error:
        raise Unavailable(
            f"The remote's old objects could not be deleted ({type(error).__name__})."
        ) from error


def _ask(address: GitAddress, ask: Callable[["GitClient", str], T], pack_bytes: int = 0) -> T:
    """Call `ask` with a client for the repository and its path, and translate errors.

    The remote may answer with packs of at most `pack_bytes`.
    """
    from dulwich.client import HTTPUnauthorized, LocalGitClient
    from dulwich.errors import GitProtocolError, HangupException, NotGitRepository

    usable_address = address.require_usable()
    try:
        if address.is_folder:
            return ask(LocalGitClient(), usable_address)
        with _GitConnections(address) as connections:
            try:
                return ask(
                    _http_client(address, connections, pack_bytes + _MOST_ANSWERED),
                    urlsplit(address.address).path,
                )
            except Exception as error:
                if connections.is_over:
                    raise Unavailable(
                        f"The remote took longer than {_LONGEST:g} seconds. The sync is tried again."
                    ) from error
                raise
    except HTTPUnauthorized as error:
        raise Forbidden("The remote requires another name or token. Enter it again.") from error
    except NotGitRepository as error:
        raise Unavailable(
            "There is no git repository at the remote. Create an empty one there."
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
    """The connections of one exchange, each to an IP address that was checked.

    If the exchange takes too long, the connections are closed.
    """

    def __init__(self, address: GitAddress) -> None:
        super().__init__()
        self.is_over = False
        self._allow_private = address.allow_private
        self._sockets: list[socket] = []
        timer = threading.Timer(_LONGEST, self._break_off)
        timer.daemon = True
        timer.start()
        self.callback(timer.cancel)

    def ask(self, url: str, headers: Mapping[str, str], body: Any) -> HTTPResponse:
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
        if parts.query:
            path = f"{parts.path}?{parts.query}"
        else:
            path = parts.path
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        return self.enter_context(connection.getresponse())

    def _break_off(self) -> None:
        self.is_over = True
        for opened in list(self._sockets):
            with suppress(OSError):
                opened.shutdown(SHUT_RDWR)


def _http_client(address: GitAddress, connections: _GitConnections, limit: int) -> "GitClient":
    """Return a client that reads at most `limit` bytes in all answers together."""
    from dulwich.client import AbstractHttpGitClient, HTTPUnauthorized
    from dulwich.errors import GitProtocolError, NotGitRepository

    usual = {"User-Agent": "git/ricordo", "Pragma": "no-cache"}
    if address.password:
        token = b64encode(f"{address.username}:{address.password}".encode()).decode()
        usual["Authorization"] = f"Basic {token}"

    class CheckedClient(AbstractHttpGitClient):
        """An HTTP client without proxies and redirects.

        A redirect could lead to an unchecked address.
        """

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

    remaining = limit

    def read(answer: Any, size: int) -> bytes:
        nonlocal remaining
        chunk: bytes = answer.read(min(size, remaining + 1))
        remaining -= len(chunk)
        if remaining < 0:
            raise TooLong(f"The remote answered with more than {limit} bytes. Check the address.")
        return chunk

    url = urlsplit(address.address)
    return CheckedClient(f"{url.scheme}://{url.netloc}", quiet=True)
