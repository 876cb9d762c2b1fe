"""Folders of an agent with sleeptime.

A temporary agent reads them once, into a block that is deleted with the folder.
"""

from contextlib import suppress
from typing import Any

import httpx2
import pytest

from ricordo.domain.job import Job
from ricordo.domain.model import ModelRequest
from ricordo.domain.scope import Scope
from ricordo.errors import ModelError
from ricordo.features.groups import document_queries, documents
from ricordo.features.groups.document_queries import Reading
from ricordo.llm.scripted import Line, call
from ricordo.storage import blocks
from tests.features.groups.test_sleeptime import main_agent
from tests.seams.http import ok
from tests.seams.server import ServerInThread
from tests.seams.waiting import wait_for


def folder_with(http: httpx2.Client, name: str, **files: str) -> str:
    folder = ok(
        http.post("/v1/folders/", json={"name": name, "instructions": "Note prices alone."})
    )["id"]
    for stem, content in files.items():
        upload(http, folder, stem, content)
    return str(folder)


def upload(http: httpx2.Client, folder: str, stem: str, content: str) -> str:
    file = ok(
        http.post(f"/v1/folders/{folder}/upload", files={"file": (f"{stem}.txt", content.encode())})
    )["id"]
    wait_for(
        lambda: (
            {one["processing_status"] for one in ok(http.get(f"/v1/folders/{folder}/files"))}
            == {"completed"}
        )
    )
    return str(file)


def attach(http: httpx2.Client, agent: str, folder: str, do: str = "attach") -> None:
    ok(http.patch(f"/v1/agents/{agent}/folders/{do}/{folder}"))


def find_documents(server: ServerInThread) -> None:
    server.run(documents.look(server.runtime, Job(documents.LOOK, ""), lambda _done, _all: None))


def block_of(http: httpx2.Client, agent: str, label: str) -> dict[str, Any] | None:
    held = ok(http.get(f"/v1/agents/{agent}/core-memory/blocks"))
    return next((one for one in held if one["label"] == label), None)


def text_of(http: httpx2.Client, agent: str, label: str) -> str:
    block = block_of(http, agent, label)
    return str(block["value"]) if block else ""


def parts_in(server: ServerInThread) -> list[str]:
    """Return the portions that were sent, each once, in order."""
    seen: dict[str, None] = {}
    for request in list(server.model.requests):
        for message in request.messages:
            if message.role == "user" and "<document>" in message.text:
                seen.setdefault(message.text)
    return list(seen)


def notes(request: ModelRequest) -> Line:
    """A model that writes the first word of each portion into the block of its source."""
    message = request.messages[-1]
    if message.role == "tool":
        return call("memory_finish_edits")
    if "<document>" not in message.text:
        return "Fine."
    label = message.text.split('labelled "')[1].split('"')[0]
    word = message.text.split("<document>\n")[1].split()[0]
    return call("memory_insert", label=label, new_string=f"Word: {word}")


def hidden_agents(http: httpx2.Client) -> list[str]:
    listed = ok(http.get("/v1/agents/", params={"hidden": True, "limit": 200}))
    return [one["name"] for one in listed if one["name"].endswith("-doc-sleeptime")]


def test_each_file_is_read_once_into_a_block_shared_by_the_pair(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(notes)
    agent = main_agent(http, name="Reader")
    folder = folder_with(http, "Prices", a="Apples cost 2.", b="Bread costs 3.")
    attach(http, agent["id"], folder)
    find_documents(server)
    wait_for(lambda: {"Apples", "Bread"} <= {*text_of(http, agent["id"], "Prices").split()})
    wait_for(lambda: hidden_agents(http) == [])
    block = block_of(http, agent["id"], "Prices")
    assert block is not None
    (sleeper,) = agent["multi_agent_group"]["agent_ids"]
    assert (block_of(http, sleeper, "Prices") or {})["id"] == block["id"]
    assert server.read(lambda tx: blocks.get(tx, Scope(), block["id"])).is_untrusted
    assert len(parts_in(server)) == 2
    asked = next(
        request for request in server.model.requests if "<document>" in request.messages[-1].text
    )
    assert "Note prices alone." in asked.messages[0].text
    for _ in range(2):
        find_documents(server)
    upload(http, folder, "c", "Cheese costs 4.")
    find_documents(server)
    wait_for(lambda: "Cheese" in text_of(http, agent["id"], "Prices"))
    assert len(parts_in(server)) == 3


def test_detaching_a_folder_removes_only_the_generated_block(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(notes)
    agent = main_agent(http, memory_blocks=[{"label": "Own", "value": "Mine."}])["id"]
    made, own = folder_with(http, "Made", a="Milk."), folder_with(http, "Own", a="Oats.")
    for folder in (made, own):
        attach(http, agent, folder)
    find_documents(server)
    wait_for(
        lambda: "Milk." in text_of(http, agent, "Made") and "Oats." in text_of(http, agent, "Own")
    )
    wait_for(lambda: hidden_agents(http) == [])
    for folder in (made, own):
        attach(http, agent, folder, "detach")
    find_documents(server)
    assert block_of(http, agent, "Made") is None
    assert "Oats." in text_of(http, agent, "Own")
    attach(http, agent, made)
    find_documents(server)
    wait_for(lambda: "Milk." in text_of(http, agent, "Made"))


def test_notes_from_a_document_follow_the_blocks_policy(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(notes)
    guarded = [{"label": "Laws", "value": "None.", "policy": "guarded"}]
    agent = main_agent(http, memory_blocks=guarded)["id"]
    attach(http, agent, folder_with(http, "Laws", a="Obey."))
    find_documents(server)
    block = block_of(http, agent, "Laws")
    assert block is not None
    wait_for(lambda: len(ok(http.get(f"/v1/blocks/{block['id']}/diffs"))) == 1)
    assert text_of(http, agent, "Laws") == "None."


def test_deleting_a_file_removes_its_notes_and_rereads_the_others(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(notes)
    agent = main_agent(http)["id"]
    folder = folder_with(http, "Stock", keep="Kiwis.")
    gone = upload(http, folder, "gone", "Grapes.")
    attach(http, agent, folder)
    find_documents(server)
    wait_for(lambda: all(word in text_of(http, agent, "Stock") for word in ("Kiwis.", "Grapes.")))
    wait_for(lambda: hidden_agents(http) == [])
    assert http.delete(f"/v1/folders/{folder}/{gone}").status_code == 204
    find_documents(server)
    find_documents(server)
    wait_for(lambda: "Kiwis." in text_of(http, agent, "Stock"))
    assert "Grapes." not in text_of(http, agent, "Stock")


def test_a_deleted_file_leaves_the_block_although_another_transaction_writes_it(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_add_jobs", lambda _tx: None)
    server.answers_with(notes)
    agent = main_agent(http)["id"]
    folder = folder_with(http, "Contested", kept="Apples.")
    gone = upload(http, folder, "gone", "Grapes.")
    attach(http, agent, folder)
    find_documents(server)
    for reading in [one for one in server.read(document_queries.waiting) if one.agent_id == agent]:
        job = Job(documents.READ, reading.organization_id, {"reading_id": reading.id})
        server.run(documents.read(server.runtime, job, lambda _done, _all: None))
    assert "Grapes." in text_of(http, agent, "Contested")
    write = blocks.write
    refused: list[str] = []

    def write_second(tx: Any, block: Any, *rest: Any) -> Any:
        if not refused:
            refused.append(block.id)
            return None
        return write(tx, block, *rest)

    monkeypatch.setattr(documents.blocks, "write", write_second)
    assert http.delete(f"/v1/folders/{folder}/{gone}").status_code == 204
    find_documents(server)
    assert len(refused) == 1
    assert "Grapes." not in text_of(http, agent, "Contested")


@pytest.mark.parametrize("portions", [1, 3])
def test_deleting_a_file_rereads_a_file_that_is_being_read(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch, portions: int
) -> None:
    monkeypatch.setattr(documents, "_CHARACTERS", 500)
    monkeypatch.setattr(documents, "_PORTIONS_AT_ONCE", portions)
    monkeypatch.setattr(documents, "_add_jobs", lambda _tx: None)
    server.answers_with(notes)
    agent = main_agent(http)["id"]
    words = ("One", "Two", "Three")
    long = "\n".join(f"{word} {'x' * 490}" for word in words)
    folder = folder_with(http, f"Half {portions}", long=long)
    gone = upload(http, folder, "gone", "Grapes.")
    attach(http, agent, folder)
    find_documents(server)

    def open_readings() -> list[Reading]:
        return [one for one in server.read(document_queries.waiting) if one.agent_id == agent]

    def read(reading: Reading) -> None:
        job = Job(documents.READ, reading.organization_id, {"reading_id": reading.id})
        server.run(documents.read(server.runtime, job, lambda _done, _all: None))

    long_reading, gone_reading = open_readings()
    read(gone_reading)

    async def killed(*_arguments: Any) -> None:
        raise _KilledError

    with monkeypatch.context() as patch:
        patch.setattr(documents, "_delete_reader", killed)
        with suppress(_KilledError):
            read(long_reading)
    assert "Word: One" in text_of(http, agent, f"Half {portions}")
    assert http.delete(f"/v1/folders/{folder}/{gone}").status_code == 204
    find_documents(server)
    while left := open_readings():
        read(left[0])
    text = text_of(http, agent, f"Half {portions}")
    assert [text.count(f"Word: {word}") for word in words] == [1, 1, 1]
    assert "Grapes." not in text
    assert hidden_agents(http) == []


def test_a_failed_reading_is_retried_at_the_same_portion(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_CHARACTERS", 500)
    failures = [ModelError("llm_error", "The provider is down.")]

    def answer(request: ModelRequest) -> Line:
        if "Part 2 of 3" in request.messages[-1].text and failures:
            return failures.pop()  # type: ignore[return-value]
        return notes(request)

    server.answers_with(answer)
    agent = main_agent(http)["id"]
    words = [f"{name} {'x' * 480}" for name in ("One", "Two", "Three")]
    attach(http, agent, folder_with(http, "Long", a="\n".join(words)))
    find_documents(server)
    wait_for(lambda: "Three" in text_of(http, agent, "Long"))
    text = text_of(http, agent, "Long")
    assert [text.count(f"Word: {name}") for name in ("One", "Two", "Three")] == [1, 1, 1]


def test_a_long_file_is_read_completely_in_several_jobs(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_CHARACTERS", 500)
    monkeypatch.setattr(documents, "_PORTIONS_AT_ONCE", 2)
    server.answers_with(notes)
    agent = main_agent(http)["id"]
    words = [f"Number{number}" for number in range(5)]
    attach(http, agent, folder_with(http, "Book", a="\n".join(f"{w} {'x' * 480}" for w in words)))
    find_documents(server)
    wait_for(lambda: "Number4" in text_of(http, agent, "Book"))
    text = text_of(http, agent, "Book")
    assert [text.count(f"Word: {word}") for word in words] == [1] * 5
    wait_for(lambda: hidden_agents(http) == [])


def test_files_are_not_read_without_sleeptime_or_from_a_users_folder(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(notes)
    awake, asleep = main_agent(http, enable_sleeptime=False)["id"], main_agent(http)["id"]
    attach(http, awake, folder_with(http, "Awake", a="Nuts."))
    ada = {"x-ricordo-user": "ada"}
    own = ok(http.post("/v1/folders/", json={"name": "Hers"}, headers=ada))["id"]
    ok(http.post(f"/v1/folders/{own}/upload", files={"file": ("a.txt", b"Secret.")}, headers=ada))
    ok(http.patch(f"/v1/agents/{asleep}/folders/attach/{own}", headers=ada))
    wait_for(
        lambda: (
            ok(http.get(f"/v1/folders/{own}/files", headers=ada))[0]["processing_status"]
            == "completed"
        )
    )
    find_documents(server)
    assert block_of(http, awake, "Awake") is None
    assert block_of(http, asleep, "Hers") is None
    assert parts_in(server) == []


def test_any_folder_name_yields_a_valid_label() -> None:
    from ricordo.domain.block import require_label
    from ricordo.features.files.folders.records import Folder

    names = (
        "Prices",
        "persona",
        "instructions",
        "a/b",
        "/",
        "",
        "..",
        "<b>",
        "x" * 300,
        "a.md/b",
        "\x07",
        "日本",
        "CON",
    )
    for name in names:
        folder = Folder("source-00000000-0000-4000-8000-0123456789ab", "org", "archive", name)
        assert require_label(documents.label_of(folder))


@pytest.mark.parametrize("window", [500, 4_000, 200_000])
def test_portions_contain_the_whole_text_in_order(window: int) -> None:
    content = "\n".join("word " * (number % 700) for number in range(60))
    portions = documents.portions_of(content, window)
    assert "".join(portions).split() == content.split()
    assert max(map(len, portions)) <= 16_000
    assert documents.portions_of(" \n\n", window) == []


class _KilledError(Exception):
    pass


POINTS = (
    "before the block",
    "after the reader",
    "first portion",
    "last portion",
    "before deleting",
    "after deleting",
)


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_document_reading_reads_each_part_once(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    server.answers_with(notes)
    monkeypatch.setattr(documents, "_CHARACTERS", 500)
    monkeypatch.setattr(documents, "_add_jobs", lambda _tx: None)
    agent = main_agent(http)["id"]
    name = f"Kill {point}"
    attach(
        http,
        agent,
        folder_with(
            http, name, a="\n".join(f"{word} {'x' * 490}" for word in ("One", "Two", "Three"))
        ),
    )
    find_documents(server)
    (reading,) = [one for one in server.read(document_queries.waiting) if one.agent_id == agent]
    job = Job(documents.READ, reading.organization_id, {"reading_id": reading.id})

    def read() -> None:
        server.run(documents.read(server.runtime, job, lambda _done, _all: None))

    where = {
        "before the block": ("_make_reader", 0, False),
        "after the reader": ("_make_reader", 0, True),
        "first portion": ("_send", 0, True),
        "last portion": ("_send", 2, True),
        "before deleting": ("_delete_reader", 0, False),
        "after deleting": ("_delete_reader", 0, True),
    }
    function, number, is_after = where[point]
    original, calls = getattr(documents, function), iter(range(100))

    async def killed(*arguments: Any) -> Any:
        is_it = next(calls) == number
        if is_it and not is_after:
            raise _KilledError
        result = await original(*arguments)
        if is_it:
            raise _KilledError
        return result

    with monkeypatch.context() as patch:
        patch.setattr(documents, function, killed)
        with pytest.raises(_KilledError):
            read()
    read()
    text = text_of(http, agent, name)
    assert [text.count(f"Word: {word}") for word in ("One", "Two", "Three")] == [1, 1, 1]
    assert hidden_agents(http) == []
    asked = len(server.model.requests)
    read()
    find_documents(server)
    assert len(server.model.requests) == asked


def test_a_finished_run_whose_result_was_lost_is_not_repeated(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers_with(notes)
    monkeypatch.setattr(documents, "_add_jobs", lambda _tx: None)
    agent = main_agent(http)["id"]
    attach(http, agent, folder_with(http, "Noted", a="Once."))
    find_documents(server)
    (reading,) = [one for one in server.read(document_queries.waiting) if one.agent_id == agent]
    job = Job(documents.READ, reading.organization_id, {"reading_id": reading.id})

    def lost(*_arguments: Any) -> None:
        raise _KilledError

    with monkeypatch.context() as patch:
        patch.setattr(document_queries, "save", lost)
        with pytest.raises(_KilledError):
            server.run(documents.read(server.runtime, job, lambda _done, _all: None))
    server.run(documents.read(server.runtime, job, lambda _done, _all: None))
    assert text_of(http, agent, "Noted").count("Word: Once.") == 1


def test_a_file_whose_reading_fails_is_skipped(server: ServerInThread, http: httpx2.Client) -> None:
    def answer(request: ModelRequest) -> Line:
        if "Poison" in request.messages[-1].text:
            raise ModelError("llm_bad_request", "No.")
        return notes(request)

    server.answers_with(answer)
    agent = main_agent(http)["id"]
    attach(http, agent, folder_with(http, "Mixed", a="Poison.", b="Bread."))
    find_documents(server)
    wait_for(lambda: "Bread." in text_of(http, agent, "Mixed"))
    wait_for(lambda: hidden_agents(http) == [])
    find_documents(server)
    assert "Poison" not in text_of(http, agent, "Mixed")
