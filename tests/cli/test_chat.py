"""`ricordo chat`: through a pipe, on a terminal, and its commands on a real server."""

import io
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from ricordo.cli import chat as chatting
from ricordo.cli.chat import DEFAULT_BLOCKS, Chat, find_agent, run_command
from ricordo.cli.client import Client, Json, any_server
from ricordo.cli.screen import AnswerPrinter, Screen, Terminal, printable
from ricordo.domain.message import ReasoningPart, TextPart
from ricordo.errors import Forbidden, Invalid, ModelError, NotFound, Unavailable
from ricordo.llm.scripted import call
from ricordo.secret import OPERATOR
from tests.cli.conftest import COMMAND, LIMIT, Shell, environment
from tests.seams.server import MODEL, Gate, ServerInThread, serving


class Page(Screen):
    """A screen that records its output as (kind, text)."""

    is_live = True

    def __init__(self, *answers: bool) -> None:
        self.shown: list[tuple[str, str]] = []
        self.answers = list(answers)

    def confirm(self, question: str) -> bool:
        self.shown.append(("question", question))
        return self.answers.pop(0)

    def end_line(self) -> None:
        self.shown.append(("end", ""))

    def text(self, kind: str) -> str:
        return "\n".join(text for shown, text in self.shown if shown == kind)


for _kind in ("say", "think", "quietly", "tell", "complain"):
    setattr(Page, _kind, lambda self, text, kind=_kind: self.shown.append((kind, text)))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("data"), model=MODEL) as server:
        yield server


@pytest.fixture
def server(running: ServerInThread) -> ServerInThread:
    """The server, with a model whose script is still empty."""
    running.forget()
    return running


@pytest.fixture
def talk(server: ServerInThread) -> Iterator[Chat]:
    with closing(Client(server.url)) as client:
        yield Chat(client, Page(), client.create_agent("nina", DEFAULT_BLOCKS))


def page(talk: Chat) -> Page:
    assert isinstance(talk.screen, Page)
    return talk.screen


def command(talk: Chat, line: str) -> str:
    talk.screen = Page()
    run_command(talk, line)
    return page(talk).text("tell")


def test_a_chat_through_a_server_is_remembered_by_a_chat_without_one(shell: Shell) -> None:
    with serving(shell.data) as server:
        first = shell.run(
            "chat", "--server", server.url, said="My favourite tea is Darjeeling.\n\n"
        )
    assert first.returncode == 0, first.stderr
    assert "Darjeeling" in first.stdout
    second = shell.run("chat", said="What is my favourite tea?\n/blocks\n/block nothing\n")
    assert "Darjeeling" in second.stdout
    assert "persona  " in second.stdout
    assert 'ricordo has no block "nothing"' in second.stderr
    assert second.returncode == 1
    assert "\x1b" not in first.stdout + second.stdout


def test_a_terminal_shows_a_prompt_confirms_a_reset_and_ends_with_the_input(
    tmp_path: Path,
) -> None:
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    with serving(tmp_path / "data", model=MODEL) as server:
        server.says("Good morning.")
        # A background job of a shell ignores SIGINT, and so do all processes that it starts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        process = subprocess.Popen(
            [*COMMAND, "chat", "--server", server.url],
            stdin=child,
            stdout=child,
            stderr=child,
            cwd=tmp_path,
            env=environment(tmp_path / "other", TERM="xterm", COLUMNS="100"),
        )
        signal.signal(signal.SIGINT, before)
        os.close(child)
        _until(parent, "› ")
        os.write(parent, b"Hello.\n")
        assert "Good morning." in _until(parent, "› ")
        os.write(parent, b"/reset\n")
        _until(parent, "[y/N] ")
        os.write(parent, b"n\n")
        _until(parent, "› ")
        # Python may miss a signal just before it waits for a key; people press the key again.
        for _ in range(2 * LIMIT):
            process.send_signal(signal.SIGINT)
            if select.select([parent], [], [], 0.5)[0]:
                break
        assert "Ctrl-D leaves" in _until(parent, "› ")
        os.write(parent, b"\x04")
        assert process.wait(LIMIT) == 0
        os.close(parent)
        with server.http() as http:
            agent = http.get("/v1/agents/").json()[0]
    assert agent["name"] == "ricordo"
    assert {block["label"] for block in agent["blocks"]} == {"persona", "human"}
    assert len(agent["message_ids"]) == 3


def _until(descriptor: int, mark: str) -> str:
    seen, deadline = b"", time.monotonic() + LIMIT
    while mark.encode() not in seen:
        assert select.select([descriptor], [], [], deadline - time.monotonic())[0], (
            f"the text did not appear in time: {seen!r}"
        )
        seen += os.read(descriptor, 4096)
    return seen.decode()


def test_an_answer_shows_its_text_reasoning_and_tool_calls(
    server: ServerInThread, talk: Chat
) -> None:
    server.says(
        (
            ReasoningPart("She likes tea."),
            call("memory_insert", label="human", new_string="Ada likes tea. " * 9),
        ),
        (call("memory_insert", label="nowhere", new_string="x"),),
        (TextPart("I will remember that."),),
    )
    assert AnswerPrinter(talk.screen).show(talk.client.send(talk.agent["id"], "I like tea."))
    said = page(talk)
    assert "".join(text for kind, text in said.shown if kind == "think") == "She likes tea."
    assert "".join(text for kind, text in said.shown if kind == "say") == "I will remember that."
    assert len([text for kind, text in said.shown if kind == "say"]) > 1, (
        "tokens are shown as they come"
    )
    first, second = (text for kind, text in said.shown if kind == "quietly")
    assert first.startswith('↳ memory_insert(label="human", new_string="Ada likes tea.')
    assert first.endswith("…)")
    assert '↳ memory_insert(label="nowhere", new_string="x") failed: ' in second
    assert [kind for kind, _ in said.shown].count("end") == 2


def test_a_pipe_gets_only_the_answer(
    server: ServerInThread, talk: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    server.says(
        (ReasoningPart("Hm."), call("conversation_search", query="tea")),
        (TextPart("You like tea."),),
    )
    assert AnswerPrinter(Screen()).show(talk.client.send(talk.agent["id"], "What do I like?"))
    assert capsys.readouterr() == ("You like tea.\n", "")


def test_a_failed_turn_is_reported_and_not_a_success(server: ServerInThread, talk: Chat) -> None:
    server.says(ModelError("llm_authentication", "The key was refused."))
    assert not chatting._handle_line(talk, "Hello.")
    assert "The key was refused." in page(talk).text("complain")
    server.says("Here again.")
    assert chatting._handle_line(talk, "//Hello.")
    (question,) = [message.text for message in server.model.requests[-1].messages[-1:]]
    assert question == "/Hello."


def test_ctrl_c_cancels_the_turn(
    server: ServerInThread, talk: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(server)
    server.answers_with(gate)
    send, seen = talk.client.send, []

    def interrupted(agent_id: str, text: str) -> Iterator[Json]:
        for event in send(agent_id, text):
            seen.append(event)
            gate.wait()
            raise KeyboardInterrupt
        yield {}

    monkeypatch.setattr(talk.client, "send", interrupted)
    assert not chatting._handle_line(talk, "Count to a million.")
    assert page(talk).text("complain") == "Stopped."
    with server.http() as http:
        assert http.get(f"/v1/runs/{seen[0]['run_id']}").json()["status"] == "cancelled"


def test_help_lists_the_commands_and_an_invalid_one_is_explained(talk: Chat) -> None:
    listed = command(talk, "/help")
    for name in "help agents agent new blocks block model search reset quit".split():
        assert re.search(rf"^/{name} ", listed, re.MULTILINE)
    for line, sentence in (
        ("/dance", "There is no /dance"),
        ("/agent", "/agent NAME"),
        ("/search ", "/search WORDS"),
    ):
        with pytest.raises(Invalid, match=sentence):
            run_command(talk, line)
    run_command(talk, "/quit")
    assert talk.is_over


def test_agents_are_created_listed_and_selected_by_name_or_id(talk: Chat) -> None:
    nina = talk.agent["id"]
    command(talk, "/new Bruno Rossi")
    assert talk.agent["name"] == "Bruno Rossi"
    assert {block["label"] for block in talk.agent["blocks"]} == {"persona", "human"}
    assert f"* Bruno Rossi  {MODEL}  {talk.agent['id']}" in command(talk, "/agents")
    command(talk, f"/agent {nina}")
    assert talk.agent["id"] == nina
    command(talk, "/agent Bruno Rossi")
    assert talk.agent["name"] == "Bruno Rossi"
    with pytest.raises(NotFound, match='no agent "Zoe"'):
        command(talk, "/agent Zoe")
    with pytest.raises(NotFound, match="no agent"):
        find_agent(talk.client, "agent-zoe")


def test_blocks_are_shown_and_the_model_is_shown_and_changed(talk: Chat) -> None:
    assert f"persona  {len(DEFAULT_BLOCKS['persona'])} of 100000 characters" in command(
        talk, "/blocks"
    )
    assert command(talk, "/block persona") == DEFAULT_BLOCKS["persona"]
    assert command(talk, "/block human") == "(empty)"
    assert f"* {MODEL}" in command(talk, "/model")
    assert "ricordo/librarian" in command(talk, "/model")
    command(talk, "/model ricordo/librarian")
    assert "* ricordo/librarian" in command(talk, "/model")
    with pytest.raises(NotFound, match="Handle nobody/nothing not found"):
        command(talk, "/model nobody/nothing")


def test_the_archive_can_be_searched_and_the_result_says_how_to_search_messages(
    server: ServerInThread, talk: Chat
) -> None:
    with server.http() as http:
        http.post(
            f"/v1/agents/{talk.agent['id']}/archival-memory",
            json={"text": "The boat is blue.", "tags": ["boat"]},
        )
    found = command(talk, "/search blue boat")
    assert re.search(r"^\d{4}-\d\d-\d\d  The boat is blue\.  \[boat\]$", found, re.MULTILINE)
    assert "1 found in the archive" in found
    assert "ask nina about it" in found
    assert "Nothing found" in command(talk, "/search zeppelin")
    unrelated = "In which hangar of Friedrichshafen is the blue zeppelin under repair?"
    path = f"/v1/agents/{talk.agent['id']}/archival-memory/search"
    # The unrelated query still has a nearest passage.
    assert talk.client.ask("GET", path, query={"query": unrelated})["count"] == 1
    assert command(talk, f"/search {unrelated}").startswith("Nothing found in the archive.")


def test_a_reset_asks_for_confirmation_and_deletes_nothing_in_a_pipe(
    server: ServerInThread, talk: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    server.says("Hello.")
    assert chatting._handle_line(talk, "Hello.")
    talk.screen = Screen()
    run_command(talk, "/reset")
    assert "This cannot be asked here" in capsys.readouterr().err
    for answer, left in ((False, 3), (True, 1)):
        talk.screen = Page(answer)
        run_command(talk, "/reset")
        assert "Delete every message of nina?" in page(talk).text("question")
        assert len(talk.client.agent(talk.agent["id"])["message_ids"]) == left
    assert (
        command(talk, "/reset yes") == "The messages of nina are deleted. Its memory is unchanged."
    )
    assert page(talk).text("question") == ""


def test_the_first_agent_is_created_once_and_takes_the_named_model(
    server: ServerInThread,
) -> None:
    with closing(Client(server.url)) as client:
        first = chatting._choose_agent(client, None, "ricordo/librarian")
        again = chatting._choose_agent(client, "ricordo", None)
        changed = chatting._choose_agent(client, first["id"], MODEL)
    assert (first["name"], first["model"]) == ("ricordo", "ricordo/librarian")
    assert (again["id"], changed["id"], changed["model"]) == (first["id"], first["id"], MODEL)


def test_a_required_key_is_sent_and_a_wrong_or_missing_one_is_reported(tmp_path: Path) -> None:
    with serving(tmp_path, api_key="right") as server:
        with closing(Client(server.url, lambda: "right")) as client:
            assert client.agents() == []
        with closing(Client(server.url, lambda: "wrong")) as client:
            assert client.version()
            with pytest.raises(
                Forbidden, match="This server does not accept the key in RICORDO_API_KEY"
            ):
                client.agents()
        # One case has no key, the other has the key of another installation on this machine.
        for nothing in (None, f"{OPERATOR}9999999999_{'0' * 64}"):
            needed = pytest.raises(Forbidden, match="This server requires a key")
            with (
                closing(
                    Client(server.url, partial(str, nothing) if nothing else lambda: None)
                ) as client,
                needed,
            ):
                client.agents()


def test_an_address_without_a_server_is_reported_and_no_own_server_starts(
    data: Path,
) -> None:
    nowhere = "http://127.0.0.1:9"
    with closing(Client(nowhere)) as client:
        assert client.version() is None
        with pytest.raises(Unavailable, match="does not answer"):
            client.agents()
    for wrong in ("127.0.0.1:8283", "http://host:port"):
        with pytest.raises(Invalid, match="is not an address of a server"):
            Client(wrong)
    silent = pytest.raises(Unavailable, match=r"No server answers at http://127\.0\.0\.1:9")
    with silent, any_server(nowhere, lambda _: None):
        pass
    assert not data.exists()


def test_control_characters_are_removed_and_no_word_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert printable("a\x1b]0;title\x07\x9b31m\r\nb\tc é 🙂") == "a]0;title31m\nb\tc é 🙂"
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    window = Terminal()
    for piece in ("[bold]long" * 20, "er"):
        window.say(piece)
    assert out.getvalue() == "[bold]long" * 20 + "er"
