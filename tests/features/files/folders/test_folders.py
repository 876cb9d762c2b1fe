"""Folders and files over HTTP, with the real client: from creation to deletion."""

import time
from typing import Any

import pytest
from letta_client import APIStatusError, ConflictError, NotFoundError

from ricordo.features.files.folders import queries, routes
from tests.api.conftest import Api
from tests.features.files.folders.conftest import put, read
from tests.seams.http import ok


def test_a_folder_can_be_created_changed_and_deleted(api: Api) -> None:
    folders = api.client.folders
    made = folders.create(
        name="Recipes", description="What we cook.", instructions="Look here.", metadata={"a": 1}
    )
    assert made.id.startswith("source-")
    assert (made.name, made.description, made.instructions) == (
        "Recipes",
        "What we cook.",
        "Look here.",
    )
    assert folders.retrieve(made.id) == made
    assert [one.id for one in folders.list(name="Recipes")] == [made.id]
    assert made.id in [one.id for one in folders.list(limit=1000)]
    with pytest.raises(ConflictError, match='A folder named "Recipes" already exists'):
        folders.create(name="Recipes")
    changed = folders.update(made.id, name="Meals", description=None)
    assert (changed.name, changed.description, changed.metadata) == ("Meals", None, {"a": 1})
    assert api.http.get("/v1/folders/name/Meals").json() == made.id
    assert api.http.get("/v1/sources/name/Meals").json() == made.id
    count = api.http.get("/v1/folders/count").json()
    folders.delete(made.id)
    assert api.http.get("/v1/folders/count").json() == count - 1
    with pytest.raises(NotFoundError):
        folders.retrieve(made.id)
    assert folders.create(name="Meals").id != made.id


def test_an_uploaded_file_is_parsed_and_searchable(api: Api, folder: str) -> None:
    text = "# Soup\n\nTake leeks.\r\nAnd potatoes.\n"
    sent = api.client.folders.files.upload(folder, file=("soup.md", text.encode()))
    assert (sent.processing_status, sent.file_name, sent.file_size) == (
        "parsing",
        "soup.md",
        len(text),
    )
    file = read(api, folder, sent.id)
    assert (file.processing_status, file.error_message, file.file_type) == (
        "completed",
        None,
        "text/markdown",
    )
    assert (file.total_chunks, file.chunks_embedded, file.content) == (1, 1, None)
    whole = api.client.folders.files.retrieve(file.id, folder_id=folder, include_content=True)
    assert whole.content == text.replace("\r\n", "\n")
    (listed,) = api.client.folders.files.list(folder, include_content=True)
    assert listed.to_dict() == whole.to_dict()
    (passage,) = api.http.get(f"/v1/folders/{folder}/passages").json()
    assert (passage["file_id"], passage["file_name"], passage["source_id"]) == (
        file.id,
        "soup.md",
        folder,
    )
    assert passage["text"] == "# Soup\n\nTake leeks.\nAnd potatoes."
    sizes = api.http.get(
        "/v1/folders/metadata", params={"include_detailed_per_source_metadata": True}
    ).json()
    (own,) = [one for one in sizes["sources"] if one["source_id"] == folder]
    assert (own["file_count"], own["total_size"]) == (1, len(text))
    # The folder's passages belong only to the folder: there is no archive of this name.
    assert api.http.get(f"/v1/archives/{folder}").status_code == 422
    assert folder not in [one.id for one in api.client.archives.list()]


def test_duplicate_file_names_are_handled_as_requested(api: Api, folder: str) -> None:
    first = put(api, folder, "a.txt", "one")
    assert put(api, folder, "a.txt", "two").file_name == "a_(1).txt"
    assert put(api, folder, "a.txt", "three").file_name == "a_(2).txt"
    assert put(api, folder, "a.txt", "four", duplicate_handling="skip").id == first.id
    with pytest.raises(ConflictError, match="already"):
        put(api, folder, "a.txt", "five", duplicate_handling="error")
    replaced = put(api, folder, "b/../a.txt", "six", duplicate_handling="replace")
    assert (replaced.file_name, replaced.id == first.id) == ("a.txt", False)
    named = api.client.folders.files.upload(folder, file=("x.bin", b"seven"), name="named.txt")
    assert read(api, folder, named.id).file_name == "named.txt"
    listed = api.client.folders.files.list(folder, order="asc", include_content=True)
    assert [(one.file_name, one.content) for one in listed] == [
        ("a_(1).txt", "two"),
        ("a_(2).txt", "three"),
        ("a.txt", "six"),
        ("named.txt", "seven"),
    ]


def test_a_deleted_file_disappears_at_once_and_is_purged(api: Api, folder: str) -> None:
    kept, gone = (
        put(api, folder, "kept.txt", "Bees make honey."),
        put(api, folder, "gone.txt", "Wasps sting.\n" * 500),
    )
    api.client.folders.files.delete(gone.id, folder_id=folder)
    assert [one.id for one in api.client.folders.files.list(folder)] == [kept.id]
    with pytest.raises(NotFoundError):
        api.client.folders.files.retrieve(gone.id, folder_id=folder)
    with pytest.raises(NotFoundError):
        api.client.folders.files.delete(gone.id, folder_id=folder)
    assert put(api, folder, "gone.txt", "Again.").file_name == "gone.txt"
    texts = [one["text"] for one in api.http.get(f"/v1/folders/{folder}/passages").json()]
    assert sorted(texts) == ["Again.", "Bees make honey."]


def test_chunks_of_a_deleted_file_shorten_no_page(api: Api, folder: str) -> None:
    """The file is hidden, but not purged yet."""
    put(api, folder, "kept.txt", "Bees make honey.")
    gone = put(api, folder, "gone.txt", "Wasps sting.\n" * 500)
    api.server.write(lambda tx: queries.hide_files(tx, [gone.id]))
    for order in ("asc", "desc"):
        page = ok(api.http.get(f"/v1/folders/{folder}/passages?limit=1&order={order}"))
        assert [one["text"] for one in page] == ["Bees make honey."]
        page = ok(
            api.http.get(f"/v1/folders/{folder}/passages?order={order}&after={page[0]['id']}")
        )
        assert page == []


def test_unreadable_oversized_and_badly_named_uploads_are_refused(api: Api, folder: str) -> None:
    with pytest.raises(APIStatusError) as refused:
        put(api, folder, "x.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 10)
    assert refused.value.status_code == 415
    assert "docx" in str(refused.value)
    too_long = api.http.post(
        f"/v1/folders/{folder}/upload", files={"file": ("x.txt", b"x" * (33 << 20))}
    )
    assert too_long.status_code == 413
    assert "RICORDO_MAX_BODY_MB" in too_long.text
    for name in ("", "..", "/", "x" * 300):
        answer = api.http.post(
            f"/v1/folders/{folder}/upload",
            params={"name": name},
            files={"file": (name or "/", b"x")},
        )
        assert answer.status_code in (400, 422), (name, answer.text)
    missing = api.http.post(f"/v1/folders/{folder}/upload", data={"file": "x"})
    assert missing.status_code == 422
    assert api.client.folders.files.list(folder).items == []


def test_an_empty_file_is_accepted(api: Api, folder: str) -> None:
    file = put(api, folder, "empty.txt", "")
    assert (file.processing_status, file.total_chunks) == ("completed", 0)


def test_sizes_count_folders_and_files_that_the_details_leave_out(
    api: Api, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = api.client.folders.create(name="other shelf").id
    oldest = next(iter(api.client.folders.list(order="asc"))).id
    for folder_id in dict.fromkeys((oldest, folder, other)):
        put(api, folder_id, "a.txt", "12345")
        put(api, folder_id, "b.txt", "123")

    def sizes(*, detailed: bool) -> dict[str, Any]:
        shown: dict[str, Any] = ok(
            api.http.get(
                "/v1/folders/metadata", params={"include_detailed_per_source_metadata": detailed}
            )
        )
        return shown

    whole = sizes(detailed=True)
    files = [file for source in whole["sources"] for file in source["files"]]
    assert whole["total_sources"] == len(whole["sources"]) >= 2
    assert whole["total_files"] == len(files) >= 4
    assert whole["total_size"] == sum(file["file_size"] for file in files)
    monkeypatch.setattr(routes, "_MOST_LISTED", 1)
    cut = sizes(detailed=True)
    assert {**cut, "sources": []} == {**whole, "sources": []} == sizes(detailed=False)
    (source,) = cut["sources"]
    first = whole["sources"][0]
    assert (source["file_count"], source["total_size"]) == (
        first["file_count"],
        first["total_size"],
    )
    assert len(source["files"]) == 1 < first["file_count"]
    api.client.folders.delete(other)


def test_deleting_a_folder_deletes_its_files(api: Api) -> None:
    folder = api.client.folders.create(name=f"gone {time.monotonic_ns()}").id
    file = put(api, folder, "a.txt", "Text.")
    api.client.folders.delete(folder)
    for path in (
        f"/v1/folders/{folder}",
        f"/v1/folders/{folder}/files/{file.id}",
        f"/v1/folders/{folder}/passages",
    ):
        assert api.http.get(path).status_code == 404
    with pytest.raises(NotFoundError):
        put(api, folder, "b.txt", "Text.")
