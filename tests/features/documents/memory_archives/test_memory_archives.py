"""One person's whole memory is exported and restored on another server, equal by content hash."""

import hashlib
import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid5

import httpx2
import pytest
from sqlalchemy import func, select

from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.errors import Forbidden, Invalid
from ricordo.features.documents.memory_archives import export as exporting
from ricordo.features.documents.memory_archives.models import content_hash
from ricordo.features.documents.memory_archives.reading import opened_archive
from ricordo.features.knowledge.facts import decisions, queries
from ricordo.llm.scripted import call
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import metadata
from tests.features.sync.git.test_routes import commit
from tests.seams.http import Wire, bearer, get, ok, post, propose, put, refused
from tests.seams.server import ServerInThread, serving
from tests.seams.waiting import wait_for
from tests.support import postgres
from tests.support.git import fsck, git, ids

BOTH = ("sqlite", pytest.param("postgresql", marks=pytest.mark.soak))
LINES = (
    "Likes tea.",
    "Lebt in Graz.",
    "Übt täglich.",
    "Has a dog, Bo.",
    "Plays chess on Mondays.",
    "Allergic to nuts 🥜.",
)
Archive = dict[str, bytes]


@pytest.fixture(scope="module", params=BOTH)
def elsewhere(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerInThread]:
    """Another server, on each database."""
    url = None if request.param == BOTH[0] else postgres.server().new_database()
    place = {} if url is None else {"database_url": url}
    with serving(tmp_path_factory.mktemp("elsewhere") / "data", **place) as server:
        yield server
    if url:
        postgres.server().drop(url)


@pytest.fixture
def there(elsewhere: ServerInThread) -> Iterator[httpx2.Client]:
    with elsewhere.http() as http:
        yield http


def export_memory(http: httpx2.Client, user: str) -> Archive:
    answer = http.get(f"/users/{user}/export")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zip")
    assert 'filename="memory.zip"' in answer.headers["content-disposition"]
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    assert archive.testzip() is None
    return {name: archive.read(name) for name in archive.namelist()}


def zipped(archive: Archive, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as target:
        for name, content in archive.items():
            target.writestr(name, content)
    return file.getvalue()


def with_new_manifest(archive: Archive) -> Archive:
    """Return the archive with a manifest that fits its files."""
    manifest = json.loads(archive["manifest.json"])
    manifest["files"] = {
        name: hashlib.sha256(content).hexdigest()
        for name, content in archive.items()
        if name != "manifest.json"
    }
    manifest["content"] = content_hash(manifest["files"])
    return archive | {"manifest.json": json.dumps(manifest).encode()}


def send(http: httpx2.Client, content: bytes | Archive, user: str | None = None) -> httpx2.Response:
    data = content if isinstance(content, bytes) else zipped(content)
    return http.post(
        "/v1/imports/memory",
        files={"file": ("memory.zip", data)},
        data={"user": user} if user else {},
    )


def rows_of(server: ServerInThread) -> dict[str, int]:
    """Return the number of rows of each table, on either database."""

    def count(tx: Transaction) -> dict[str, int]:
        return {
            table.name: tx.all(select(func.count()).select_from(table))[0][0]
            for table in metadata.sorted_tables
            # The jobs of the two servers differ.
            if table.name != "jobs"
        }

    return server.read(count)


def records(archive: Archive, name: str) -> list[Wire]:
    return [json.loads(line) for line in archive[name].splitlines()]


def hash_of(archive: Archive) -> str:
    manifest = json.loads(archive["manifest.json"])
    return str(manifest["content"])


def fill_memory(http: httpx2.Client, seed: int, steps: int = 30) -> str:
    """Make many random changes to a new user's memory, by the seed."""
    chance = random.Random(seed)  # noqa: S311 - a seed, no secret
    user = new_id("ada")
    put(http, user, "human", "Name: Ada")
    labels = ["human", "courses/maths", "notes", "Übung"]
    for number in range(steps):
        label = chance.choice(labels)
        listed = {block["label"]: block for block in ok(http.get(f"/users/{user}/blocks"))}
        if label not in listed:
            put(http, user, label, chance.choice(LINES), title=f"No. {number}")
            continue
        text = listed[label]["body"]
        path = f"/users/{user}/blocks/{label}"
        match chance.randrange(8):
            case 0 | 1 | 2:
                put(http, user, label, f"{text}\n{chance.choice(LINES)}", message=f"Step {number}")
            case 3:
                settings = {"policy": chance.choice(("propose", "guarded", "direct"))}
                ok(http.patch(path, json={**settings, "description": f"Of step {number}"}))
            case 4:
                ok(http.delete(path))
            case 5:
                other = f"{label} {number}"
                ok(http.patch(path, json={"label": other}))
                labels.append(other)
            case _:
                made = propose(
                    http, user, label, text, f"{text}\nStep {number}.", agent_id=new_id("agent")
                )
                decision = chance.choice(("approve", "reject", ""))
                if decision:
                    reason = {"reason": "So."} if decision == "reject" else {}
                    post(http, user, f"{label}/diffs/{made}/{decision}", **reason)
    ok(http.post(f"/v1/users/{user}/facts", json={"sentence": "I live in Graz."}))
    fact = ok(http.post(f"/v1/users/{user}/facts", json={"sentence": "I work as a nurse."}))
    changed = {"sentence": "I work as a teacher."}
    ok(http.patch(f"/v1/users/{user}/facts/{fact['id']}", json=changed))
    for number in range(chance.randrange(3)):
        ok(
            http.put(
                f"/users/{user}/workspace/files/work/{number}.txt",
                content=chance.randbytes(chance.randrange(2000)),
            )
        )
    return user


@pytest.mark.parametrize("seed", [1, 2, pytest.param(None, marks=pytest.mark.soak)])
def test_a_restored_memory_has_the_same_content_hash(
    http: httpx2.Client, there: httpx2.Client, seed: int | None
) -> None:
    for each in [seed] if seed is not None else range(100, 160):
        user = fill_memory(http, each)
        archive = export_memory(http, user)
        restored = ok(send(there, archive))
        assert restored["content"] == hash_of(archive), each
        assert restored["left_out"] == [], each
        assert restored["versions"] == len(records(archive, "history.jsonl")), each
        again = export_memory(there, user)
        assert hash_of(again) == hash_of(archive), each
        assert {name: again[name] for name in again if name != "manifest.json"} == {
            name: archive[name] for name in archive if name != "manifest.json"
        }, each


def test_a_restored_memory_can_be_edited_decided_and_erased(
    http: httpx2.Client, there: httpx2.Client
) -> None:
    user = new_id("ada")
    put(http, user, "human", "Name: Ada", policy="guarded", description="Who she is.")
    put(http, user, "old", "Gone, but not for ever.")
    old = get(http, user, "old")["id"]
    ok(http.delete(f"/users/{user}/blocks/old"))
    made = propose(http, user, "human", "Name: Ada", "Name: Ada L.", agent_id="agent 7")
    ok(http.post(f"/v1/users/{user}/facts", json={"sentence": "I live in Graz."}))

    restored = ok(send(there, export_memory(http, user)))

    assert restored["user_id"] == ok(http.get(f"/v1/users/{user}"))["id"]
    assert (restored["blocks"], restored["proposals"]) == (1, 1)
    assert restored["records"]["facts.jsonl"] == 1
    # On the other server pending proposals are decided, a deleted block is restored, and the
    # history continues.
    post(there, user, f"human/diffs/{made}/approve")
    block = get(there, user, "human")
    assert (block["body"], block["policy"], block["description"]) == (
        "Name: Ada L.",
        "guarded",
        "Who she is.",
    )
    deletion = get(there, user, "old/history")[0]["sha"]
    before = get(there, user, "old/history")[1]["sha"]
    assert deletion != before
    revived = post(there, user, "old/restore", sha=before)
    assert (revived["id"], revived["body"]) == (old, "Gone, but not for ever.")
    facts = ok(there.get(f"/v1/users/{user}/facts"))
    assert [fact["sentence"] for fact in facts] == ["I live in Graz."]
    # The restored memory is forgotten like all of the user's memory, and can be restored once
    # more.
    archive = export_memory(there, user)
    said = refused(send(there, archive), 409)
    assert "already has memory on this server" in said
    said = refused(send(there, archive, new_id("eve")), 409)
    assert "another user here has" in said


def test_the_policy_of_a_kind_of_facts_is_restored_and_applied(
    http: httpx2.Client, elsewhere: ServerInThread, there: httpx2.Client
) -> None:
    user = new_id("ada")
    put(http, user, "human", "Name: Ada")
    facts, own = f"/v1/users/{user}/facts", {"x-ricordo-user": user}
    for sentence, kind in (("I live in Graz.", "who"), ("I like tea.", "preference")):
        ok(http.post(facts, json={"sentence": sentence, "kind": kind}))
    ok(http.put(f"{facts}/egress", json={"kind": "who", "allowed": ["local"]}, headers=own))
    ok(send(there, export_memory(http, user)))
    assert ok(there.get(f"{facts}/egress")) == [{"kind": "who", "allowed": ["local"]}]
    ok(there.post(facts, json={"sentence": "I work as a nurse.", "kind": "who"}))
    person = elsewhere.read(lambda tx: users.require(tx, Scope(), user))

    def labels() -> dict[str, set[str | None]]:
        return {
            kind: set(
                elsewhere.read(lambda tx, kind=kind: queries.fact_labels(tx, person.id, kind))
            )
            for kind in ("who", "preference")
        }

    assert labels() == {"who": {"local"}, "preference": {None}}
    with pytest.raises(Forbidden):
        elsewhere.write(lambda tx: decisions.set_egress(tx, Scope(), person, "who", ["openai"]))
    ok(there.put(f"{facts}/egress", json={"kind": "who", "allowed": None}, headers=own))
    assert labels() == {"who": {None}, "preference": {None}}


def test_git_objects_are_restored_from_the_archive(
    server: ServerInThread, http: httpx2.Client, elsewhere: ServerInThread, tmp_path: Path
) -> None:
    user = new_id("ada")
    put(http, user, "human", "Name: Ada\nLikes tea")
    git(tmp_path, "clone", "-q", f"{server.url}/users/{user}/memory.git", "mine")
    mine = tmp_path / "mine"
    commit(mine, human="Name: Ada\nLikes coffee", courses__maths="Likes proofs.")
    git(mine, "checkout", "-q", "-b", "side", "HEAD~1")
    commit(mine, "On the side", notes="A note.")
    git(mine, "checkout", "-q", "main")
    git(mine, "merge", "-q", "--no-edit", "side")
    git(mine, "push", "-q", "origin", "main")
    put(http, user, "human", "Name: Ada\nLikes water")
    archive = export_memory(http, user)
    assert records(archive, "git-objects.jsonl")

    with elsewhere.http() as there:
        ok(send(there, archive))
        assert hash_of(export_memory(there, user)) == hash_of(archive)
    for folder, url in (("before", server.url), ("after", elsewhere.url)):
        git(tmp_path, "clone", "-q", f"{url}/users/{user}/memory.git", folder)
    assert ids(tmp_path / "after") == ids(tmp_path / "before")
    assert fsck(tmp_path / "after") == ""


def test_folders_and_files_are_restored_with_their_texts(
    http: httpx2.Client, there: httpx2.Client, elsewhere: ServerInThread
) -> None:
    user = new_id("ada")
    put(http, user, "human", "Name: Ada")
    made = ok(http.post("/v1/folders/", json={"name": "Diary", "user": user}))
    ok(http.post("/v1/folders/", json={"name": "Empty", "user": user, "description": "None."}))
    texts = {"may.md": "# May\n\nThe owl came back.\n", "june.txt": "Übung.", "none.txt": ""}
    for name, text in texts.items():
        files = {"file": (name, text.encode())}
        ok(http.post(f"/v1/folders/{made['id']}/upload", files=files))
    ok(http.put(f"/users/{user}/workspace/files/a/b.bin", content=bytes(range(256))))
    path = f"/v1/folders/{made['id']}/files"
    wait_for(lambda: all(file["processing_status"] == "completed" for file in ok(http.get(path))))

    archive = export_memory(http, user)
    restored = ok(send(there, archive))

    assert restored["records"] == {
        "facts.jsonl": 0,
        "folders.jsonl": 2,
        "files.jsonl": 3,
        "workspace.jsonl": 1,
        "learning.jsonl": 0,
    }
    assert hash_of(export_memory(there, user)) == hash_of(archive)
    wait_for(lambda: all(file["processing_status"] == "completed" for file in ok(there.get(path))))
    shown = {file["file_name"]: file for file in ok(there.get(path))}
    assert shown.keys() == texts.keys()
    assert there.get(f"/users/{user}/workspace/files/a/b.bin").content == bytes(range(256))
    # An agent on that server finds their content.
    agent = ok(
        there.post(
            "/v1/agents/",
            json={"model": "scripted/model", "user_id": user, "folder_ids": [made["id"]]},
        )
    )
    elsewhere.says(call("grep_files", pattern="owl"), "In May.")
    said = {"messages": [{"role": "user", "content": "When did the owl come?"}]}
    answer = ok(there.post(f"/v1/agents/{agent['id']}/messages", json=said))
    (found,) = [
        one["tool_return"]
        for one in answer["messages"]
        if one["message_type"] == "tool_return_message"
    ]
    assert "The owl came back." in found
    # No record is restored twice, and none refers to something outside the archive.
    assert refused(send(there, archive), 409)
    for name, record, said_of in (
        ("files.jsonl", {"folder_id": new_id("source")}, "not a folder of this archive"),
        ("workspace.jsonl", {"path": "../up"}, "workspace.jsonl"),
        ("workspace.jsonl", {"content": "***"}, "not Base64"),
        ("folders.jsonl", {"id": "human"}, "folders.jsonl, line 1: id"),
    ):
        with_other_ids = _with_new_ids(archive)
        changed = with_new_manifest(_with(with_other_ids, name, 0, **record))
        answer_of_change = send(there, changed, new_id("eve"))
        assert answer_of_change.status_code in (400, 422), answer_of_change.text
        assert said_of in answer_of_change.text or "path" in answer_of_change.text


def _with_new_ids(archive: Archive) -> Archive:
    """Return the archive with other ids for blocks, folders and files."""
    changed = dict(archive)
    for name in ("blocks.jsonl", "folders.jsonl", "files.jsonl", "settings-log.jsonl"):
        text = changed[name].decode()
        for id in re.findall(r"(?:block|source|file)-[0-9a-f-]{36}", text):
            prefix = id.partition("-")[0]
            other = f"{prefix}-{uuid5(UUID(id.removeprefix(prefix + '-')), 'other')}"
            changed = {
                key: value.replace(id.encode(), other.encode()) for key, value in changed.items()
            }
    return changed


def _without_line(archive: Archive, name: str, number: int) -> Archive:
    lines = archive[name].splitlines(keepends=True)
    del lines[number]
    return archive | {name: b"".join(lines)}


def _with(archive: Archive, name: str, number: int, **fields: Any) -> Archive:
    lines = archive[name].splitlines(keepends=True)
    lines[number] = json.dumps(json.loads(lines[number]) | fields).encode() + b"\n"
    return archive | {name: b"".join(lines)}


def _changes(archive: Archive) -> Iterator[tuple[str, Archive]]:
    """Yield changes by a person who also rewrites the manifest, each with the expected error."""
    history = records(archive, "history.jsonl")
    for number, version in enumerate(history):
        for field in ("message", "author_name", "label"):
            yield "not match its id", _with(archive, "history.jsonl", number, **{field: "Eve"})
        if version["body"] is not None:
            yield "not match its id", _with(archive, "history.jsonl", number, body="Likes Eve.")
        yield (
            "not match its id",
            _with(archive, "history.jsonl", number, timestamp="2020-01-01T00:00:00Z"),
        )
        if number < len(history) - 1:
            yield "is missing", _without_line(archive, "history.jsonl", number)
    yield "not match its id", _without_line(archive, "history.jsonl", len(history) - 1)
    endless = _with(archive, "proposals.jsonl", 0, confidence=float("inf"))
    yield "line 1: confidence", endless
    yield "different blocks", _without_line(archive, "blocks.jsonl", 0)
    yield "differ from the newest texts", archive | {"blocks/human.md": b"Eve."}
    for name in archive:
        if name.endswith(".jsonl") and archive[name]:
            yield f"{name}, line 1", archive | {name: b"{}\n" + archive[name]}
            yield f"{name}, line 1", archive | {name: b"\xff\n"}
            yield "NUL", archive | {name: b'{"a": "\\u0000"}\n'}
    manifest = json.loads(archive["manifest.json"])
    later = json.dumps(manifest | {"version": 2}).encode()
    yield "Update this server", archive | {"manifest.json": later}
    other = json.dumps(manifest | {"format": "else"}).encode()
    yield "not an archive", archive | {"manifest.json": other}
    no_head = json.dumps(manifest | {"head": None}).encode()
    yield "no newest version", archive | {"manifest.json": no_head}


def test_a_changed_archive_is_refused_and_nothing_is_stored(
    http: httpx2.Client, there: httpx2.Client, elsewhere: ServerInThread
) -> None:
    user = fill_memory(http, seed=7, steps=12)
    if not get_or_none(http, user, "human"):
        put(http, user, "human", "Name: Ada")
    archive = export_memory(http, user)
    before = rows_of(elsewhere)
    for said, changed in _changes(archive):
        assert said in refused(send(there, with_new_manifest(changed)), 400), said
    # Without a new manifest the changed file is noticed.
    for name in archive:
        if name != "manifest.json":
            changed = archive | {name: archive[name] + b"\n"}
            refused(send(there, changed), 400)
            left = {other: archive[other] for other in archive if other != name}
            assert "lacks" in refused(send(there, left), 400)
    more = archive | {"more.jsonl": b"{}\n"}
    assert "manifest" in refused(send(there, more), 400)
    assert rows_of(elsewhere) == before
    # If this server lacks a feature, `left_out` names the feature's file, and the rest is restored.
    restored = ok(send(there, with_new_manifest(more)))
    assert ["more.jsonl" in one for one in restored["left_out"]] == [True]


def get_or_none(http: httpx2.Client, user: str, label: str) -> Any:
    answer = http.get(f"/users/{user}/blocks/{label}")
    return answer.json() if answer.status_code == 200 else None


def test_truncated_archives_and_other_files_are_refused(
    http: httpx2.Client, there: httpx2.Client, elsewhere: ServerInThread
) -> None:
    user = new_id("ada")
    put(http, user, "human", "Name: Ada\n" * 200)
    whole = zipped(export_memory(http, user))
    before = rows_of(elsewhere)
    for content in (b"", b"hello", b"PK\x03\x04", zipped({"conversations.json": b"[]"})):
        refused(send(there, content), 400)
    for length in range(0, len(whole), max(1, len(whole) // 30)):
        refused(send(there, whole[:length]), 400)
    chance = random.Random(3)  # noqa: S311 - a seed, no secret
    for _ in range(40):
        position = chance.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[position] ^= 1 << chance.randrange(8)
        answer = send(there, bytes(damaged))
        # A changed time stamp or flag of the zip file alone does no harm.
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 200:
            assert get(there, user, "human")["body"] == "Name: Ada\n" * 200
            return
    assert rows_of(elsewhere) == before


def test_an_archive_repacked_by_another_tool_is_accepted(
    http: httpx2.Client, there: httpx2.Client
) -> None:
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        user = new_id("ada")
        put(http, user, "courses/maths", "Likes proofs.")
        archive = export_memory(http, user)
        folders = {"blocks/": b"", "blocks/courses/": b""}
        packed = io.BytesIO(zipped(folders | archive, compression))
        with zipfile.ZipFile(packed, "a") as target:
            target.comment = b"Packed by hand."
        ok(send(there, packed.getvalue()))
        assert hash_of(export_memory(there, user)) == hash_of(archive)


def test_damaged_archives_are_refused_in_each_compression(
    http: httpx2.Client, there: httpx2.Client
) -> None:
    user = new_id("ada")
    put(http, user, "human", "Name: Ada\n" * 50)
    archive = export_memory(http, user)
    for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        whole = zipped(archive, compression)
        (manifest,) = (
            member
            for member in zipfile.ZipFile(io.BytesIO(whole)).infolist()
            if member.filename == "manifest.json"
        )
        begin = manifest.header_offset + 30 + len("manifest.json")
        for position in range(begin, begin + manifest.compress_size, 3):
            damaged = bytearray(whole)
            damaged[position] ^= 255
            # A byte that the compression does not read changes nothing.
            with suppress(Invalid), opened_archive(io.BytesIO(damaged)) as opened:
                assert opened.manifest.content == hash_of(archive)
    later = bytearray(zipped(archive))
    needed = later.index(b"PK\x01\x02") + 6  # the version needed to read the first file
    later[needed : needed + 2] = struct.pack("<H", 200)
    assert "not an archive" in refused(send(there, bytes(later)), 400)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_history_without_its_beginning_is_refused(
    http: httpx2.Client, there: httpx2.Client, cut: int
) -> None:
    user = new_id("ada")
    for number in range(4):
        put(http, user, "human", f"Line {number}")
    archive = export_memory(http, user)
    rest = [
        {**version, "number": number}
        for number, version in enumerate(records(archive, "history.jsonl")[cut:], 1)
    ]
    lines = b"".join(json.dumps(version).encode() + b"\n" for version in rest)
    said = refused(send(there, with_new_manifest(archive | {"history.jsonl": lines})), 400)
    assert "before version 1 is missing" in said


def test_a_history_with_a_forgotten_text_is_restored(
    http: httpx2.Client, there: httpx2.Client
) -> None:
    user = new_id("ada")
    for line in ("", "\nLikes tea.", "\nLikes milk."):
        put(http, user, "human", f"Ada.\nHer foot hurts a lot.{line}")
    body = {"text": "Her foot hurts a lot", "all": True}
    made = http.post(f"/users/{user}/forget", json=body).json()
    wait_for(lambda: http.get(made["receipt"]).status_code == 200)
    archive = export_memory(http, user)
    kinds = {one["kind"] for one in records(archive, "git-objects.jsonl")}
    assert kinds == {"forgotten"}
    ok(send(there, archive))
    assert hash_of(export_memory(there, user)) == hash_of(archive)


def test_an_erased_persons_memory_can_be_restored_on_the_same_server(
    http: httpx2.Client,
) -> None:
    user = fill_memory(http, seed=3, steps=12)
    archive = export_memory(http, user)
    made = http.delete(f"/v1/users/{user}").json()
    wait_for(lambda: http.get(made["receipt"]).status_code == 200)
    restored = ok(send(http, archive))
    assert restored["user_id"] == json.loads(archive["manifest.json"])["user"]["id"]
    assert hash_of(export_memory(http, user)) == hash_of(archive)


def test_a_user_with_another_identifier_on_this_server_is_found_by_id(
    http: httpx2.Client, there: httpx2.Client
) -> None:
    user = new_id("ada")
    ok(http.post("/v1/agents/", json={"model": "scripted/model", "user_id": user}))
    id = ok(send(there, export_memory(http, user)))["user_id"]
    renamed = {"identifier_key": f"{user}-renamed"}
    ok(there.patch(f"/v1/identities/{id.replace('user-', 'identity-', 1)}", json=renamed))
    put(http, user, "human", "Name: Ada")
    assert ok(send(there, export_memory(http, user)))["user_id"] == id
    assert get(there, f"{user}-renamed", "human")["body"] == "Name: Ada"


def test_only_an_administrator_restores_an_archive_for_another_user(
    http: httpx2.Client, tmp_path: Path
) -> None:
    user = new_id("ada")
    put(http, user, "human", "Name: Ada")
    archive = export_memory(http, user)
    with serving(tmp_path / "data") as keyed:
        admin = bearer(keyed.key("root", "admin"))
        eve = bearer(keyed.key("eve"))
        with keyed.http(headers=eve) as of_eve, keyed.http(headers=admin) as of_admin:
            refused(send(of_eve, archive), 403)
            restored = ok(send(of_admin, archive, "eve"))
            assert restored["user_id"] == ok(of_admin.get("/v1/users/eve"))["id"]
            assert get(of_eve, "eve", "human")["body"] == "Name: Ada"
            # The history names its author on every server.
            author = get(of_eve, "eve", "human/history")[0]["author_id"]
            assert author == records(archive, "history.jsonl")[0]["author_id"]


def test_a_block_of_a_missing_agent_is_left_out_and_reported(
    http: httpx2.Client, there: httpx2.Client
) -> None:
    user = new_id("ada")
    agent = ok(http.post("/v1/agents/", json={"model": "scripted/model"}))["id"]
    put(http, user, "plan", "Learn Latin.", agent_id=agent)
    restored = ok(send(there, export_memory(http, user)))
    (said,) = restored["left_out"]
    assert '"plan"' in said
    assert agent in said


def _with_word(archive: Archive, name: str, field: str, word: str) -> Archive:
    """Return the archive with this word in the field of the file's first record."""
    first, *rest = records(archive, name)
    lines = [json.dumps(record).encode() for record in ({**first, field: word}, *rest)]
    return with_new_manifest(archive | {name: b"\n".join(lines) + b"\n"})


@pytest.mark.parametrize(
    ("name", "field", "substitute"),
    [
        ("blocks.jsonl", "policy", "propose"),
        ("blocks.jsonl", "egress", "nobody"),
        ("proposals.jsonl", "status", "expired"),
        ("folders.jsonl", "egress", "nobody"),
        ("facts.jsonl", "kind", "who"),
        ("facts.jsonl", "state", "ended"),
        ("facts.jsonl", "relation", None),
        ("facts.jsonl", "precision", None),
        ("facts.jsonl", "source", "model"),
        ("facts.jsonl", "egress", "nobody"),
    ],
)
def test_unknown_settings_of_a_later_version_become_the_strictest_ones(
    http: httpx2.Client,
    there: httpx2.Client,
    name: str,
    field: str,
    substitute: str | None,
) -> None:
    user = new_id("ada")
    put(http, user, "human", "Name: Ada")
    propose(http, user, "human", "Name: Ada", "Name: Ada L.", agent_id="agent 7")
    ok(http.post("/v1/folders/", json={"name": new_id("folder"), "user": user}))
    ok(http.post(f"/v1/users/{user}/facts", json={"sentence": "I live in Graz."}))
    archive = _with_word(export_memory(http, user), name, field, "With the Council's consent")

    restored = ok(send(there, archive))

    (note,) = restored["left_out"]
    assert f"{name}, line 1: {field} is" in note
    assert "Council" in note
    assert (f'"{substitute}"' if substitute else "nothing") in note
    assert records(export_memory(there, user), name)[0].get(field) == substitute


@pytest.mark.parametrize(
    ("name", "field"), [("history.jsonl", "author_kind"), ("git-objects.jsonl", "kind")]
)
def test_an_unknown_setting_without_a_substitute_is_refused_with_advice(
    http: httpx2.Client, there: httpx2.Client, name: str, field: str
) -> None:
    user = new_id("ada")
    put(http, user, "human", "Name: Ada")
    archive = export_memory(http, user)
    if name == "git-objects.jsonl":
        archive[name] = json.dumps({"id": "0" * 40, "kind": "blob", "body": ""}).encode()
    said = refused(send(there, _with_word(archive, name, field, "oracle")), 400)
    assert "Update this server first" in said


def test_an_archive_written_in_portions_is_complete(
    http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_PORTION", 2)
    ada = new_id("ada")
    for number in range(5):
        put(http, ada, "courses/maths", f"Übung {number}\r\n", title="Maths")
    put(http, ada, "gone", "Secret")
    ok(http.delete(f"/users/{ada}/blocks/gone"))
    put(http, ada, "empty", "")
    made = [
        propose(http, ada, "courses/maths", "4", str(number), agent_id=f"agent {number}")
        for number in range(5, 8)
    ]
    post(http, ada, f"courses/maths/diffs/{made[0]}/reject", reason="No.")

    archive = export_memory(http, ada)

    assert list(archive) == [
        "blocks/courses/maths.md",
        "blocks/empty.md",
        "blocks.jsonl",
        "history.jsonl",
        "proposals.jsonl",
        "settings-log.jsonl",
        "git-objects.jsonl",
        "folders.jsonl",
        "files.jsonl",
        "workspace.jsonl",
        "facts.jsonl",
        "learning.jsonl",
        "manifest.json",
    ]
    assert archive["blocks/courses/maths.md"].decode() == "Übung 4\n"
    assert archive["blocks/empty.md"] == b""
    settings = records(archive, "blocks.jsonl")
    assert [(one["label"], one["title"], "body" in one) for one in settings] == [
        ("courses/maths", "Maths", False),
        ("empty", None, False),
    ]
    history = records(archive, "history.jsonl")
    assert [one["number"] for one in history] == list(range(1, 9))
    assert [one["body"] for one in history][-3:] == ["Secret", None, ""]
    of_maths = [one["sha"] for one in history if one["label"] == "courses/maths"]
    assert of_maths[::-1] == [one["sha"] for one in get(http, ada, "courses/maths/history")]
    assert [(one["id"], one["note"]) for one in records(archive, "proposals.jsonl")] == [
        (made[0], "No."),
        (made[1], None),
        (made[2], None),
    ]


def test_the_archive_is_streamed(http: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_PORTION", 1)
    ada = new_id("ada")
    for number in range(4):
        letters = (chr(97 + (place * number * 7919) % 26) for place in range(40_000))
        put(http, ada, "student", "".join(letters))
    with http.stream("GET", f"/users/{ada}/export") as answer:
        pieces = [len(piece) for piece in answer.iter_raw()]

    assert len(pieces) >= 4
    assert "content-length" not in answer.headers


def test_archive_paths_are_safe_and_an_empty_memory_has_an_archive(
    http: httpx2.Client, there: httpx2.Client
) -> None:
    ada = new_id("ada")
    ok(http.post("/v1/agents/", json={"model": "scripted/model", "user_id": ada}))
    empty = export_memory(http, ada)
    assert {name: empty[name] for name in empty if name != "manifest.json"} == dict.fromkeys(
        (
            "blocks.jsonl",
            "history.jsonl",
            "proposals.jsonl",
            "settings-log.jsonl",
            "git-objects.jsonl",
            "facts.jsonl",
            "folders.jsonl",
            "files.jsonl",
            "workspace.jsonl",
            "learning.jsonl",
        ),
        b"",
    )
    labels = ("a/...", "C:/x", "~/x", "C%3A/x", "C%253a/x", "100%")
    for label in labels:
        path = f"/users/{ada}/blocks/{quote(label)}"
        assert http.put(path, json={"body": f"Text of {label}"}).status_code == 200

    odd = export_memory(http, ada)
    for name in odd:
        for path in (PurePosixPath(name), PureWindowsPath(name)):
            assert ".." not in path.parts
            assert not path.anchor
    texts = [name for name in odd if name.startswith("blocks/")]
    assert len(texts) == len(labels)
    assert "blocks/100%.md" in texts
    assert ok(send(there, odd))["blocks"] == len(labels)


def test_each_label_has_a_distinct_file_name_in_the_archive() -> None:
    chance = random.Random(7)  # noqa: S311 - a seed, no secret
    labels = {
        "".join(chance.choices("%%%:\\3aA5cC2", k=chance.randrange(1, 9))) for _ in range(20_000)
    }
    names = {exporting.text_name(label).casefold() for label in labels}
    assert len(names) == len({label.casefold() for label in labels})
    for name in names:
        assert PureWindowsPath(name).parts == ("blocks", name.removeprefix("blocks/"))
