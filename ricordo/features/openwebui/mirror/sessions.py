"""The HTTP API of Open WebUI 0.12, as far as files, knowledge and notes are concerned.

Its routes answer 401 or 400 for what is not there, and 200 with a page for a path that it does not know.
"""

import asyncio
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import httpx2
import orjson

from ricordo.errors import Invalid, Unavailable

_SECONDS = 60.0
_LARGEST = 50_000_000  # bytes of an answer
_PER_PAGE, _MOST_PAGES = 200, 100
_UNSET = "RICORDO_OPENWEBUI_URL and RICORDO_OPENWEBUI_API_KEY say where Open WebUI is and how to reach it. Set both."
_TRIES, _PAUSE = 40, 0.25  # while a file is processed there
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KnowledgeFile:
    """A file of a knowledge base. `text_hash` is of the text that is searched there, `file_hash` of the bytes that were uploaded.

    While it `is_processed`, what it holds is not known.
    """

    id: str
    path: str
    text_hash: str
    file_hash: str
    is_processed: bool = False

    @property
    def state(self) -> str:
        return f"{self.text_hash}|{self.file_hash}"


@dataclass(frozen=True, slots=True)
class StoredNote:
    """A note: its Markdown, when it was last changed, in nanoseconds, and what Ricordo noted with it."""

    id: str
    text: str
    updated_at: str
    noted: Json


class NotTaken(Exception):
    """Open WebUI does not take a file, and says why."""


@dataclass(frozen=True, slots=True)
class _Received:
    """A status, and all that came with it."""

    status: int
    content: bytes


class OpenWebUI:
    """One connection, for one sync."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self._http = http
        self._url = f"{url.rstrip('/')}/api/v1"

    async def knowledge_base(self, marker: str, name: str, reader: str) -> str:
        """Return the id of the knowledge base whose description ends with the marker, made where there is none.

        `reader` is the id of Open WebUI's user who may read and write it.
        """
        found = await self._json(
            "GET", f"/knowledge/search?view_option=created&query={quote(marker)}"
        )
        ids = [
            str(one["id"])
            for one in found["items"]
            if str(one.get("description")).endswith(marker) and _is_for(one, reader)
        ]
        if ids:
            return min(ids)
        about = f"Files that your agents work with. {marker}"
        made = {
            "name": name,
            "description": about,
            "access_grants": _grants(reader, is_writable=True),
        }
        return str((await self._json("POST", "/knowledge/create", made))["id"])

    async def files(self, knowledge_id: str) -> list[KnowledgeFile] | None:
        """Return the files of a knowledge base, the oldest first; None where it is gone."""
        found: list[Json] = []
        for page in range(1, _MOST_PAGES + 1):
            asked = f"/knowledge/{knowledge_id}/files?page={page}&limit={_PER_PAGE}&order_by=created_at&direction=asc"
            answer = await self._found("GET", asked)
            if answer is None:
                return None
            found += answer["items"]
            if len(found) >= answer["total"] or not answer["items"]:
                break
        # A page may repeat what moved to it meanwhile.
        return list(
            {one["id"]: _file(one, one.get("directory_path") or "") for one in found}.values()
        )

    async def file(self, id: str) -> tuple[KnowledgeFile, str] | None:
        """Return the file as it is now, with the text that is searched; None where it is gone."""
        answer = await self._found("GET", f"/files/{id}")
        if answer is None:
            return None
        return _file(answer, ""), str((answer.get("data") or {}).get("content") or "")

    async def original(self, id: str) -> bytes:
        """Return the bytes that were uploaded."""
        return (await self._send("GET", f"/files/{id}/content")).content

    async def upload(self, knowledge_id: str, path: str, data: bytes) -> KnowledgeFile:
        """Add a file to a knowledge base; returns it once it is processed. Raises NotTaken."""
        folder, _, name = path.rpartition("/")
        metadata = {"knowledge_id": knowledge_id, "file_hash": sha256(data).hexdigest()}
        if folder:
            metadata["directory_id"] = await self._directory(knowledge_id, folder)
        kind = mimetypes.guess_type(name)[0] or (
            "text/plain" if text_of(data) is not None else "application/octet-stream"
        )
        answer = await self._send(
            "POST",
            "/files/?process=true&process_in_background=false",
            files={"file": (name, data, kind)},
            data={"metadata": orjson.dumps(metadata).decode()},
            is_upload=True,
        )
        id = str(_read(answer)["id"])
        for _ in range(_TRIES):
            found = await self._json("GET", f"/files/{id}")
            told = found.get("data") or {}
            if told.get("status") == "completed":
                return _file(found, folder)
            if told.get("status") == "failed":
                await self._found("DELETE", f"/files/{id}")
                raise NotTaken(str(told.get("error") or "it could not be processed")[:300])
            await asyncio.sleep(_PAUSE)
        raise Unavailable("Open WebUI takes long to process a file. This is tried again.")

    async def remove_file(self, knowledge_id: str, id: str) -> None:
        """Take the file out of the knowledge base; it is deleted where no other holds it."""
        await self._json(
            "POST", f"/knowledge/{knowledge_id}/sync/cleanup", {"file_ids": [id], "dir_ids": []}
        )

    async def note(self, id: str) -> StoredNote | None:
        answer = await self._found("GET", f"/notes/{id}")
        return None if answer is None else _note(answer)

    async def find_note(self, title: str, noted: Json, reader: str) -> StoredNote | None:
        """Return the note of this title for this user of Open WebUI that has these values noted with it."""
        found = await self._json(
            "GET", f"/notes/search?page=1&view_option=created&query={quote(title[:100])}"
        )
        for one in found["items"]:
            kept = (one.get("meta") or {}).get("ricordo") or {}
            if _is_for(one, reader) and all(
                kept.get(name) == value for name, value in noted.items()
            ):
                return await self.note(one["id"])
        return None

    async def put_note(
        self, id: str | None, title: str, content: Json, noted: Json, grants: list[Json]
    ) -> StoredNote:
        """Make a note, or change the one with this id."""
        sent: Json = {"title": title, "data": {"content": content}, "meta": {"ricordo": noted}}
        if id is None:
            return _note(
                await self._json("POST", "/notes/create", sent | {"access_grants": grants})
            )
        return _note(await self._json("POST", f"/notes/{id}/update", sent))

    async def remove_note(self, id: str) -> None:
        await self._found("DELETE", f"/notes/{id}/delete")

    async def _directory(self, knowledge_id: str, folder: str) -> str:
        """The id of a folder in the knowledge base, made with those above it where they are missing."""
        known = (
            await self._json("POST", f"/knowledge/{knowledge_id}/sync/diff", {"manifest": []})
        )["directory_map"]
        parent: str | None = None
        parts = folder.split("/")
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            if path not in known:
                made = {"name": parts[end - 1], "parent_id": parent}
                known[path] = (
                    await self._json("POST", f"/knowledge/{knowledge_id}/dirs/create", made)
                )["id"]
            parent = known[path]
        return parent or ""

    async def _found(self, method: str, path: str) -> Json | None:
        """The answer, or None where Open WebUI says that it has no such thing."""
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
        try:
            answer = await self._answer(method, path, **options)
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise Unavailable(
                f"Open WebUI cannot be reached ({type(error).__name__}). This is tried again."
            ) from error
        status, told = answer.status, _told(answer)
        if status < 400 or (may_miss and (status == 404 or "could not find" in told.casefold())):
            return answer
        if status in (401, 403):
            raise Invalid(
                f"Open WebUI refuses RICORDO_OPENWEBUI_API_KEY: {told} It has to be the key of an administrator."
            )
        if is_upload and status in (400, 413):
            raise NotTaken(told)
        raise Unavailable(f"Open WebUI answered {status}: {told}")

    async def _answer(self, method: str, path: str, **options: Any) -> _Received:
        content = bytearray()
        async with self._http.stream(method, f"{self._url}{path}", **options) as answer:
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > _LARGEST:
                    raise Unavailable(
                        f"Open WebUI sent more than {_LARGEST:,} bytes at once, which is not read."
                    )
            return _Received(answer.status_code, bytes(content))


@asynccontextmanager
async def connected(url: str | None, key: str | None) -> AsyncIterator[OpenWebUI]:
    """Open a connection for a sync. Raises Invalid where the settings do not say to what."""
    if not url or not key:
        raise Invalid(_UNSET)
    async with httpx2.AsyncClient(
        headers={"authorization": f"Bearer {key}"},
        timeout=_SECONDS,
        trust_env=False,
        follow_redirects=False,
    ) as http:
        yield OpenWebUI(http, url)


def grants_of(reader: str, *, is_writable: bool) -> list[Json]:
    """What lets this user of Open WebUI read a thing, and write it."""
    return _grants(reader, is_writable=is_writable)


def text_of(data: bytes) -> str | None:
    """The bytes as text; None where they are none."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _grants(reader: str, *, is_writable: bool) -> list[Json]:
    allowed = ("read", "write") if is_writable else ("read",)
    return [
        {"principal_type": "user", "principal_id": reader, "permission": one} for one in allowed
    ]


def _is_for(found: Json, reader: str) -> bool:
    """Whether a thing is shared with this user alone: others could share one that only looks like it."""
    return {one.get("principal_id") for one in found.get("access_grants") or ()} == {reader}


def _file(found: Json, folder: str) -> KnowledgeFile:
    name, meta = str(found.get("filename") or ""), found.get("meta") or {}
    path = f"{folder}/{name}" if folder else name
    is_processed = (found.get("data") or {}).get("status") in ("pending", "processing")
    hashes = str(found.get("hash") or ""), str(meta.get("file_hash") or "")
    return KnowledgeFile(str(found["id"]), path, *hashes, is_processed)


def _note(found: Json) -> StoredNote:
    content = ((found.get("data") or {}).get("content")) or {}
    noted = (found.get("meta") or {}).get("ricordo") or {}
    return StoredNote(
        str(found["id"]), str(content.get("md") or ""), str(found.get("updated_at")), noted
    )


def _read(answer: _Received) -> Json:
    try:
        found = orjson.loads(answer.content)
    except orjson.JSONDecodeError as error:
        raise Unavailable(
            "RICORDO_OPENWEBUI_URL answers with something that Open WebUI's API would not. Check the address."
        ) from error
    return found if isinstance(found, dict) else {"answer": found}


def _told(answer: _Received) -> str:
    try:
        detail = orjson.loads(answer.content).get("detail") if answer.status >= 400 else None
    except (orjson.JSONDecodeError, AttributeError):
        detail = None
    return str(detail or "no reason was given")[:300]
