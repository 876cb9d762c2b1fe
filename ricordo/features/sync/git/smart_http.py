"""`git clone`, `fetch` and `push` of a user's memory by git's smart HTTP protocol.

The address is `/users/{user_id}/memory.git`. Reads use a repository that is built from the database
(see repository.py); pushes go into the database. Blocking work runs in a thread. A request is in
memory as a whole; a large answer is in a temporary file until it is sent.
"""

import asyncio
import re
import traceback
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from dulwich.errors import GitProtocolError, HangupException
from dulwich.protocol import SIDE_BAND_CHANNEL_DATA, Protocol, ReceivableProtocol, pkt_line, pkt_seq
from dulwich.repo import Repo
from dulwich.server import DictBackend, UploadPackHandler
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from ricordo.api.call import RequestContext
from ricordo.domain.block import Chain
from ricordo.domain.ids import is_id
from ricordo.domain.scope import User
from ricordo.errors import Invalid, NotFound, RicordoError, TooLong
from ricordo.features.sync.git import history
from ricordo.features.sync.git.receiver import (
    FLUSH,
    PushOutcome,
    PushReceiver,
    push_advertisement,
    push_report,
    read_push,
)
from ricordo.features.sync.git.repository import copy_whole, open_repository, read_repository
from ricordo.memory.user_memory import open_memory
from ricordo.storage import versions
from ricordo.storage.engine.store import Transaction

_READ = "git-upload-pack"
_WRITE = "git-receive-pack"
_ON_DISK_FROM = 1024 * 1024
_PIECE = 64 * 1024
_HAVE = re.compile(rb"have ([0-9a-f]{40})")
_ODD = re.compile(rb"[0-9a-f]{4}(?:shallow|deepen)|filter[= ]")
_CLONE = re.compile(rb"(?:[0-9a-f]{4}want [0-9a-f]{40}[^\n]*\n)+00000009done\n")
_MOST_HAVES = 256
_TOO_LONG = "This push is longer than {} MB, the limit of one push. Push older commits first."
_WANTED = re.compile(rb"want ([0-9a-f]{40})")
_FILTER = re.compile(rb"([0-9a-f]{4})filter ")
_SHALLOW = re.compile(rb"0034shallow ([0-9a-f]{40})|0035shallow ([0-9a-f]{40})\n")
_DEEPEN = re.compile(rb"[0-9a-f]{4}deepen")
_WANTS = re.compile(rb"(?:[0-9a-f]{4}want [^\n]*\n)+")
# A reader of a memory may read all its objects, so a partial clone may request omitted objects
# later.
_ANY_OBJECT = (
    b"allow-tip-sha1-in-want",
    b"allow-reachable-sha1-in-want",
    b"allow-any-sha1-in-want",
)
# No cache may store an answer.
_FRESH = {"cache-control": "no-cache, max-age=0, must-revalidate", "pragma": "no-cache"}


async def list_branches(context: RequestContext, user_id: str, service: str) -> Response:
    """Return the branches in the form of the service that git will request.

    Args:
        context: The call.
        user_id: The user whose memory it is, by id or identifier.
        service: "git-upload-pack" for a clone or fetch, "git-receive-pack" for a push.

    Raises:
        Invalid: for another service.
        NotFound: if there is no such user.
        Unavailable: if the repository is being prepared for too long.
    """
    if service not in (_READ, _WRITE):
        raise Invalid("This server only speaks git's smart protocol. Use git 1.6.6 or newer.")
    chain, _ = await _memory(context, user_id, makes=False)
    if service == _WRITE:
        return _answer(service, "advertisement", push_advertisement(chain.head if chain else None))
    refs = FLUSH
    if chain and chain.head:
        refs = await read_repository(
            context.store, context.runtime.settings.data_dir, chain.id, _advertised
        )
    return _answer(service, "advertisement", pkt_seq(b"# service=git-upload-pack\n") + refs)


async def send_objects(context: RequestContext, user_id: str) -> Response:
    """Send the objects that a clone or fetch lacks.

    Args:
        context: The call, whose body is git's request.
        user_id: The user whose memory it is, by id or identifier.

    Raises:
        NotFound: if there is no such user, or the memory is empty.
        Invalid: if the request cannot be read.
        TooLong: if it is too long.
        Unavailable: if the repository is being prepared for too long.
    """
    chain, _ = await _memory(context, user_id, makes=False)
    body, _ = await _body(context, _READ)
    if chain is None or chain.head is None:
        raise NotFound("This memory is empty. Write a block first.")
    work = partial(_packed, body=body, lacking=await _lacking(context, chain.id, body))
    answer = await read_repository(context.store, context.runtime.settings.data_dir, chain.id, work)
    return StreamingResponse(
        _pieces(answer), media_type=f"application/x-{_READ}-result", headers=_FRESH
    )


async def receive_push(context: RequestContext, user_id: str) -> Response:
    """Turn a push into versions or proposals.

    Args:
        context: The call, whose body is the push.
        user_id: The user whose memory it is, by id or identifier. A new user is created.

    Raises:
        NotFound: if there is no such user, and the caller may not create one.
        Invalid: if the body cannot be read. Other faults are reported in the answer.
    """
    if context.scope.subject_id is not None or is_id(user_id, "user"):
        # A push to an unknown user is refused before the body is read, since it cannot create a
        # user.
        await _memory(context, user_id, makes=False)
    body, is_whole = await _body(context, _WRITE)
    request = read_push(body)
    if not request.commands:  # git asks for permission before it sends a large body
        return _answer(_WRITE, "result", b"")
    settings = context.runtime.settings
    outcomes: list[PushOutcome] = []
    fault = None
    try:
        if not is_whole:
            raise TooLong(_TOO_LONG.format(settings.max_body_mb))
        chain, user = await _memory(context, user_id, makes=True)
        if chain:
            receiver = PushReceiver(context.store, settings, context.scope.acting_for(user), chain)
            outcomes = await receiver.receive(request.commands, request.pack)
    except RicordoError as error:
        fault = str(error)
        outcomes = [PushOutcome(command.branch, fault) for command in request.commands]
        outcomes[0] = outcomes[0]._replace(messages=(fault,))
    return _answer(_WRITE, "result", push_report(outcomes, request.capabilities, fault))


async def _memory(
    context: RequestContext, user_id: str, *, makes: bool
) -> tuple[Chain | None, User]:
    """Return the user with the user's chain; the chain is None if there is none.

    Raises NotFound for an unknown user.
    """

    def find(tx: Transaction) -> tuple[Chain | None, User]:
        owned = open_memory(tx, context.scope, user_id, makes=makes)
        return versions.of_owner(tx, context.scope, "user", owned.user.id), owned.user

    if makes:
        return await context.store.write(find)
    return await context.store.read(find)


async def _lacking(context: RequestContext, chain_id: str, body: bytes) -> list[bytes] | None:
    """Return the objects after the newest version that the client has.

    Return None if the versions that the client names do not show which objects it lacks.
    """
    if _ODD.search(body):
        return None
    haves = [bytes.fromhex(id.decode()) for id in _HAVE.findall(body)[:_MOST_HAVES]]

    def newest(tx: Transaction) -> int:
        return max((history.number_of(tx, chain_id, have) or 0 for have in haves), default=0)

    number = await context.store.read(newest) if haves else 0
    if not number:
        return None
    portions = history.portions(context.store, chain_id, number)
    return [git_object.id async for portion in portions for git_object in portion.objects]


async def _body(context: RequestContext, service: str) -> tuple[bytes, bool]:
    """Return the unpacked body of the request, and whether it is complete.

    Raises Invalid, TooLong.

    Of a push that is too long, only the beginning is returned. The rest is read and dropped, since
    git shows an answer only after it has sent everything.
    """
    request = context.request
    # A browser sends this type from a page of another site only after a preflight request.
    if request.headers.get("content-type") != f"application/x-{service}-request":
        raise Invalid(f"The body must have the content type application/x-{service}-request.")
    packing = request.headers.get("content-encoding", "identity").lower()
    if packing not in ("identity", "gzip", "x-gzip"):
        raise Invalid(
            f"The body has the encoding {packing[:40]}, which is not supported. Send it plain or "
            "with gzip."
        )
    limit = context.runtime.settings.max_body_mb * 1024 * 1024
    if packing != "identity":
        pieces = _unpacked(request, limit)
    else:
        pieces = request.stream()
    body = bytearray()
    is_whole = True
    async for piece in pieces:
        if is_whole:
            body += piece
        if len(body) > limit:
            if service == _READ:
                raise TooLong(
                    f"The request is longer than {limit} bytes. Fetch with a newer git, or clone "
                    "again."
                )
            is_whole = False
            del body[_ON_DISK_FROM:]
    return bytes(body), is_whole


async def _unpacked(request: Request, limit: int) -> AsyncIterator[bytes]:
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    remaining = limit
    try:
        async for piece in request.stream():
            packed = piece
            while packed and remaining >= 0:
                # Read small parts, so that other requests need not wait.
                part = unpacker.decompress(packed, _ON_DISK_FROM)
                packed = unpacker.unconsumed_tail
                remaining -= len(part)
                yield part
                await asyncio.sleep(0)
            if remaining < 0:
                raise TooLong(
                    f"The request unpacks to more than {limit} bytes. Push fewer commits at once."
                )
    except zlib.error as error:
        raise Invalid("The body says that it is gzip, but it is not. Send it again.") from error
    if not unpacker.eof:
        raise Invalid("The body ends too early. Send it again.")


def _advertised(path: Path) -> bytes:
    answer = BytesIO()
    _serve(path, b"", answer.write, None, advertises=True)
    return answer.getvalue()


def _packed(path: Path, body: bytes, lacking: list[bytes] | None) -> IO[bytes]:
    """Return the whole answer in a temporary file.

    So a slow reader occupies no thread, and no file of the repository stays open.
    """
    answer: IO[bytes] = SpooledTemporaryFile(  # noqa: SIM115 - closed after it is sent
        max_size=_ON_DISK_FROM
    )
    try:
        if _CLONE.fullmatch(body) and b"side-band-64k" in body and not _ODD.search(body):
            answer.write(pkt_line(b"NAK\n"))
            copy_whole(
                path,
                partial(Protocol(answer.read, answer.write).write_sideband, SIDE_BAND_CHANNEL_DATA),
            )
            answer.write(FLUSH)
        else:
            _serve(path, body, answer.write, lacking, advertises=False)
    except BaseException:
        answer.close()
        raise
    answer.seek(0)
    return answer


def _serve(
    path: Path,
    body: bytes,
    write: Callable[[bytes], int],
    lacking: list[bytes] | None,
    *,
    advertises: bool,
) -> None:
    failure: Exception | None = None
    with closing(open_repository(path)) as repository:
        wanted_ids = _WANTED.findall(body)
        shallow = []
        # Without `deepen`, the library cannot read the ends of a shallow client's history.
        if not _DEEPEN.search(body):
            shallow = [plain or line for plain, line in _SHALLOW.findall(body)]
            body = _SHALLOW.sub(b"", body)
        protocol = ReceivableProtocol(
            BytesIO(_with_filter_first(body, repository, wanted_ids)).read, write
        )
        offered: Any = _OfferedRepository(repository, wanted_ids, lacking, shallow)
        backend = DictBackend({"/": offered})
        handler = _Upload(backend, ["/"], protocol, stateless_rpc=True, advertise_refs=advertises)
        try:
            handler.handle()
        except (GitProtocolError, HangupException, AssertionError, ValueError) as error:
            failure = Invalid(f"git's request cannot be answered: {error}. Fetch again.")
        except Exception as error:
            failure = error
            # Drop the error's frames, since they refer to open files, which could not be closed
            # otherwise.
            traceback.clear_frames(error.__traceback__)
    if failure is not None:
        raise failure


def _with_filter_first(body: bytes, repository: Repo, wanted_ids: list[bytes]) -> bytes:
    """Return the request with its filter moved right after the wanted ids.

    The library expects it there. The filter is dropped if objects other than commits are wanted. A
    partial clone asks for these by id after it has left them out.
    """
    if (match := _FILTER.search(body)) is None:
        return body
    line = body[match.start() : match.start() + int(match[1], 16)]
    rest = body.replace(line, b"", 1)
    wants = _WANTS.match(rest)
    store: Any = repository.object_store
    is_commit = (id in store and store[id].type_name == b"commit" for id in wanted_ids)
    if wants is None or not all(is_commit):
        return rest
    return rest[: wants.end()] + line + rest[wants.end() :]


class _Upload(UploadPackHandler):
    """Git's upload service, in which a client may ask for any object."""

    def capabilities(self) -> list[bytes]:
        return [*super().capabilities(), *_ANY_OBJECT]


class _OfferedRepository:
    """A repository with the branches in the state that the client saw.

    The client lacks the objects `lacking`; with None, a walk of the history finds them. The client
    has no objects before the `shallow` commits.
    """

    def __init__(
        self,
        repository: Repo,
        wanted_ids: list[bytes],
        lacking: list[bytes] | None,
        shallow: list[bytes],
    ) -> None:
        self._repository = repository
        self._lacking = lacking
        self._shallow = shallow
        # The repository holds only this memory, so a reader of the memory may have all objects.
        store = repository.object_store
        self._wanted = {
            b"refs/asked/" + id: id
            for id in wanted_ids
            if id in store  # type: ignore[operator]
        }

    def get_refs(self) -> Any:
        return {**self._repository.get_refs(), **self._wanted}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repository, name)

    def find_missing_objects(
        self, determine_wants: Any, graph_walker: Any, progress: Any, **options: Any
    ) -> Any:
        """Return the objects that the client lacks, in the form of dulwich's repositories.

        Args:
            determine_wants: dulwich's function that reads the wanted ids.
            graph_walker: dulwich's walker, which reads the client's commits.
            progress: dulwich's function for messages to the client.
            **options: Further options of dulwich.
        """

        def determine(_refs: Any, depth: int | None = None) -> Any:
            wants = determine_wants(self.get_refs(), depth)
            graph_walker.shallow.update(self._shallow)
            return wants

        if self._lacking is None:
            return self._repository.find_missing_objects(
                determine, graph_walker, progress, **options
            )
        if not determine(None):
            return []
        # This call exchanges lines with the client, to find out which commits it has.
        self.object_store.find_common_revisions(graph_walker)
        return [(id.hex().encode(), None) for id in self._lacking]


def _pieces(answer: IO[bytes]) -> Iterator[bytes]:
    with closing(answer):
        while piece := answer.read(_PIECE):
            yield piece


def _answer(service: str, kind: str, content: bytes) -> Response:
    return Response(content, media_type=f"application/x-{service}-{kind}", headers=_FRESH)
