"""`ricordo.open`: a server in this process with the official client, without a port."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import letta_client
import pytest
from letta_client import Letta

import ricordo
from ricordo.domain.model import LIBRARIAN
from ricordo.errors import Conflict, Invalid
from tests.embedded.slow_model import LIMIT, SlowModel


def opened(folder: Path, **settings: Any) -> Any:
    return ricordo.open(folder, model=LIBRARIAN, find_local_models=False, **settings)


def texts(messages: list[Any]) -> str:
    return "".join(getattr(message, "content", "") or "" for message in messages)


def test_an_agent_remembers_without_a_server_on_a_port(client: Letta) -> None:
    agent = client.agents.create(memory_blocks=[{"label": "human", "value": "Ada."}])
    client.agents.messages.create(agent.id, input="My favourite tea is jasmine.")
    answer = client.agents.messages.create(agent.id, input="What is my favourite tea?")
    assert "jasmine" in texts(answer.messages)


def test_a_stream_is_read_while_the_model_still_writes(client: Letta, model: SlowModel) -> None:
    """The second word is only sent after the first was read, so a buffered stream never ends."""
    agent = client.agents.create(model="slow/model", embedding=None)
    model.was_heard.clear()
    pieces = []
    for event in client.agents.messages.create(
        agent.id, input="Speak.", streaming=True, stream_tokens=True
    ):
        if event.message_type == "assistant_message":
            pieces.append(event.content)
            model.was_heard.set()
    assert pieces == ["First ", "second."]


def test_a_turn_continues_when_its_reader_leaves(client: Letta, model: SlowModel) -> None:
    agent = client.agents.create(model="slow/model", embedding=None)
    model.was_heard.clear()
    stream = client.agents.messages.create(
        agent.id, input="Speak.", streaming=True, stream_tokens=True
    )
    next(iter(stream))
    stream.close()
    (run,) = client.runs.list(agent_id=agent.id).items
    assert run.status in ("created", "running")
    model.was_heard.set()
    while (status := client.runs.retrieve(run.id).status) in ("created", "running"):
        pass
    assert status == "completed"


def test_a_silent_answer_ends_with_the_clients_timeout(client: Letta, model: SlowModel) -> None:
    agent = client.agents.create(model="slow/model", embedding=None)
    model.was_heard.clear()
    impatient = client.with_options(timeout=0.05, max_retries=0)
    with pytest.raises(letta_client.APITimeoutError):
        impatient.agents.messages.create(agent.id, input="Speak.")
    model.was_heard.set()


def test_several_threads_can_use_one_client(client: Letta) -> None:
    agent = client.agents.create(name="shared")
    names: list[str] = []

    def ask() -> None:
        names.extend(client.agents.retrieve(agent.id).name for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert names == ["shared"] * 40


@pytest.mark.parametrize("name", ["plain", "with space", "ü ß", "a/b", "100%", "a?b#c", "Ада"])
def test_any_name_reaches_the_server_unchanged(client: Letta, name: str) -> None:
    blocks = ricordo.memory.UserBlocks(client, "grace")
    assert blocks.write(name.replace("?", ""), "Text.").label == name.replace("?", "")
    agent = client.agents.create(name=name)
    assert [found.id for found in client.agents.list(name=name).items] == [agent.id]


def test_refusals_are_the_clients_own_errors(client: Letta) -> None:
    missing = "agent-00000000-0000-4000-8000-000000000000"
    with pytest.raises(letta_client.NotFoundError, match="NOT_FOUND"):
        client.agents.retrieve(missing)


def test_a_folder_with_keys_still_opens_and_other_keys_keep_their_rights(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as client:
        key: Any = client.post(
            "/v1/keys/", body={"name": "ada", "user": "ada", "role": "user"}, cast_to=object
        )
    with opened(tmp_path) as client:
        client.agents.create(name="everybody's")
        of_ada = client.with_options(api_key=key["key"])
        assert ricordo.memory.UserBlocks(of_ada, "ada").write("human", "I am Ada.")
        with pytest.raises(letta_client.APIStatusError, match="grace"):
            ricordo.memory.UserBlocks(of_ada, "grace").read_all()
        for wrong in ("ricordo_process_wrong", "ricordo_wrong", "wrong"):
            with pytest.raises(letta_client.AuthenticationError):
                client.with_options(api_key=wrong).agents.list()


def test_a_key_in_the_environment_changes_nothing(
    client: Letta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LETTA_API_KEY", "sk-of-another-server")
    monkeypatch.setenv("LETTA_BASE_URL", "http://127.0.0.1:9")
    assert client.with_options(max_retries=1).health().status == "ok"


def test_an_upload_arrives_completely(client: Letta) -> None:
    folder = client.folders.create(name="books")
    file = client.folders.files.upload(folder.id, file=("book.txt", b"word " * 100_000))
    assert file.file_name == "book.txt"
    assert file.file_size == 500_000


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    with opened(tmp_path) as client:
        with pytest.raises(Conflict, match="Another Ricordo server is using"), opened(tmp_path):
            pass
        assert client.health().status == "ok"


@pytest.mark.parametrize("name", ["port", "host", "data_dir", "modle", "sandbox_calls"])
def test_settings_that_open_does_not_accept_are_refused(name: str, tmp_path: Path) -> None:
    with (
        pytest.raises(Invalid, match=f"takes no setting {name}"),
        opened(tmp_path, **{name: "1"}),
    ):
        pass


def test_an_error_in_the_block_closes_the_server_and_is_raised_unchanged(tmp_path: Path) -> None:
    others = set(threading.enumerate())
    earlier: list[Letta] = []

    def fail() -> None:
        with opened(tmp_path / "new") as client:
            earlier.append(client)
            client.agents.create(name="kept")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        fail()
    assert caught.value.__context__ is None
    with opened(tmp_path / "new") as again:  # the folder is unlocked
        assert [agent.name for agent in again.agents.list().items] == ["kept"]
        with pytest.raises(letta_client.APIConnectionError):
            earlier[0].with_options(max_retries=0).agents.list()
    mine = set(threading.enumerate()) - others
    assert not [thread for thread in mine if thread.name.startswith("ricordo")]


async def test_an_asynchronous_program_can_do_the_same(tmp_path: Path) -> None:
    model = SlowModel()
    options: dict[str, Any] = {"model": LIBRARIAN, "find_local_models": False}
    async with ricordo.open_async(tmp_path, models=[model], **options) as client:
        agent = await client.agents.create(model="slow/model", embedding=None)
        stream = await client.agents.messages.create(
            agent.id, input="Speak.", streaming=True, stream_tokens=True
        )
        pieces = []
        async for event in stream:
            if event.message_type == "assistant_message":
                pieces.append(event.content)
                model.was_heard.set()
        assert pieces == ["First ", "second."]
        blocks = ricordo.memory.AsyncUserBlocks(client, "ada")
        await blocks.write("human", "Her name is Ada.")
        proposal = await blocks.propose(
            "human",
            "Her name is Ada.\nShe lives in Turin.",
            old="Her name is Ada.",
            reasoning="She said so.",
        )
        assert await blocks.proposals() == [proposal]
        await blocks.approve(proposal)
        assert (await blocks.read("human")).body == "Her name is Ada.\nShe lives in Turin."
        assert len(await blocks.history("human")) == 2
    with pytest.raises(Conflict, match="is using"):
        async with ricordo.open_async(tmp_path, **options), ricordo.open_async(tmp_path, **options):
            pass


PROGRAM = """
import sys
before = set(sys.modules)
import ricordo
print(len({name for name in set(sys.modules) - before if not name.startswith(("_", "re."))}))
print(*sorted(name for name in sys.modules if name.startswith("ricordo")))
sys.modules["letta_client"] = None
try:
    ricordo.open("folder")
except Exception as error:
    print(f"{type(error).__name__}: {error}")
print(sorted(ricordo.memory.__all__))
print(sorted(name for name in ricordo.__all__ if not hasattr(ricordo, name)))
"""


def test_importing_the_package_loads_no_server_or_its_libraries(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    count, ours, error, names, missing = done.stdout.splitlines()
    assert int(count) < 40  # All of these are in the standard library.
    assert ours == "ricordo"
    assert error.startswith("Unsupported: ricordo.open provides a client of letta-client")
    assert 'pip install "ricordo[embedded]"' in error
    assert "UserBlocks" in names
    assert missing == "[]"
    assert list(tmp_path.iterdir()) == []


START = """
import sys
import ricordo
with ricordo.open("folder", find_local_models=False):
    print(*sorted(sys.modules))
"""
# Libraries that take 5 to 60 MB of memory or a tenth of a second, and that few servers use.
LATER = {
    *("anthropic", "boto3", "google.genai", "openai", "pydantic_ai"),  # providers of models
    *("numpy", "tokenizers", "wordllama"),  # embeddings
    *("docx", "markitdown", "openpyxl", "pypdf", "pptx"),  # files
    *("honcho", "mcp", "pinecone", "prometheus_client", "psycopg", "qdrant_client", "turbopuffer"),
}


def test_a_start_imports_no_library_before_its_first_use(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", START],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(done.stdout.split())
    assert "ricordo.features.pictures.jobs" in imported
    assert imported & LATER == set()
