"""`git clone`, `fetch` and `push` of a user's memory, by git's smart HTTP protocol at `/users/{user_id}/memory.git`.

What is read comes from a repository that is made of the database (see repository.py); what is pushed goes into the database.
Everything that blocks runs in a thread, and what is sent or answered in large is kept on disk meanwhile.
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

_READ, _WRITE = "git-upload-pack", "git-receive-pack"
_ON_DISK_FROM = 1024 * 1024
_PIECE = 64 * 1024
_HAVE = re.compile(rb"have ([0-9a-f]{40})")
_ODD = re.compile(rb"[0-9a-f]{4}(?:shallow|deepen)|filter[= ]")
_CLONE = re.compile(rb"(?:[0-9a-f]{4}want [0-9a-f]{40}[^\n]*\n)+00000009done\n")
_MOST_HAVES = 256
_TOO_LONG = "This push is longer than {} MB, which is the most that is taken at once. Push older commits first."
_WANTED = re.compile(rb"want ([0-9a-f]{40})")
_FILTER = re.compile(rb"([0-9a-f]{4})filter ")
_SHALLOW = re.compile(rb"0034shallow ([0-9a-f]{40})|0035shallow ([0-9a-f]{40})\n")
_DEEPEN = re.compile(rb"[0-9a-f]{4}deepen")
_WANTS = re.compile(rb"(?:[0-9a-f]{4}want [^\n]*\n)+")
# Whoever may read a memory may have each object of it, so a partial clone may ask for those that it left out.
_ANY_OBJECT = (
    b"allow-tip-sha1-in-want",
    b"allow-reachable-sha1-in-want",
    b"allow-any-sha1-in-want",
)
_FRESH = {"cache-control": "no-cache, max-age=0, must-revalidate", "pragma": "no-cache"}


async def list_branches(context: RequestContext, user_id: str, service: str) -> Response:
    """Which branches there are, in the form of the service that will be asked for."""
    if service not in (_READ, _WRITE):
        raise Invalid("Only git's smart protocol is spoken here. Use git 1.6.6 or newer.")
    chain, _ = await _memory(context, user_id, makes=False)
    if service == _WRITE:
        return _answer(service, "advertisement", push_advertisement(chain.head if chain else None))
    told = FLUSH
    if chain and chain.head:
        told = await read_repository(
            context.store, context.runtime.settings.data_dir, chain.id, _advertised
        )
    return _answer(service, "advertisement", pkt_seq(b"# service=git-upload-pack\n") + told)


async def send_objects(context: RequestContext, user_id: str) -> Response:
    """Send what a clone or a fetch lacks."""
    chain, _ = await _memory(context, user_id, makes=False)
    body, _ = await _body(context, _READ)
    if chain is None or chain.head is None:
        raise NotFound("There is nothing in this memory yet. Write a block first.")
    work = partial(_packed, body=body, lacking=await _lacking(context, chain.id, body))
    answer = await read_repository(context.store, context.runtime.settings.data_dir, chain.id, work)
    return StreamingResponse(
        _pieces(answer), media_type=f"application/x-{_READ}-result", headers=_FRESH
    )


async def receive_push(context: RequestContext, user_id: str) -> Response:
    """Make versions or proposals of what is pushed."""
    if context.scope.subject_id is not None or is_id(
        user_id, "user"
    ):  # no user is made: refused before anything is read
        await _memory(context, user_id, makes=False)
    body, is_whole = await _body(context, _WRITE)
    request = read_push(body)
    if not request.commands:  # git asks whether it may, before it sends much
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
    """The user with their chain, None where they have none yet. Raises NotFound where there is no such user."""

    def find(tx: Transaction) -> tuple[Chain | None, User]:
        owned = open_memory(tx, context.scope, user_id, makes=makes)
        return versions.of_owner(tx, context.scope, "user", owned.user.id), owned.user

    return await (context.store.write(find) if makes else context.store.read(find))


async def _lacking(context: RequestContext, chain_id: str, body: bytes) -> list[bytes] | None:
    """The objects behind the newest version that the client has; None where that does not tell what it lacks."""
    if _ODD.search(body):
        return None
    haves = [bytes.fromhex(id.decode()) for id in _HAVE.findall(body)[:_MOST_HAVES]]

    def newest(tx: Transaction) -> int:
        return max((history.number_of(tx, chain_id, have) or 0 for have in haves), default=0)

    number = await context.store.read(newest) if haves else 0
    if not number:
        return None
    found = history.portions(context.store, chain_id, number)
    return [made.id async for portion in found for made in portion.objects]


async def _body(context: RequestContext, service: str) -> tuple[bytes, bool]:
    """The body of the request, unpacked where it was packed, and whether that is all of it. Raises Invalid, TooLong.

    Of a push that is too long the beginning is kept and the rest is read past: git shows no answer that comes before it has
    sent all.
    """
    request = context.request
    # A web page cannot send this type without asking first.
    if request.headers.get("content-type") != f"application/x-{service}-request":
        raise Invalid(
            f"The body must have the type application/x-{service}-request, as git sends it."
        )
    packing = request.headers.get("content-encoding", "identity").lower()
    if packing not in ("identity", "gzip", "x-gzip"):
        raise Invalid(
            f"The body is packed with {packing[:40]}, which is not read here. Send it plain or with gzip."
        )
    most = context.runtime.settings.max_body_mb * 1024 * 1024
    pieces = _unpacked(request, most) if packing != "identity" else request.stream()
    body = bytearray()
    is_whole = True
    async for piece in pieces:
        if is_whole:
            body += piece
        if len(body) > most:
            if service == _READ:
                raise TooLong(
                    f"The request is longer than {most} bytes. Fetch with a newer git, or clone again."
                )
            is_whole = False
            del body[_ON_DISK_FROM:]
    return bytes(body), is_whole


async def _unpacked(request: Request, most: int) -> AsyncIterator[bytes]:
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    left = most
    try:
        async for piece in request.stream():
            packed = piece
            while packed and left >= 0:
                part = unpacker.decompress(
                    packed, _ON_DISK_FROM
                )  # so little that others need not wait
                packed = unpacker.unconsumed_tail
                left -= len(part)
                yield part
                await asyncio.sleep(0)
            if left < 0:
                raise TooLong(
                    f"The request unpacks to more than {most} bytes. Push fewer commits at once."
                )
    except zlib.error as error:
        raise Invalid("The body is not packed with gzip, as it says. Send it again.") from error
    if not unpacker.eof:
        raise Invalid("The body ends too early. Send it again.")


def _advertised(path: Path) -> bytes:
    answer = BytesIO()
    _serve(path, b"", answer.write, None, advertises=True)
    return answer.getvalue()


def _packed(path: Path, body: bytes, lacking: list[bytes] | None) -> IO[bytes]:
    """The whole answer in a file without a name: a slow reader holds no thread, and nothing of the repository."""
    answer: IO[bytes] = SpooledTemporaryFile(max_size=_ON_DISK_FROM)  # noqa: SIM115 - closed by whoever sends it
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
        wanted, shallow = _WANTED.findall(body), []
        if not _DEEPEN.search(
            body
        ):  # without it the library cannot read where the client's history ends
            shallow = [plain or line for plain, line in _SHALLOW.findall(body)]
            body = _SHALLOW.sub(b"", body)
        protocol = ReceivableProtocol(
            BytesIO(_with_filter_first(body, repository, wanted)).read, write
        )
        offered: Any = _OfferedRepository(repository, wanted, lacking, shallow)
        backend = DictBackend({"/": offered})
        handler = _Upload(backend, ["/"], protocol, stateless_rpc=True, advertise_refs=advertises)
        try:
            handler.handle()
        except (GitProtocolError, HangupException, AssertionError, ValueError) as error:
            failure = Invalid(f"git's request cannot be answered: {error}. Fetch again.")
        except Exception as error:
            failure = error
            # Its frames hold files that could not be closed otherwise.
            traceback.clear_frames(error.__traceback__)
    if failure is not None:
        raise failure


def _with_filter_first(body: bytes, repository: Repo, wanted: list[bytes]) -> bytes:
    """Return the request with its filter right after what is wanted, where the library reads it.

    Without one where something else than commits is wanted: what a partial clone left out, and asks for now by its id.
    """
    if (found := _FILTER.search(body)) is None:
        return body
    line = body[found.start() : found.start() + int(found[1], 16)]
    rest = body.replace(line, b"", 1)
    wants = _WANTS.match(rest)
    store = repository.object_store
    if wants is None or not all(id in store and store[id].type_name == b"commit" for id in wanted):  # type: ignore[index,operator]
        return rest
    return rest[: wants.end()] + line + rest[wants.end() :]


class _Upload(UploadPackHandler):
    """Git's upload, by which any object can be asked for."""

    def capabilities(self) -> list[bytes]:
        return [*super().capabilities(), *_ANY_OBJECT]


class _OfferedRepository:
    """A repository with the branches as the client saw them; it lacks what is `lacking`, or what a walk of the history finds.

    The client has nothing of what is behind `shallow` commits.
    """

    def __init__(
        self,
        repository: Repo,
        wanted: list[bytes],
        lacking: list[bytes] | None,
        shallow: list[bytes],
    ) -> None:
        self._repository, self._lacking, self._shallow = repository, lacking, shallow
        # Whatever is in there belongs to this memory, so whoever may read it may have it all.
        self._wanted = {b"refs/asked/" + id: id for id in wanted if id in repository.object_store}  # type: ignore[operator]

    def get_refs(self) -> Any:
        return {**self._repository.get_refs(), **self._wanted}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repository, name)

    def find_missing_objects(
        self, determine_wants: Any, graph_walker: Any, progress: Any, **options: Any
    ) -> Any:
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
        # This is where both agree on what the client has, line by line.
        self.object_store.find_common_revisions(graph_walker)
        return [(id.hex().encode(), None) for id in self._lacking]


def _pieces(answer: IO[bytes]) -> Iterator[bytes]:
    with closing(answer):
        while piece := answer.read(_PIECE):
            yield piece


def _answer(service: str, what: str, content: bytes) -> Response:
    return Response(content, media_type=f"application/x-{service}-{what}", headers=_FRESH)
