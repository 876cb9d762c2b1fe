"""The librarian, driven through small loops.

`Talk` plays the agent loop, with tools that keep what they are given.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import pytest

from ricordo.domain.block import Block
from ricordo.domain.message import ImagePart, Message, Part, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import (
    ModelReply,
    ModelRequest,
    ModelSettings,
    TextChunk,
    ToolChoice,
    ToolSchema,
)
from ricordo.features.librarian.model import Librarian
from ricordo.llm.chat import whole_reply
from ricordo.prompt.system_prompt import MemorySection, render_memory
from ricordo.prompt.transcript import package_result
from ricordo.search.words import query_terms, terms
from tests.seams.growth import repeated, require_linear

DAY = 86_400_000_000
NOON = 1_795_262_400_000_000  # 2026-11-21T12:00:00Z
PARAMETERS = {
    "memory_insert": "label new_string insert_line",
    "memory_replace": "label old_string new_string",
    "archival_memory_insert": "content tags",
    "archival_memory_search": "query tags tag_match_mode top_k start_datetime end_datetime",
    "conversation_search": "query roles limit start_date end_date",
    "forget": "text reason",
}
NATIVE = (
    "conversation_search",
    "memory_insert",
    "memory_replace",
    "archival_memory_insert",
    "archival_memory_search",
)


def schema(name: str, parameters: str | None = None, required: tuple[str, ...] = ()) -> ToolSchema:
    names = (parameters or PARAMETERS[name]).split()
    properties: dict[str, Any] = {each: {"type": "string"} for each in names}
    return ToolSchema(
        name, name, {"type": "object", "properties": properties, "required": list(required)}
    )


@dataclass
class Talk:
    """An agent with the librarian: blocks, an archive, a history, and the native loop."""

    tools: tuple[str, ...] = NATIVE
    blocks: dict[str, str] = field(
        default_factory=lambda: {"persona": "I keep the shelves.", "human": ""}
    )
    broken: dict[str, str] = field(default_factory=dict)
    archive: list[tuple[str, str, list[str]]] = field(default_factory=list)
    history: list[Message] = field(default_factory=list)
    window: list[Message] = field(default_factory=list)
    choice: ToolChoice = "auto"
    forced: str | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    extra_tools: tuple[ToolSchema, ...] = ()
    now: int = NOON
    calls: list[ToolCallPart] = field(default_factory=list)
    rounds: int = 0

    async def says(self, text: str) -> str:
        self.calls, self.rounds = [], 0
        self._add("user", TextPart(text))
        for _ in range(6):
            reply = await whole_reply(Librarian(), self.request())
            self._add("assistant", *reply.parts)
            calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
            if not calls:
                assert reply.finish == "stop"
                return "".join(part.text for part in reply.parts if isinstance(part, TextPart))
            assert reply.finish == "tool_calls"
            self.calls += calls
            self.rounds += 1
            self._add("tool", *(self._run(call) for call in calls))
        raise AssertionError("The librarian never spoke.")

    def request(self, system: str | None = None) -> ModelRequest:
        first = Message(
            "message-system", "a", "c", "system", (TextPart(system or self._system()),), self.now
        )
        return ModelRequest(
            (first, *self.window),
            tuple(schema(name) for name in self.tools) + self.extra_tools,
            tool_choice=self.choice,
            forced_tool=self.forced,
            settings=self.settings,
        )

    def next_day(self) -> "Talk":
        self.now += DAY
        self.window = []
        return self

    @property
    def called(self) -> list[str]:
        return [call.name for call in self.calls]

    def arguments(self, name: str) -> dict[str, Any]:
        return next(json.loads(call.arguments) for call in self.calls if call.name == name)

    def _add(self, role: Any, *parts: Part) -> None:
        self.now += 1_000_000
        message = Message(
            f"message-{len(self.history):08x}-0000-4000-8000-000000000000",
            "a",
            "c",
            role,
            parts,
            self.now,
        )
        self.history.append(message)
        self.window.append(message)

    def _system(self) -> str:
        blocks = tuple(
            Block(f"block-{n}", "org", "chain", label, value, "", 20_000)
            for n, (label, value) in enumerate(self.blocks.items())
        )
        memory = render_memory(MemorySection("letta_v1_agent", "ricordo", blocks))
        return (
            f"You keep a memory.\n\n{memory}\n\n<memory_metadata>\n- AGENT_ID: "
            "agent-1\n</memory_metadata>"
        )

    def _run(self, call: ToolCallPart) -> ToolReturnPart:
        arguments = json.loads(call.arguments)
        if call.name in self.broken:
            return self._result(call, "Failed", self.broken[call.name])
        assert call.name in self.tools
        assert set(arguments) <= set(PARAMETERS[call.name].split())
        try:
            return self._result(call, "OK", getattr(self, "_" + call.name)(**arguments))
        except ValueError as error:
            return self._result(call, "Failed", str(error))

    def _result(self, call: ToolCallPart, status: str, message: object) -> ToolReturnPart:
        packed = package_result(
            message, is_success=status == "OK", time="2026-11-21 12:00:00 PM UTC+0000"
        )
        return ToolReturnPart(
            call.call_id, call.name, "success" if status == "OK" else "error", packed
        )

    def _memory_insert(self, label: str, new_string: str, insert_line: int = -1) -> str:
        assert insert_line == -1
        self.blocks[label] = "\n".join(filter(None, (self.blocks[label], new_string)))
        return self.blocks[label]

    def _memory_replace(self, label: str, old_string: str, new_string: str) -> str:
        if self.blocks[label].count(old_string) != 1:
            raise ValueError(
                f"No replacement was performed, old_string `{old_string}` did not appear verbatim."
            )
        self.blocks[label] = self.blocks[label].replace(old_string, new_string)
        return self.blocks[label]

    def _archival_memory_insert(self, content: str, tags: list[str]) -> str:
        self.archive.append((iso(self.now), content, tags))
        return "Archived."

    def _archival_memory_search(self, query: str, top_k: int = 5) -> Any:
        found = [each for each in self.archive if matches(query, each[1])][:top_k]
        return [
            {"id": f"passage-{n}", "timestamp": t, "content": c, "tags": g}
            for n, (t, c, g) in enumerate(found)
        ]

    def _conversation_search(self, query: str, roles: list[str], limit: int = 5) -> Any:
        rows = [
            {"timestamp": iso(message.created_at), "role": message.role, "content": message.text}
            for message in reversed(self.history)
            if message.role in roles and message.text and matches(query, message.text)
        ][:limit]
        return (
            {"message": f"Showing {len(rows)} results:", "results": rows}
            if rows
            else "No results found."
        )


def iso(micros: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(micros // 1_000_000))


def matches(query: str, text: str) -> bool:
    # Returns many results on purpose, as a broad search does: the librarian has to choose among
    # them.
    held = terms(text)
    return any(word[:4] == term[:4] for word in query_terms(query) for term in held)


async def test_a_fact_is_stored_verbatim_with_its_date() -> None:
    talk = Talk()
    answer = await talk.says("I'm allergic to nuts.")
    assert talk.called == ["memory_insert"]
    assert talk.arguments("memory_insert") == {
        "label": "human",
        "new_string": '2026-11-21: "I\'m allergic to nuts."',
        "insert_line": -1,
    }
    assert 'notes about you: "I\'m allergic to nuts."' in answer


async def test_a_stored_fact_is_answered_from_the_block_in_a_new_transcript() -> None:
    talk = Talk()
    await talk.says("My name is Ada.")
    talk.next_day().history.clear()
    answer = await talk.says("What is my name?")
    assert talk.called == ["conversation_search", "archival_memory_search"]
    assert talk.rounds == 1
    assert answer.startswith('You told me on 21 November 2026: "My name is Ada."')


async def test_a_line_that_others_wrote_is_quoted_as_a_note() -> None:
    talk = Talk(
        blocks={
            "human": "Name: Ada\nLikes hiking in the Alps",
            "project": "The launch is in March.",
        }
    )
    assert (await talk.says("What's my name?")).startswith('My notes about you say: "Name: Ada"')
    assert 'My notes about you say: "Likes hiking in the Alps"' in await talk.says(
        "Do I like hikes?"
    )
    assert 'My notes "project" say: "The launch is in March."' in await talk.says(
        "When is the launch?"
    )


async def test_a_fact_only_in_the_history_is_quoted_with_its_date() -> None:
    talk = Talk(tools=("conversation_search",), blocks={})
    await talk.says("My dentist is called Dr. Rossi.")
    talk.next_day()
    answer = await talk.says("Who is my dentist?")
    assert 'You told me on 21 November 2026: "My dentist is called Dr. Rossi."' in answer
    assert "Who is my dentist" not in answer


async def test_an_unknown_fact_is_reported_and_the_question_is_not_quoted() -> None:
    talk = Talk()
    await talk.says("hello")
    first = await talk.says("What is the capital of France?")
    second = await talk.says("What is the capital of France?")
    assert first == second
    assert first.startswith("I don't know: I looked in my notes, our conversations and the archive")
    assert '"What is the capital of France"' in first
    assert "told me" not in second


async def test_the_same_fact_is_not_stored_twice() -> None:
    talk = Talk(blocks={"human": 'Name: Ada\n2026-01-02: "I live in Turin."'})
    for words in ("I live in Turin!", "my name is Ada", "Please remember that i live in turin"):
        answer = await talk.says(words)
        assert talk.calls == []
        assert answer.startswith("I have that in my notes already")


async def test_a_fact_that_begins_like_a_longer_one_is_stored() -> None:
    talk = Talk(
        blocks={"human": '2026-01-02: "I have a cat allergy."\n2026-01-03: "I sing. I swim."'}
    )
    assert (await talk.says("I have a cat.")).startswith("I have put this in my notes")
    assert (await talk.says("I swim.")).startswith("I have that in my notes already")


@pytest.mark.parametrize(
    ("before", "words", "after"),
    [
        (
            '2026-01-02: "My name is Ada."',
            "Actually my name is Anna",
            '|2026-11-21: "my name is Anna"',
        ),
        ("Name: Ada", "My name is Anna.", '|2026-11-21: "My name is Anna."'),
        ('2026-01-02: "I live in Turin."', "I moved to Rome.", '|2026-11-21: "I moved to Rome."'),
        (
            '2026-01-02: "I\'m allergic to nuts."',
            "I'm no longer allergic to nuts.",
            '|2026-11-21: "I\'m no longer allergic to nuts."',
        ),
        (
            '2026-01-02: "My sister\'s name is Eva."',
            "No, my sister's name is Emma.",
            '|2026-11-21: "my sister\'s name is Emma."',
        ),
    ],
)
async def test_a_correction_replaces_the_old_line_of_the_block(
    before: str, words: str, after: str
) -> None:
    talk = Talk(blocks={"human": f"Plays chess\n{before}\nLikes tea"})
    answer = await talk.says(words)
    assert talk.called == ["memory_replace"]
    assert talk.arguments("memory_replace")["old_string"] == before
    assert talk.blocks["human"] == f"Plays chess\n{after.split('|')[1]}\nLikes tea"
    assert answer.startswith("I have corrected my notes")


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ('2026-01-02: "I\'m allergic to nuts."', "I'm allergic to milk."),
        ('2026-01-02: "My sister is Emma."', "My sister is a doctor."),
        ("His dog's name is Rex", "My name is Anna."),
        ("Name: Ada\nName: Ada", "My name is Anna."),
    ],
)
async def test_a_line_that_may_still_be_true_is_kept(before: str, words: str) -> None:
    talk = Talk(blocks={"human": before})
    await talk.says(words)
    assert talk.called == ["memory_insert"]
    assert talk.blocks["human"] == f'{before}\n2026-11-21: "{words}"'


async def test_after_a_correction_only_the_current_fact_is_answered() -> None:
    talk = Talk()
    await talk.says("My name is Ada.")
    await talk.next_day().says("Actually my name is Anna.")
    answer = await talk.next_day().says("What's my name?")
    assert answer.startswith('You told me on 22 November 2026: "my name is Anna."')
    assert "Ada" not in answer


async def test_several_facts_and_a_question_at_once_are_all_answered() -> None:
    talk = Talk()
    answer = await talk.says(
        "Hi! My name is Ada. I live in Turin. The meeting is on Friday. What do you know about me?"
    )
    assert talk.called == ["memory_insert", "archival_memory_insert", "archival_memory_search"]
    assert talk.rounds == 1
    assert talk.blocks["human"] == '2026-11-21: "My name is Ada."\n2026-11-21: "I live in Turin."'
    assert [content for _, content, _ in talk.archive] == ["The meeting is on Friday."]
    assert answer.startswith("All right.")
    assert '- "I live in Turin." (2026-11-21)' in answer


async def test_long_texts_and_lists_are_archived_whole() -> None:
    talk = Talk()
    recipe = "My pancakes:\n- 200 g flour\n- 3 eggs\n- 300 ml milk"
    await talk.says(recipe)
    story = "I was in Genoa with my sister and we walked along the harbour for hours. " * 5
    await talk.says(story)
    assert [content for _, content, _ in talk.archive] == [recipe, story.strip()]
    assert talk.blocks["human"] == ""
    assert '"My pancakes: - 200 g flour - 3 eggs' in await talk.says(
        "How many eggs go into pancakes?"
    )


async def test_notes_use_the_date_of_the_agents_prompt() -> None:
    talk = Talk(tools=("memory_insert",))
    talk._add("user", TextPart("I play the violin."))
    system = talk._system().replace(
        "- AGENT_ID", "- The current system date is: Sunday, November 22, 2026\n- AGENT_ID"
    )
    reply = await whole_reply(Librarian(), talk.request(system))
    assert isinstance(reply.parts[0], ToolCallPart)
    assert "2026-11-22: " in reply.parts[0].arguments


async def test_without_tools_the_librarian_says_the_message_stays_in_the_history() -> None:
    talk = Talk(tools=(), blocks={"human": 'Name: Ada\n2026-01-02: "I live in Turin."'})
    answer = await talk.says("I play the violin.")
    assert answer.startswith("I have nowhere to file this")
    assert "stays in our history" in answer
    assert (await talk.says("Where do I live?")).startswith(
        'You told me on 2 January 2026: "I live in Turin."'
    )
    assert "I looked in my notes and found nothing" in await talk.says("Who is Emma?")


async def test_failing_tools_are_reported_without_further_calls() -> None:
    talk = Talk(broken=dict.fromkeys(NATIVE, "The disk is full."))
    answer = await talk.says("I play the violin. Where is my bow?")
    assert talk.rounds == 1
    assert 'I could not file "I play the violin.": the memory did not take it.' in answer
    assert "I could not search our conversations." in answer
    assert "I have filed" not in answer
    assert "I looked in my notes and found nothing" in answer


async def test_a_proposed_edit_is_reported_as_waiting() -> None:
    talk = Talk()
    talk._memory_insert = lambda **_: "Your change was proposed as p-1. It waits for the owner."  # type: ignore[method-assign]
    answer = await talk.says("I play the violin.")
    assert (
        'I asked to have this put in my notes: "I play the violin."\nIt waits until that is '
        "approved."
    ) in answer


async def test_forgetting_a_note_leaves_no_empty_line() -> None:
    talk = Talk(blocks={"human": 'Name: Ada\n2026-01-02: "I\'m allergic to nuts."\nLikes tea'})
    answer = await talk.says("Forget that I'm allergic to nuts.")
    assert talk.called == ["memory_replace"]
    assert talk.blocks["human"] == "Name: Ada\nLikes tea"
    assert answer.startswith('I have struck this out of my notes: "I\'m allergic to nuts."')
    await talk.says("please forget my name")
    assert talk.blocks["human"] == "Likes tea"
    await talk.says("delete the tea")
    assert talk.blocks["human"] == ""


async def test_a_forgotten_note_is_not_quoted_from_the_history() -> None:
    talk = Talk()
    await talk.says("I'm allergic to nuts.")
    await talk.says("Forget that I'm allergic to nuts.")
    assert (await talk.says("Am I allergic to anything?")).startswith("I don't know")
    await talk.says("I'm allergic to milk.")
    assert "allergic to milk" in await talk.says("Am I allergic to anything?")


async def test_the_librarian_asks_before_forgetting_several_statements() -> None:
    talk = Talk(blocks={"human": 'Likes green tea\nPlays chess\n2026-01-02: "I like black tea."'})
    question = await talk.says("Forget about tea")
    assert talk.called == []
    assert '- "Likes green tea"\n- "I like black tea."' in question
    await talk.says("no")
    assert talk.called == []
    await talk.says("Forget about tea")
    answer = await talk.says("yes")
    assert talk.blocks["human"] == "Plays chess"
    assert answer.count("I have struck this out") == 2
    # A "yes" to another question forgets nothing.
    await talk.says("yes")
    assert talk.called == []


async def test_forgetting_removes_one_statement_and_keeps_the_rest_of_the_line() -> None:
    for line, wish, left in (
        (
            "I live in Turin. I'm allergic to nuts. Likes tea.",
            "Forget that I'm allergic to nuts.",
            "I live in Turin. Likes tea.",
        ),
        (
            '2026-01-02: "I live in Turin and I teach maths."',
            "Forget that I teach maths",
            '2026-01-02: "I live in Turin"',
        ),
        ("Likes tea; hates coffee", "Forget the tea", "hates coffee"),
    ):
        talk = Talk(blocks={"human": f"Name: Ada\n{line}"})
        answer = await talk.says(wish)
        assert talk.blocks["human"] == f"Name: Ada\n{left}", wish
        assert answer.startswith("I have struck this out of my notes"), answer


async def test_facts_and_questions_in_a_request_to_forget_are_handled() -> None:
    talk = Talk(blocks={"human": "Likes tea"})
    answer = await talk.says("I play chess. Forget the tea. Forget my bicycle. Where is my hat?")
    assert talk.blocks["human"] == '2026-11-21: "I play chess."'
    for words in (
        'struck this out of my notes: "Likes tea"',
        "put this in my notes",
        'no note about "my bicycle"',
        "I don't know",
    ):
        assert words in answer, words


async def test_refused_requests_to_forget_say_why() -> None:
    talk = Talk(blocks={"human": "Likes green tea\nLikes black tea"})
    assert (await talk.says("Forget my bicycle.")).startswith('I have no note about "my bicycle"')
    assert (await talk.says("forget everything")).startswith("I strike out one note at a time")
    assert '- "Likes green tea"\n- "Likes black tea"' in await talk.says("Forget about tea")
    assert talk.blocks["human"] == "Likes green tea\nLikes black tea"
    talk.tools = ()
    assert (await talk.says("Forget the green tea.")).startswith("I cannot strike anything out")
    talk.tools, talk.broken = NATIVE, {"memory_replace": "Closed."}
    assert 'could not strike out "Likes green tea": the memory did not take it.' in await talk.says(
        "Forget green tea"
    )


async def test_the_librarian_introduces_itself_once_in_a_conversation() -> None:
    talk = Talk(blocks={"persona": "My name is Sam.", "human": "Name: Ada"})
    first = await talk.says("Hello")
    assert first.startswith("All right.")
    assert "not a language model" in first
    for words in ("Thank you!", "how are you?", "I like tea", "Where is my hat?", "bye"):
        assert "language model." not in (await talk.says(words)).split("connect a")[0]
    assert talk.called == []


async def test_the_librarian_explains_itself_and_how_to_connect_a_model() -> None:
    talk = Talk(blocks={"persona": "My name is Sam.", "human": ""})
    for words in (
        "Who are you?",
        "help",
        "Are you a language model?",
        "How do I connect a real model?",
    ):
        answer = await talk.says(words)
        assert talk.calls == []
        assert all(
            word in answer
            for word in ("librarian", "not a language model", "OPENAI_API_KEY", "Ollama", "restart")
        )


async def test_tasks_for_a_language_model_are_declined_and_not_stored() -> None:
    talk = Talk()
    assert (await talk.says("Write me a poem about autumn.")).startswith("I cannot do that")
    assert (await talk.says("Can you translate hello into German?")).startswith("I cannot do that")
    assert talk.calls == []


async def test_the_librarian_lists_its_notes_when_asked_what_it_knows() -> None:
    talk = Talk(
        blocks={"human": "\n".join(["Name: Ada", *(f"Fact number {n}" for n in range(30))])}
    )
    answer = await talk.says("What do you know about me?")
    assert answer.startswith('This is what my notes say:\n- "Name: Ada"\n- "Fact number 0"')
    assert "… and 11 more lines." in answer
    assert (await Talk().says("What do you know about me?")).startswith(
        "I know nothing about you yet"
    )
    assert (await Talk().says("What?")).startswith("I can look things up by their words")


@pytest.mark.parametrize(
    ("tools", "called"),
    [
        (("archival_memory_insert", "conversation_search"), "conversation_search"),
        (("memory_insert",), "memory_insert"),
    ],
)
async def test_a_required_call_without_an_answering_tool_searches_or_uses_the_first(
    tools: tuple[str, ...], called: str
) -> None:
    talk = Talk(tools=tools, choice="required")
    talk._add("user", TextPart("hello"))
    reply = await whole_reply(Librarian(), talk.request())
    (call,) = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    assert call.name == called
    # The call requests no heartbeat; otherwise the turn would go on until its limit of steps.
    assert json.loads(call.arguments).get("request_heartbeat", False) is False


async def test_a_forced_tool_is_called_with_its_required_arguments() -> None:
    kinds = {"query": "string", "days": "integer", "request_heartbeat": "boolean"}
    properties: dict[str, Any] = {name: {"type": kind} for name, kind in kinds.items()} | {
        "mood": {"enum": ["dry", "wet"]}
    }
    lookup = ToolSchema(
        "look_outside", "", {"properties": properties, "required": list(properties)}
    )
    talk = Talk(extra_tools=(lookup,), forced="look_outside")
    talk._add("user", TextPart("I play the violin."))
    reply = await whole_reply(Librarian(), talk.request())
    (call,) = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    expected = {"query": "I play the violin.", "days": 0, "mood": "dry", "request_heartbeat": True}
    assert json.loads(call.arguments) == expected
    talk.forced = "memory_insert"
    reply = await whole_reply(Librarian(), talk.request())
    assert isinstance(reply.parts[0], ToolCallPart)
    assert json.loads(reply.parts[0].arguments)["new_string"] == '2026-11-21: "I play the violin."'


async def test_tool_choice_none_prevents_tool_calls() -> None:
    talk = Talk(choice="none")
    assert (await talk.says("I play the violin.")).startswith("I have nowhere to file this")
    assert talk.calls == []


async def test_without_parallel_calls_the_librarian_makes_one_call_at_a_time() -> None:
    talk = Talk(settings=ModelSettings(parallel_tool_calls=False))
    await talk.says("Remember: the bow is in the cellar.")
    answer = await talk.says("Where is the bow?")
    assert talk.called == ["conversation_search", "archival_memory_search"]
    assert talk.rounds == 2
    assert "the bow is in the cellar" in answer
    await talk.says("I play the violin. Where is the bow?")
    assert talk.called == ["memory_insert", "conversation_search", "archival_memory_search"]


async def test_an_edit_quotes_its_justification_if_the_tool_requires_it() -> None:
    tool = schema("memory_insert", "label new_string insert_line quote", required=("quote",))
    talk = Talk(tools=(), extra_tools=(tool,))
    talk._add("user", TextPart("Well, I play the violin."))
    reply = await whole_reply(Librarian(), talk.request())
    assert isinstance(reply.parts[0], ToolCallPart)
    assert json.loads(reply.parts[0].arguments)["quote"] == "I play the violin."


async def test_statements_in_other_languages_are_found_again() -> None:
    for told, asked in (
        ("Der Zug fährt am 12. Mai um 8 Uhr.", "Wann fährt der Zug?"),
        ("我对花生过敏。", "我对什么过敏？"),
        ("会议在星期五。", "会议是什么时候？"),
        ("Il treno parte alle otto.", "A che ora parte il treno?"),
        ("Меня зовут Анна.", "Как меня зовут?"),
    ):
        talk = Talk()
        await talk.says(told)
        assert talk.called == ["archival_memory_insert"], told
        talk.next_day().history.clear()
        answer = await talk.says(asked)
        assert f'filed on 21 November 2026: "{told}"' in answer, asked
        assert asked not in answer


async def test_streamed_pieces_add_up_to_the_reply() -> None:
    talk = Talk()
    talk._add("user", TextPart("Hello!"))
    items = [item async for item in Librarian().answer(replace(talk.request(), stream=True))]
    pieces = [item.text for item in items if isinstance(item, TextChunk)]
    reply = items[-1]
    assert isinstance(reply, ModelReply)
    assert len(pieces) > 10
    assert "".join(pieces) == "".join(
        part.text for part in reply.parts if isinstance(part, TextPart)
    )


async def test_usage_is_estimated_and_call_ids_are_unique() -> None:
    talk = Talk()
    await talk.says("I play the violin. Where is my bow?")
    await talk.says("Where is my hat?")
    ids = [part.call_id for message in talk.window for part in message.tool_calls]
    assert len(ids) == len(set(ids)) == 5
    reply = await whole_reply(Librarian(), talk.request())
    assert reply.usage.prompt_tokens > 100
    assert reply.usage.completion_tokens > 5
    assert reply == await whole_reply(Librarian(), talk.request())


async def test_a_message_without_text_is_answered() -> None:
    talk = Talk()
    talk._add("user", ImagePart("image/png", data="aGVsbG8="))
    reply = await whole_reply(Librarian(), talk.request())
    assert isinstance(reply.parts[0], TextPart)
    assert reply.parts[0].text.startswith("I can only read text")
    empty = await whole_reply(Librarian(), ModelRequest(()))
    assert isinstance(empty.parts[0], TextPart)


@pytest.mark.parametrize("agent_type", ["memgpt_agent", "memgpt_v2_agent", "letta_v1_agent"])
def test_every_agent_type_stores_corrects_and_forgets_in_its_block(
    http: httpx2.Client, agent_type: str
) -> None:
    blocks = [{"label": "human", "value": "Likes tea"}]
    agent = http.post(
        "/v1/agents/",
        json={"agent_type": agent_type, "model": "ricordo/librarian", "memory_blocks": blocks},
    )
    path = f"/v1/agents/{agent.json()['id']}"
    for words, line in (
        ("I'm allergic to nuts.", '"I\'m allergic to nuts."'),
        ("I'm no longer allergic to nuts.", '"I\'m no longer allergic to nuts."'),
        ("Forget the nuts.", ""),
    ):
        answer = http.post(
            f"{path}/messages", json={"messages": [{"role": "user", "content": words}]}
        ).json()
        assert (
            "my notes"
            in [each for each in answer["messages"] if each.get("content")][-1]["content"]
        )
        first, *rest = http.get(f"{path}/core-memory/blocks/human").json()["value"].split("\n")
        assert (first, [each.partition(": ")[2] for each in rest]) == (
            "Likes tea",
            [line] if line else [],
        ), words


PARAGRAPH = "The harbour of Trieste was dredged in spring, and the boats lay outside for weeks. "


LONG_MESSAGES: dict[str, Callable[[int], str]] = {
    "prose": lambda size: repeated(PARAGRAPH, size),
    "remember": lambda size: "Remember: " + repeated(PARAGRAPH, size),
    "question": lambda size: repeated(PARAGRAPH, size) + "When was the harbour dredged?",
    "german": lambda size: repeated("Der Hafen wurde über Wochen geräumt.\n", size),
    "chinese": lambda size: repeated("港口在春天疏浚了。", size),
    "one word": lambda size: "x" * size,
    "initials": lambda size: repeated("a. ", size),
    "marks": lambda size: "?" * size,
    "wishes": lambda size: repeated(" remember ", size),
}


async def read_and_speak(message: str) -> None:
    """Run the librarian's tool calls until it answers the message."""
    talk = Talk()
    talk._add("user", TextPart(message))
    for _ in range(3):
        reply = await whole_reply(Librarian(), talk.request())
        talk._add("assistant", *reply.parts)
        calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
        if not calls:
            return
        talk._add("tool", *(talk._run(call) for call in calls))
    raise AssertionError("The librarian never spoke.")


@pytest.mark.parametrize("kind", LONG_MESSAGES)
def test_a_long_message_is_read_in_linear_time(kind: str) -> None:
    require_linear(
        lambda size: asyncio.run(read_and_speak(LONG_MESSAGES[kind](size))), 16_000, kind
    )


async def test_two_long_texts_with_the_same_beginning_are_both_stored() -> None:
    talk = Talk()
    one, other = PARAGRAPH * 1_000 + "One.", PARAGRAPH * 1_000 + "Two."
    await talk.says(one)
    await talk.says(other)
    assert [content[-4:] for _, content, _ in talk.archive] == ["One.", "Two."]


ASKED = "Asked. Nothing is forgotten yet. Tell the person to open their memory page."
GONE = "Forgotten: every text with these words was removed or replaced by a mark."


@pytest.mark.parametrize(
    ("told", "wish", "text"),
    [
        (
            "My medical history: I have diabetes.",
            "Please delete my medical information. I don't want it stored.",
            "My medical history: I have diabetes.",
        ),
        (
            "I went through a breakup with Alex last year. It was devastating.",
            "I don't want to talk about Alex anymore. Forget everything about that relationship.",
            "I went through a breakup with Alex last year. It was devastating.",
        ),
        ("My password is Sesame123!", "Please forget that password.", "My password is"),
        ("Ich habe Diabetes.", "Bitte vergiss meinen Diabetes.", "Ich habe Diabetes."),
        # The rest of the sentence must be kept.
        ("I live in Graz and work as a nurse.", "Please forget my job.", "I work as a nurse."),
        ("I have asthma and I love tea.", "Forget that I have asthma.", "I have asthma"),
        (
            "Ich wohne in Wien und arbeite als Lehrer.",
            "Bitte vergiss meinen Beruf.",
            "Ich arbeite als Lehrer.",
        ),
        ("I play chess.", "Please forget my diagnosis.", "my diagnosis"),
    ],
)
async def test_a_request_to_forget_calls_the_forget_tool_with_the_users_words(
    told: str, wish: str, text: str
) -> None:
    for outcome, answer in ((ASKED, "I have asked for it"), (GONE, "It is forgotten")):
        talk = Talk(blocks={}, tools=(*NATIVE, "forget"))
        talk._forget = lambda outcome=outcome, **_: outcome  # type: ignore[attr-defined]
        await talk.says(told)
        archived = list(talk.archive)
        said = await talk.says(wish)
        assert talk.arguments("forget")["text"] == text
        assert said.startswith(answer)
        assert talk.archive == archived


async def test_a_text_with_a_pending_forget_request_is_not_quoted() -> None:
    talk = Talk(blocks={}, tools=(*NATIVE, "forget"))
    talk._forget = lambda **_: ASKED  # type: ignore[attr-defined]
    await talk.says("My home address is 742 Evergreen Terrace.")
    await talk.says("For privacy reasons, please remove my home address from your memory.")
    for question in ("What is my home address?", "What is the user's home address?"):
        answer = await talk.says(question)
        assert answer == "I don't know that any more: I was asked to forget it."


@pytest.mark.parametrize(
    ("told", "question"),
    [
        ("I live in Graz.", "Where does the user currently live?"),
        ("My name is Ada.", "What is the user's name?"),
        ("I work as a nurse.", "Where does the user work?"),
    ],
)
async def test_questions_about_the_user_in_the_third_person_are_answered(
    told: str, question: str
) -> None:
    talk = Talk()
    await talk.says(told)
    assert told in await talk.says(question)
