"""The HTTP API of Open WebUI 0.12 for files, knowledge, notes and chats.

Its routes answer 401 or 400 if something is missing, and 200 with a page for an unknown path.
"""

import asyncio
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any
from urllib.parse import quote

import httpx2
import orjson

from ricordo.errors import Invalid, Unavailable
from ricordo.features.sync.remotes.service import RemoteMoved, require_lease
from ricordo.storage.engine.store import Store

_SECONDS = 60.0
_MAX_ANSWER_BYTES = 50_000_000
_FILES_PER_PAGE = 200
_MAX_FILES = 20_000
_CHATS_PER_PAGE = 60
_UNSET = (
    "The sync needs the address of Open WebUI and a key. Set RICORDO_OPENWEBUI_URL and "
    "RICORDO_OPENWEBUI_API_KEY."
)
# The most requests for the status while Open WebUI processes an uploaded file, and the pause
# between two.
_STATUS_CHECKS = 40
_STATUS_PAUSE_SECONDS = 0.25
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KnowledgeFile:
    """A file of a knowledge base.

    `text_hash` is the hash of the text that Open WebUI searches, `file_hash` the hash of the
    uploaded bytes. While the file is being processed (`in_process`), its content is not known.
    """

    id: str
    path: str
    text_hash: str
    file_hash: str
    in_process: bool = False

    @property
    def state(self) -> str:
        return f"{self.text_hash}|{self.file_hash}"


@dataclass(frozen=True, slots=True)
class StoredNote:
    """A note: its Markdown, its last change in nanoseconds, and Ricordo's metadata."""

    id: str
    text: str
    updated_at: str
    noted: Json


class NotTaken(Exception):
    """Open WebUI refused a file; the message is its reason."""


@dataclass(frozen=True, slots=True)
class _Received:
    """The status and the content of an answer."""

    status: int
    content: bytes


class OpenWebUI:
    """A connection to Open WebUI, for one sync.

    All methods raise Unavailable if Open WebUI fails or does not answer, and Invalid if it refuses
    the key. Methods that write there raise LeaseLost if the sync's job was cancelled or taken over.
    """

    def __init__(self, http: httpx2.AsyncClient, url: str, store: Store) -> None:
        self._http = http
        self._store = store
        self._url = f"{url.rstrip('/')}/api/v1"

    async def knowledge_base(self, marker: str, name: str, reader: str) -> str:
        """Return the id of the knowledge base whose description ends with the marker.

        A missing one is created. Of several, the lowest id is returned.

        Args:
            marker: A text that names the user of Ricordo, and is in no other description.
            name: The name of a new knowledge base.
            reader: The id of the user in Open WebUI that may read and write it.
        """
        listing = await self._json(
            "GET", f"/knowledge/search?view_option=created&query={quote(marker)}"
        )
        ids = [
            str(item["id"])
            for item in listing["items"]
            if str(item.get("description")).endswith(marker) and _is_for(item, reader)
        ]
        if ids:
            return min(ids)
        new = {
            "name": name,
            "description": f"Files that your agents work with. {marker}",
            "access_grants": grants_of(reader, is_writable=True),
        }
        return str((await self._json("POST", "/knowledge/create", new))["id"])

    async def files(self, knowledge_id: str) -> list[KnowledgeFile] | None:
        """Return a knowledge base's files, the oldest first; None if it is missing.

        Raises:
            RemoteMoved: if files were removed while the pages were read, so that others may be
                skipped.
            Invalid: if there are more files than the limit.
        """
        # A page may repeat a file that has moved to it meanwhile.
        files: dict[str, KnowledgeFile] = {}
        most = 0
        row_count = 0
        for page in count(1):
            query = f"page={page}&limit={_FILES_PER_PAGE}&order_by=created_at&direction=asc"
            answer = await self._find("GET", f"/knowledge/{knowledge_id}/files?{query}")
            if answer is None:
                return None
            most = max(most, answer["total"])
            if most > _MAX_FILES:
                raise Invalid(
                    f"The knowledge base in Open WebUI has {most:,} files, and at most "
                    f"{_MAX_FILES:,} are synced. Remove some there."
                )
            rows = answer["items"]
            row_count += len(rows)
            files |= {row["id"]: _file(row, row.get("directory_path") or "") for row in rows}
            if row_count >= answer["total"] or not rows:
                break
        if len(files) < most:
            raise RemoteMoved
        return list(files.values())

    async def file(self, file_id: str) -> tuple[KnowledgeFile, str] | None:
        """Return the present file with its searched text; None if it is missing."""
        answer = await self._find("GET", f"/files/{file_id}")
        if answer is None:
            return None
        return _file(answer, ""), str((answer.get("data") or {}).get("content") or "")

    async def original(self, file_id: str) -> bytes:
        """Return the bytes that were uploaded."""
        return (await self._send("GET", f"/files/{file_id}/content")).content

    async def upload(self, knowledge_id: str, path: str, content: bytes) -> KnowledgeFile:
        """Add a file to a knowledge base, and return it when it is processed.

        Args:
            knowledge_id: The knowledge base.
            path: The file's path in it, with "/" between folders. Missing folders are created.
            content: The bytes of the file.

        Raises:
            NotTaken: if Open WebUI refused the file, or could not process it.
            Unavailable: if the processing takes more than about ten seconds.
        """
        folder, _, name = path.rpartition("/")
        metadata = {"knowledge_id": knowledge_id, "file_hash": sha256(content).hexdigest()}
        if folder:
            metadata["directory_id"] = await self._directory(knowledge_id, folder)
        fallback_type = "application/octet-stream" if text_of(content) is None else "text/plain"
        media_type = mimetypes.guess_type(name)[0] or fallback_type
        answer = await self._send(
            "POST",
            "/files/?process=true&process_in_background=false",
            files={"file": (name, content, media_type)},
            data={"metadata": orjson.dumps(metadata).decode()},
            is_upload=True,
        )
        file_id = str(_read(answer)["id"])
        for _ in range(_STATUS_CHECKS):
            stored = await self._json("GET", f"/files/{file_id}")
            progress = stored.get("data") or {}
            if progress.get("status") == "completed":
                return _file(stored, folder)
            if progress.get("status") == "failed":
                await self._find("DELETE", f"/files/{file_id}")
                raise NotTaken(str(progress.get("error") or "it could not be processed")[:300])
            await asyncio.sleep(_STATUS_PAUSE_SECONDS)
        raise Unavailable("Open WebUI is still processing a file. The sync is tried again.")

    async def remove_file(self, knowledge_id: str, file_id: str) -> None:
        """Remove the file from the knowledge base.

        Open WebUI deletes it if it is in no other knowledge base.
        """
        await self._json(
            "POST",
            f"/knowledge/{knowledge_id}/sync/cleanup",
            {"file_ids": [file_id], "dir_ids": []},
        )

    async def note(self, note_id: str) -> StoredNote | None:
        answer = await self._find("GET", f"/notes/{note_id}")
        return None if answer is None else _note(answer)

    async def find_note(self, title: str, noted: Json, reader: str) -> StoredNote | None:
        """Return the reader's note with this title and this metadata of Ricordo.

        Args:
            title: The title, of which the first 100 characters are searched.
            noted: The fields that Ricordo's metadata of the note must contain; it may have others.
            reader: The id of a user in Open WebUI. Notes that others may read too are skipped.

        Returns:
            The note; None if there is none.
        """
        listing = await self._json(
            "GET", f"/notes/search?page=1&view_option=created&query={quote(title[:100])}"
        )
        for item in listing["items"]:
            metadata = (item.get("meta") or {}).get("ricordo") or {}
            is_same = all(metadata.get(key) == noted[key] for key in noted)
            if is_same and _is_for(item, reader):
                return await self.note(item["id"])
        return None

    async def put_note(
        self,
        note_id: str | None,
        title: str,
        *,
        content: Json,
        noted: Json,
        grants: list[Json],
    ) -> StoredNote:
        """Create a note, or change the one with this id.

        Args:
            note_id: The note to change; None creates one.
            title: The title.
            content: The text in Open WebUI's forms: `md`, `html` and `json`.
            noted: Ricordo's metadata of the note.
            grants: The rights of users, which are sent only with a new note.
        """
        body: Json = {"title": title, "data": {"content": content}, "meta": {"ricordo": noted}}
        if note_id is None:
            path = "/notes/create"
            body["access_grants"] = grants
        else:
            path = f"/notes/{note_id}/update"
        return _note(await self._json("POST", path, body))

    async def remove_note(self, note_id: str) -> None:
        await self._find("DELETE", f"/notes/{note_id}/delete")

    async def chat_ids(self, reader: str) -> set[str]:
        """Return the ids of a user's chats, archived ones too.

        A chat that moved to another page meanwhile may be missing.

        Args:
            reader: The user's id in Open WebUI.

        Raises:
            Invalid: if administrators may not see chats.
        """
        ids: set[str] = set()
        for page in count(1):
            query = f"page={page}&order_by=created_at&direction=asc"
            answer = await self._json("GET", f"/chats/list/user/{quote(reader, safe='')}?{query}")
            rows = answer.get("answer") or ()
            ids |= {str(row["id"]) for row in rows}
            if len(rows) < _CHATS_PER_PAGE:
                break
        return ids

    async def has_chat(self, chat_id: str) -> bool:
        return await self._find("GET", f"/chats/{chat_id}") is not None

    async def _directory(self, knowledge_id: str, folder: str) -> str:
        """Return the id of a folder in the knowledge base.

        Missing folders are created, from the top down.
        """
        answer = await self._json("POST", f"/knowledge/{knowledge_id}/sync/diff", {"manifest": []})
        ids_by_path = answer["directory_map"]
        parent_id: str | None = None
        parts = folder.split("/")
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            if path not in ids_by_path:
                new = {"name": parts[end - 1], "parent_id": parent_id}
                directory = await self._json("POST", f"/knowledge/{knowledge_id}/dirs/create", new)
                ids_by_path[path] = directory["id"]
            parent_id = ids_by_path[path]
        return parent_id or ""

    async def _find(self, method: str, path: str) -> Json | None:
        """Return the answer; None if Open WebUI has no such object."""
        answer = await self._send(method, path, may_miss=True)
        return None if answer.status >= 400 else _read(answer)

    async def _json(self, method: str, path: str, body: Any = None) -> Json:
        if body is None:
            return _read(await self._send(method, path))
        headers = {"content-type": "application/json"}
        return _read(await self._send(method, path, content=orjson.dumps(body), headers=headers))

    async def _send(
        self,
        method: str,
        path: str,
        *,
        may_miss: bool = False,
        is_upload: bool = False,
        **options: Any,
    ) -> _Received:
        if method != "GET":
            await require_lease(self._store)
        try:
            answer = await self._answer(method, path, **options)
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise Unavailable(
                f"Open WebUI cannot be reached ({type(error).__name__}). This is tried again."
            ) from error
        if answer.status < 400:
            return answer
        detail = _detail(answer)
        if may_miss and (answer.status == 404 or "could not find" in detail.casefold()):
            return answer
        if answer.status in (401, 403):
            raise Invalid(
                f"Open WebUI refuses RICORDO_OPENWEBUI_API_KEY: {detail} Use the key of an "
                "administrator."
            )
        if is_upload and answer.status in (400, 413):
            raise NotTaken(detail)
        raise Unavailable(f"Open WebUI answered {answer.status}: {detail}")

    async def _answer(self, method: str, path: str, **options: Any) -> _Received:
        content = bytearray()
        async with self._http.stream(method, f"{self._url}{path}", **options) as answer:
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > _MAX_ANSWER_BYTES:
                    raise Unavailable(
                        f"Open WebUI sent more than {_MAX_ANSWER_BYTES:,} bytes at once, which is "
                        "too much to read."
                    )
            return _Received(answer.status_code, bytes(content))


@asynccontextmanager
async def connected(url: str | None, key: str | None, store: Store) -> AsyncIterator[OpenWebUI]:
    """Open a connection for a sync.

    Args:
        url: The address of Open WebUI; None if it is not set.
        key: The API key of an administrator; None if it is not set.
        store: The store, which checks the lease of the sync's job before each write there.

    Raises:
        Invalid: if one of the two is missing.
    """
    if not url or not key:
        raise Invalid(_UNSET)
    async with httpx2.AsyncClient(
        headers={"authorization": f"Bearer {key}"},
        timeout=_SECONDS,
        trust_env=False,
        follow_redirects=False,
    ) as http:
        yield OpenWebUI(http, url, store)


def grants_of(reader: str, *, is_writable: bool) -> list[Json]:
    """Return the grants for a user of Open WebUI to read or write.

    Args:
        reader: The user's id in Open WebUI.
        is_writable: Whether the user may also write.
    """
    permissions = ("read", "write") if is_writable else ("read",)
    return [
        {"principal_type": "user", "principal_id": reader, "permission": permission}
        for permission in permissions
    ]


def text_of(content: bytes) -> str | None:
    """Return the bytes as text; None for binary content."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _is_for(item: Json, reader: str) -> bool:
    """Return True for an item that is shared only with this user.

    Other users could share an item that merely looks like it.
    """
    return {grant.get("principal_id") for grant in item.get("access_grants") or ()} == {reader}


def _file(row: Json, folder: str) -> KnowledgeFile:
    name = str(row.get("filename") or "")
    metadata = row.get("meta") or {}
    status = (row.get("data") or {}).get("status")
    return KnowledgeFile(
        id=str(row["id"]),
        path=f"{folder}/{name}" if folder else name,
        text_hash=str(row.get("hash") or ""),
        file_hash=str(metadata.get("file_hash") or ""),
        in_process=status in ("pending", "processing"),
    )


def _note(row: Json) -> StoredNote:
    content = ((row.get("data") or {}).get("content")) or {}
    return StoredNote(
        id=str(row["id"]),
        text=str(content.get("md") or ""),
        updated_at=str(row.get("updated_at")),
        noted=(row.get("meta") or {}).get("ricordo") or {},
    )


def _read(answer: _Received) -> Json:
    try:
        document = orjson.loads(answer.content)
    except orjson.JSONDecodeError as error:
        raise Unavailable(
            "The server at RICORDO_OPENWEBUI_URL does not answer like Open WebUI. Check the "
            "address."
        ) from error
    return document if isinstance(document, dict) else {"answer": document}


def _detail(answer: _Received) -> str:
    """Return the reason that a refusal names."""
    try:
        detail = orjson.loads(answer.content).get("detail")
    except (orjson.JSONDecodeError, AttributeError):
        detail = None
    return str(detail or "no reason was given")[:300]
