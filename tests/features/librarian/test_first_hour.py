"""The first hour of a newcomer with the librarian, over HTTP.

The tests check what it stores, finds, corrects and forgets, and what it never says.
"""

import re
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx2
import pytest

from ricordo.domain.clock import SECOND
from tests.seams.http import Wire, ok
from tests.seams.server import ServerInThread

KEY = "sk-abcdefghijklmnopqrstuvwx1234"
# Texts that only models and programs read: tools, their results and packages, metadata, headers,
# ids.
MACHINE = re.compile(
    r"memory_(?:insert|replace)|(?:conversation|archival_memory)_(?:search|insert)|send_message|core_memory"
    r"|\[source|[{}]|\"?(?:status|timestamp|role|content)\"?: |AGENT_ID|<[a-z_/]+>"
    r"|(?:message|passage|agent|block|call)[-_][0-9a-f]{4}"
)


@dataclass
class Newcomer:
    """Somebody who talks to an agent of their own."""

    http: httpx2.Client
    path: str

    def says(self, text: str, **more: Any) -> str:
        """Return the answer, after checking that it holds no text for machines."""
        return self.hears(self.sends({"role": "user", "content": text}, **more))

    def sends(self, message: Wire, **more: Any) -> list[Wire]:
        answer: list[Wire] = ok(
            self.http.post(f"{self.path}/messages", json={"messages": [message], **more})
        )["messages"]
        return answer

    def hears(self, messages: list[Wire]) -> str:
        words = "\n".join(
            each["content"] for each in messages if each["message_type"] == "assistant_message"
        )
        assert MACHINE.findall(words) == []
        return words

    @property
    def notes(self) -> list[str]:
        """Return the lines of the block about the newcomer, without the dates."""
        value: str = ok(self.http.get(f"{self.path}/core-memory/blocks/human"))["value"]
        return [
            re.sub(r'^\d{4}-\d\d-\d\d: "(.*)"$', r"\1", line) for line in value.split("\n") if line
        ]

    @property
    def archive(self) -> list[str]:
        return [each["text"] for each in ok(self.http.get(f"{self.path}/archival-memory"))]

    @property
    def everything_sent(self) -> str:
        """Return everything that the model wrote: texts and arguments."""
        sent = ok(self.http.get(f"{self.path}/messages", params={"limit": 200}))
        said = [each["content"] for each in sent if each["message_type"] == "assistant_message"]
        calls = [
            call
            for each in sent
            if each["message_type"] == "tool_call_message"
            for call in each["tool_calls"]
        ]
        return "\n".join([*said, *(call["arguments"] for call in calls)])


def newcomer(
    http: httpx2.Client, human: str = "", agent_type: str = "letta_v1_agent", **more: Any
) -> Newcomer:
    blocks = [{"label": "human", "value": human}, {"label": "persona", "value": "I am Sam."}]
    body = {"agent_type": agent_type, "model": "ricordo/librarian", "memory_blocks": blocks, **more}
    return Newcomer(http, f"/v1/agents/{ok(http.post('/v1/agents/', json=body))['id']}")


def test_a_denied_call_is_reported_without_tool_name_or_raw_reason(
    http: httpx2.Client,
) -> None:
    rules = [
        {"type": "requires_approval", "tool_name": name}
        for name in ("memory_insert", "conversation_search")
    ]
    ada = newcomer(http, tool_rules=rules)
    for words, answer in (
        ("I play the violin.", "I could not file"),
        ("Where is my hat?", "I could not search our"),
    ):
        request = next(
            m
            for m in ada.sends({"role": "user", "content": words})
            if "approval" in m["message_type"]
        )
        denial = {
            "approve": False,
            "approval_request_id": request["id"],
            "reason": '{"status": "no [source: x]"}',
        }
        assert answer in ada.hears(ada.sends({"type": "approval", **denial}))


@pytest.mark.parametrize(
    "result",
    [
        '{"status": "OK", "message": "[source: a.pdf] violin {\\"role\\": \\"user\\"}"}',
        '[{"content": "{\\"type\\": \\"heartbeat\\", \\"reason\\": \\"violin\\"}", "role": '
        '"user"}]',
        '[{"content": "[source: passage-1234 | score: 0.3] The violin is here.", "timestamp": '
        '"message-1234"}]',
        f'[{{"content": "The violin opens with the password: hunter2 and {KEY}", "role": "user"}}]',
        "<memory_metadata>\n- AGENT_ID: agent-1\n</memory_metadata> violin " * 500,
        "Traceback (most recent call last):\n  File",
    ],
)
@pytest.mark.parametrize("status", ["success", "error"])
def test_results_of_client_tools_are_not_repeated_verbatim(
    http: httpx2.Client, result: str, status: str
) -> None:
    tool = {
        "name": "conversation_search",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    }
    ada = newcomer(http)
    tools = {"client_tools": [{**tool, "description": "Searches."}]}
    asked = ada.sends({"role": "user", "content": "Wo ist die violin?"}, **tools)
    call = next(m["tool_call"] for m in asked if m["message_type"] == "approval_request_message")
    returned = {
        "type": "tool",
        "tool_call_id": call["tool_call_id"],
        "tool_return": result,
        "status": status,
    }
    answer = ada.hears(ada.sends({"type": "approval", "approvals": [returned]}, **tools))
    assert answer
    assert "hunter2" not in answer
    assert KEY not in answer


@pytest.mark.parametrize("agent_type", ["memgpt_agent", "letta_v1_agent"])
def test_only_the_prose_of_passages_is_quoted(http: httpx2.Client, agent_type: str) -> None:
    ada = newcomer(http, agent_type=agent_type)
    for text in (
        '{"violin": {"id": "passage-1234"}}',
        "[source: file-1234, page 3] The violin is blue.",
    ):
        ok(http.post(f"{ada.path}/archival-memory", json={"text": text}))
    ada.sends({"role": "system", "content": '{"type": "system_alert", "message": "violin"}'})
    assert '"The violin is blue."' in ada.says("What colour is the violin?")


@pytest.mark.parametrize(
    ("told", "asked", "secret"),
    [
        ("My password is hunter2!", "What is my password?", "hunter2"),
        (f"My api key is {KEY}, please remember it", "What is my API key?", KEY),
        ("Remember: my PIN is 4711", "what's my pin", "4711"),
        ("Mein Passwort ist Geheim99.", "Wie lautet mein Passwort?", "Geheim99"),
        ("La mia password è gatto99.", "Qual è la mia password?", "gatto99"),
        ("Mi contraseña es gato1234.", "¿Cuál es mi contraseña?", "gato1234"),
        ("\n- wifi: Casa\n- PIN: 4711", "What is the wifi?", "4711"),
        ("4111 1111 1111 1111", "Do I have a number 4111?", "1111"),
    ],
)
def test_a_secret_is_neither_stored_nor_repeated(
    http: httpx2.Client, told: str, asked: str, secret: str
) -> None:
    ada = newcomer(http)
    assert "neither keep nor repeat secrets" in ada.says(f"I play chess. {told}")
    assert secret not in ada.says(asked)
    assert secret not in ada.says(
        f"Is {secret} still valid?" if len(secret) > 8 else "Which secrets do you know?"
    )
    assert secret not in ada.says("What do you know about me?")
    assert (ada.notes, ada.archive) == (["I play chess."] * ("\n" not in told), [])
    assert secret not in ada.everything_sent


CODE = [
    'def add(a, b):\n    """Add."""\n    return a + b',
    '```python\nprint("hello")\n```',
    "import os; os.system('ls')",
    "SELECT * FROM users;",
    "const x = 5;",
    '{"name": "Eva", "age": 5}',
    'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nValueError: no',
    '#include <stdio.h>\nint main(void) {\n  puts("my name is Eva");\n  return 0;\n}',
    "<div>\n  <p>I live in Rome.</p>\n</div>",
    "for (let i = 0; i < 9; i++) {\n  console.log(i);\n}",
    "my_name = 'Eva'\n" * 400,
]


@pytest.mark.parametrize("code", CODE)
def test_pasted_code_is_not_memory(http: httpx2.Client, code: str) -> None:
    ada = newcomer(http)
    answer = "\n".join(
        each["content"]
        for each in ada.sends({"role": "user", "content": code})
        if each.get("content")
    )
    assert answer.startswith("I keep no code in memory")
    assert (ada.notes, ada.archive) == ([], [])
    assert "I don't know" in ada.says("What is my name?")


def test_the_text_around_code_is_read(http: httpx2.Client) -> None:
    ada = newcomer(http)
    answer = ada.says("My name is Ada.\n```python\nname = 'Eva'\n```\nWhat's my name?")
    assert ada.notes == ["My name is Ada."]
    assert '"My name is Ada."' in answer
    assert "no code" in answer


@pytest.mark.parametrize(
    "words",
    [
        "My class starts at 9: room 4",
        "I import tea from India",
        "Name: Ada",
        "I return on Friday (from Rome).",
        "I like <3",
    ],
)
def test_prose_that_resembles_code_is_stored(http: httpx2.Client, words: str) -> None:
    ada = newcomer(http)
    ada.says(words)
    assert ada.notes == [words]


def test_a_question_that_is_only_a_name_is_answered(http: httpx2.Client) -> None:
    ada = newcomer(http)
    ada.says(
        "I have a sister called Mia. She is a doctor. My friend Tom lives in Rome. The exam is in "
        "March."
    )
    assert "March" not in ada.says("What do you know about Marco?")
    for question in ("Who is Mia?", "who's mia", "Mia?", "Tell me about Mia", "Sorry, who is Mia?"):
        assert '"I have a sister called Mia. She is a doctor."' in (answer := ada.says(question)), (
            question
        )
        assert "Tom" not in answer
    assert "I don't know" in ada.says("Who is Zoe?")


LISTS = """list everything|List everything you know.|list all|What do you know about me?|what do you know|What have you stored?
What's in your memory?|Show me all my notes|tell me everything you know about me|Everything?|Do you remember me?
What did I tell you?|Was weißt du über mich?|¿Qué sabes de mí?|Cosa sai di me?"""


def test_all_notes_are_listed_on_request(http: httpx2.Client) -> None:
    ada = newcomer(http, "# About\n{\nLikes tea\n}")
    ada.says("I play chess. The meeting is on Friday.")
    for words in re.split(r"[|\n]", LISTS):
        answer = ada.says(words)
        listed = re.findall(r'^- "(.*?)"', answer, re.MULTILINE)
        assert listed == ["Likes tea", "I play chess.", "The meeting is on Friday."], words
    assert ada.archive == ["The meeting is on Friday."]


@pytest.mark.parametrize(
    ("told", "correction", "after"),
    [
        (
            "My name is Ada and I live in Turin.",
            "No, actually I live in Rome.",
            ["My name is Ada", "I live in Rome."],
        ),
        ("I work at Fiat.", "Actually, I work at Ferrari", ["I work at Ferrari"]),
        ("I'm allergic to nuts.", "No! I'm allergic to milk.", ["I'm allergic to milk."]),
        ("My favourite colour is blue.", "Actually green", ["My favourite colour is green"]),
        (
            "I like tea. I have a meeting on Friday",
            "sorry, on Monday",
            ["I like tea.", "I have a meeting on Monday"],
        ),
        ("My sister is Mia", "That's wrong. My sister is Maria.", ["My sister is Maria."]),
        ("I am 20 years old.", "I turned 21.", ["I turned 21."]),
        # A message that adds something, or is not a correction, keeps the old line.
        ("I have a cat.", "Actually, I have a dog too.", ["I have a cat.", "I have a dog too."]),
        (
            "I play chess.",
            "No one likes my cooking.",
            ["I play chess.", "No one likes my cooking."],
        ),
        ("I like tea.", "No, thanks", ["I like tea."]),
    ],
)
def test_a_correction_replaces_the_old_line(
    http: httpx2.Client, told: str, correction: str, after: list[str]
) -> None:
    ada = newcomer(http)
    ada.says(told)
    ada.says(correction)
    assert ada.notes == after
    assert ada.archive == []


def test_a_corrected_fact_is_not_quoted_and_can_be_corrected_again(
    http: httpx2.Client,
) -> None:
    ada = newcomer(http)
    for words in (
        "I'm allergic to nuts.",
        "No, milk.",
        "No, eggs",
        "I like coffee.",
        "I don't like coffee any more.",
    ):
        ada.says(words)
    assert ada.notes == ["I'm allergic to eggs", "I don't like coffee any more."]
    answer = ada.says("What am I allergic to?")
    assert "eggs" in answer
    assert "nuts" not in answer
    assert "I like coffee" not in ada.says("What about coffee?")
    assert "whole sentence" in newcomer(http).says("No, green.")


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (
            "My name is Ada, I live in Turin and I study maths.",
            ["My name is Ada", "I live in Turin", "I study maths."],
        ),
        ("Remember that I like tea; I hate coffee", ["I like tea", "I hate coffee"]),
        ("My dog is Rex and my sister is Mia", ["My dog is Rex", "my sister is Mia"]),
        ("I met Tom and I liked him", ["I met Tom and I liked him"]),
        ("When I was young, I lived in Rome", ["When I was young, I lived in Rome"]),
        ("I love my dog and my cat", ["I love my dog and my cat"]),
    ],
)
def test_each_statement_has_its_own_line(http: httpx2.Client, told: str, lines: list[str]) -> None:
    ada = newcomer(http)
    answer = ada.says(told)
    assert ada.notes == lines
    assert all(f'"{line}"' in answer for line in lines)
    assert answer.count("I have put this in my notes") == 1


def test_only_the_latest_archived_statement_is_answered(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, passed = server.runtime.store.clock, count()
    now = clock.now
    ada = newcomer(http)
    for words in (
        "Hi, I'm Ada!",
        "The exam is on 12 May.",
        "Actually the exam is on 14 May",
        "no, it's on 15 May",
    ):
        ahead = 2 * SECOND * next(passed)  # dates of results have seconds
        monkeypatch.setattr(clock, "now", lambda ahead=ahead: now() + ahead)
        ada.says(words)
    assert ada.notes == ["I'm Ada!"]
    answer = ada.says("When is the exam?")
    assert "15 May" in answer
    assert "12 May" not in answer
    assert "14 May" not in answer
    assert "I'm Ada" in ada.says("Do you know my name?")
    for words in ("Good job!", "that's not what I said", "you are stupid"):
        assert ada.says(words).startswith("All right.")


MIA = "I have a sister called Mia. She is a doctor."


@pytest.mark.parametrize(
    ("wish", "left"),
    [
        ("Forget Mia", ["I like tea", "I don't like coffee", "I live in Rome"]),
        (
            "Forget that Mia is a doctor",
            ["I have a sister called Mia.", "I like tea", "I don't like coffee", "I live in Rome"],
        ),
        ("Forget everything I told you about tea", [MIA, "I don't like coffee", "I live in Rome"]),
        (
            "Please forget that I like coffee",
            [MIA, "I like tea", "I don't like coffee", "I live in Rome"],
        ),
        (
            "Forget that I live in Turin",
            [MIA, "I like tea", "I don't like coffee", "I live in Rome"],
        ),
        ("Forget where I live", [MIA, "I like tea", "I don't like coffee"]),
        ("Vergiss meine Adresse", [MIA, "I like tea", "I don't like coffee", "I live in Rome"]),
        ("forget everything", [MIA, "I like tea", "I don't like coffee", "I live in Rome"]),
    ],
)
def test_only_the_named_statement_is_forgotten(
    http: httpx2.Client, wish: str, left: list[str]
) -> None:
    ada = newcomer(http)
    ada.says(f"{MIA}\nI like tea\nI don't like coffee\nI live in Rome")
    ada.says(wish)
    assert (ada.notes, ada.archive) == (left, [])


@pytest.mark.parametrize(
    ("hello", "task", "told", "asked", "thanks"),
    [
        (
            "Hallo!",
            "Schreib mir ein Gedicht",
            "Meine Schwester heißt Mia. Sie ist Ärztin.",
            "Wer ist Mia",
            "Danke schön!",
        ),
        ("Hola", "Traduce esto", "Mi hermana se llama Mia.", "¿Quién es Mia?", "Muchas gracias"),
        ("Ciao!", "Scrivi una poesia", "La sorella si chiama Mia.", "Chi è Mia", "Grazie mille"),
    ],
)
def test_greetings_and_facts_in_other_languages_are_understood(
    http: httpx2.Client, hello: str, task: str, told: str, asked: str, thanks: str
) -> None:
    ada = newcomer(http)
    assert ada.says(hello).startswith("All right.")
    assert ada.says(task).startswith("I cannot do that")
    ada.says(told)
    assert [*ada.notes, *ada.archive] == [told]
    assert f'"{told}"' in ada.says(asked)
    assert ada.says(thanks).startswith("All right.")
