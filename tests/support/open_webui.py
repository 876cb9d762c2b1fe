"""A small Open WebUI over HTTP: files, knowledge and notes in the format of 0.12.4.

Methods whose names begin with `user_` act like a person in its web pages. Refusals have Open
WebUI's error texts.
"""

import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from fastapi import FastAPI, Form, HTTPException, Request, Response, UploadFile

from tests.support.json_server import Served

KEY = "sk-open-webui-test-key"
_MISSING = "We could not find what you're looking for :/"
Json = dict[str, Any]


def hashed(data: bytes | str) -> str:
    return sha256(data.encode() if isinstance(data, str) else data).hexdigest()


@dataclass
class StoredFile:
    """A file: its uploaded bytes, and its searched text, which the pages edit."""

    id: str
    name: str
    data: bytes
    text: str | None
    status: str = "completed"
    error: str | None = None

    def wire(self) -> Json:
        meta = {"name": self.name, "size": len(self.data), "file_hash": hashed(self.data)}
        data = {"status": self.status, "content": self.text, "error": self.error}
        text_hash = None if self.text is None else hashed(self.text)
        return {"id": self.id, "filename": self.name, "hash": text_hash, "meta": meta, "data": data}


@dataclass
class Base:
    """A knowledge base: `folders` has ids by path, `files` the folder of each file by its id."""

    id: str
    name: str
    description: str
    grants: list[Json]
    folders: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


class FakeOpenWebUI:
    """A fake Open WebUI server.

    `url` is its address. `bases` and `notes` are by id. With `refuses_doubles` it refuses equal
    content, as Open WebUI does if it embeds files.
    """

    def __init__(self) -> None:
        self.files: dict[str, StoredFile] = {}
        self.bases: dict[str, Base] = {}
        self.notes: dict[str, Json] = {}
        self.chats: list[str] = []
        self.may_see_chats = True
        self.refuses_doubles = False
        self.is_down = False
        self.asked: list[str] = []
        self.before_page: Callable[[int], None] = lambda _page: None
        self._clock = 1_700_000_000_000_000_000
        self._lock = threading.Lock()
        self._serving = Served(self._app())
        self.url = self._serving.url

    def close(self) -> None:
        self._serving.close()

    # Actions of a person in the web pages.

    def user_files(self, base: Base | None = None) -> dict[str, str]:
        """Return the texts of all files, or of one knowledge base, by path.

        A repeated name is an error.
        """
        found: dict[str, str] = {}
        for one in [base] if base else self.bases.values():
            for id, folder in one.files.items():
                file = self.files[id]
                path = f"{folder}/{file.name}" if folder else file.name
                assert path not in found, f"{path} is there twice"
                found[path] = file.text if file.text is not None else repr(file.data)
        return found

    def user_edits(self, path: str, text: str) -> None:
        self._at(path)[1].text = text

    def user_uploads(self, path: str, text: str) -> None:
        base = self._base()
        folder, _, name = path.rpartition("/")
        for end in range(1, len(folder.split("/")) + 1) if folder else ():
            base.folders.setdefault("/".join(folder.split("/")[:end]), str(uuid.uuid4()))
        file = StoredFile(str(uuid.uuid4()), name, text.encode(), text)
        self.files[file.id] = file
        base.files[file.id] = folder

    def user_deletes(self, path: str) -> None:
        base, file = self._at(path)
        del base.files[file.id], self.files[file.id]

    def user_notes(self) -> dict[str, str]:
        """Return the Markdown of all notes by title, except the note with pending proposals."""
        assert len({note["title"] for note in self.notes.values()}) == len(self.notes), (
            "two notes have the same title"
        )
        texts = {note["title"]: note["data"]["content"]["md"] for note in self.notes.values()}
        return {title: text for title, text in texts.items() if title != "Waiting for you"}

    def waiting_note(self) -> str | None:
        titled = {note["title"]: note["data"]["content"]["md"] for note in self.notes.values()}
        return titled.get("Waiting for you")

    def user_writes(self, title: str, text: str) -> None:
        note = self._note(title)
        note["data"]["content"] = {"json": {"type": "doc"}, "html": "", "md": text}
        note["updated_at"] = self._now()

    def user_deletes_note(self, title: str) -> None:
        del self.notes[self._note(title)["id"]]

    def _base(self) -> Base:
        return next(iter(self.bases.values()))

    def _at(self, path: str) -> tuple[Base, StoredFile]:
        for base in self.bases.values():
            for id, folder in base.files.items():
                if path == (f"{folder}/{self.files[id].name}" if folder else self.files[id].name):
                    return base, self.files[id]
        raise KeyError(path)

    def _note(self, title: str) -> Json:
        return next(note for note in self.notes.values() if note["title"] == title)

    def _now(self) -> int:
        self._clock += 1_000
        return self._clock

    # The API of Open WebUI.

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.middleware("http")
        async def guard(request: Request, go_on: Any) -> Any:
            self.asked.append(f"{request.method} {request.url.path}")
            if self.is_down:
                return Response("Bad gateway", 502)
            if request.headers.get("authorization") != f"Bearer {KEY}":
                return Response(json.dumps({"detail": "401 Unauthorized"}), 401)
            with self._lock:
                return await go_on(request)

        self._knowledge(app)
        self._files(app)
        self._notes(app)
        self._chats(app)
        return app

    def _chats(self, app: FastAPI) -> None:
        @app.get("/api/v1/chats/list/user/{user}")
        async def listed(user: str, page: int, order_by: str, direction: str) -> list[Json]:
            assert (order_by, direction) == ("created_at", "asc")
            if not self.may_see_chats:
                raise HTTPException(401, "You do not have permission to access this resource.")
            return [{"id": id} for id in self.chats[60 * (page - 1) : 60 * page]]

        @app.get("/api/v1/chats/{id}")
        async def find(id: str) -> Json:
            return {"id": self._require(id if id in self.chats else None, 401)}

    def _require(self, found: Any, status: int = 404) -> Any:
        if found is None:
            raise HTTPException(status, _MISSING)
        return found

    def _knowledge(self, app: FastAPI) -> None:
        api = "/api/v1/knowledge"

        def wire(base: Base) -> Json:
            return {
                "id": base.id,
                "name": base.name,
                "description": base.description,
                "user_id": "admin",
                "access_grants": base.grants,
            }

        @app.get(f"{api}/search")
        async def search(query: str, view_option: str) -> Json:
            assert view_option == "created"
            found = [
                wire(one) for one in self.bases.values() if query in one.name + one.description
            ]
            return {"items": found, "total": len(found)}

        @app.post(f"{api}/create")
        async def create(body: Json) -> Json:
            base = Base(str(uuid.uuid4()), body["name"], body["description"], body["access_grants"])
            self.bases[base.id] = base
            return wire(base)

        @app.get(f"{api}/{{id}}/files")
        async def files(id: str, page: int, limit: int) -> Json:
            self.before_page(page)
            base = self._require(self.bases.get(id), 400)
            found = [
                {key: value for key, value in self.files[one].wire().items() if key != "data"}
                | {"directory_path": folder}
                for one, folder in base.files.items()
            ]
            return {"items": found[(page - 1) * limit : page * limit], "total": len(found)}

        @app.post(f"{api}/{{id}}/sync/diff")
        async def diff(id: str, body: Json) -> Json:
            assert body == {"manifest": []}
            return {"directory_map": self._require(self.bases.get(id), 400).folders}

        @app.post(f"{api}/{{id}}/dirs/create")
        async def make_folder(id: str, body: Json) -> Json:
            folders = self._require(self.bases.get(id), 400).folders
            above = next((path for path, one in folders.items() if one == body["parent_id"]), None)
            path = body["name"] if above is None else f"{above}/{body['name']}"
            if path in folders:
                raise HTTPException(
                    400, "A directory with this name may already exist at this level."
                )
            folders[path] = str(uuid.uuid4())
            return {"id": folders[path]}

        @app.post(f"{api}/{{id}}/sync/cleanup")
        async def clean(id: str, body: Json) -> Json:
            for one in body["file_ids"]:
                if self._require(self.bases.get(id), 400).files.pop(one, None) is not None:
                    del self.files[one]
            return {"status": True}

    def _files(self, app: FastAPI) -> None:
        api = "/api/v1/files"

        @app.post(f"{api}/")
        async def upload(file: UploadFile, metadata: str = Form()) -> Json:
            sent, data = json.loads(metadata), await file.read()
            if not data:
                raise HTTPException(400, "The content provided is empty.")
            kind = file.content_type or ""
            # Other files that are not text are accepted, and produce meaningless characters.
            read = (
                data.decode("utf-8", "replace")
                .replace("\0", "")
                .replace("\r\n", "\n")
                .replace("’", "'")
            )
            text = None if kind.startswith("image/") else read
            stored = StoredFile(
                str(uuid.uuid4()), (file.filename or "").rpartition("/")[2], data, text
            )
            self.files[stored.id] = stored
            base = self.bases[sent["knowledge_id"]]
            doubles = {self.files[one].text for one in base.files}
            if text is None:
                stored.status, stored.error = (
                    "failed",
                    f"File type {kind} is not supported for processing",
                )
            elif self.refuses_doubles and text in doubles:
                told = "Duplicate content detected. Please provide unique content to proceed."
                stored.status, stored.error = "failed", told
            else:
                by_id = {one: path for path, one in base.folders.items()}
                base.files[stored.id] = by_id.get(sent.get("directory_id") or "", "")
            return stored.wire() | {"hash": None, "data": {"status": "pending"}}

        @app.get(f"{api}/{{id}}")
        async def find(id: str) -> Json:
            found: StoredFile = self._require(self.files.get(id))
            return found.wire()

        @app.get(f"{api}/{{id}}/content")
        async def content(id: str) -> Response:
            return Response(self._require(self.files.get(id)).data)

        @app.delete(f"{api}/{{id}}")
        async def delete(id: str) -> Json:
            self._require(self.files.pop(id, None))
            return {"message": "File deleted successfully"}

    def _notes(self, app: FastAPI) -> None:
        api = "/api/v1/notes"

        @app.get(f"{api}/search")
        async def search(query: str, page: int, view_option: str) -> Json:
            assert (page, view_option) == (1, "created")
            words = [word.replace("-", "") for word in query.split()]
            found = [
                one
                for one in self.notes.values()
                if all(
                    word in (one["title"] + one["data"]["content"]["md"]).replace("-", "")
                    for word in words
                )
            ]
            return {"items": found, "total": len(found)}

        @app.post(f"{api}/create")
        async def create(body: Json) -> Json:
            now = self._now()
            note = body | {
                "id": str(uuid.uuid4()),
                "user_id": "admin",
                "created_at": now,
                "updated_at": now,
            }
            self.notes[note["id"]] = note
            return note

        @app.get(f"{api}/{{id}}")
        async def find(id: str) -> Json:
            found: Json = self._require(self.notes.get(id))
            return found

        @app.post(f"{api}/{{id}}/update")
        async def update(id: str, body: Json) -> Json:
            note: Json = self._require(self.notes.get(id))
            note["title"] = body.get("title", note["title"])
            for part in ("data", "meta"):
                note[part] = note[part] | body.get(part, {})
            note["updated_at"] = self._now()
            return note

        @app.delete(f"{api}/{{id}}/delete")
        async def delete(id: str) -> bool:
            self._require(self.notes.pop(id, None))
            return True
