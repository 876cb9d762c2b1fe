from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from letta_client import APIStatusError, ConflictError, InternalServerError, NotFoundError
from letta_client.types import AgentState
from letta_client.types.agents import LettaResponse

from ricordo.domain.ids import is_id, new_id, part_otid
from ricordo.domain.message import ImagePart, ReasoningPart, TextPart
from ricordo.domain.model import ModelReply
from ricordo.domain.usage import Usage
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.http import refused
from tests.seams.server import LIMIT, MODEL, Gate, ServerInThread, StrictLetta
from tests.seams.stores import count_statements

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
BUSY = (
    "Cannot send a new message: Another request is currently being processed for this "
    "conversation. Please wait for the current request to complete."
)


def kinds(answer: LettaResponse) -> list[str]:
    return [message.message_type or "" for message in answer.messages]


def test_a_response_has_the_messages_the_stop_reason_and_the_usage(
    api: Api, agent: AgentState
) -> None:
    api.server.says(ModelReply((TextPart("Hello, Ada."),), usage=Usage(100, 7, 60, 5, 2)))

    answer = api.client.agents.messages.create(
        agent.id, messages=[{"role": "user", "content": "Hello."}]
    )

    (said,) = answer.messages
    assert said.message_type == "assistant_message"
    assert (said.content, said.is_err, said.name, said.sender_id) == (
        "Hello, Ada.",
        None,
        None,
        None,
    )
    assert is_id(said.id, "message")
    assert is_id(said.step_id or "", "step")
    assert said.otid == part_otid(said.id, 0)
    assert said.date.microsecond == 0
    assert answer.stop_reason.stop_reason == "end_turn"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.step_count) == (
        100,
        7,
        107,
        1,
    )
    assert usage.context_tokens == 107
    assert (usage.cached_input_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (
        60,
        5,
        2,
    )
    assert usage.run_ids == [said.run_id]
    assert is_id(said.run_id or "", "run")


def test_an_answer_at_the_limit_of_tokens_has_its_text_or_a_reason(
    api: Api, agent: AgentState
) -> None:
    cut = ModelReply((TextPart("One, two, th"),), finish="length")
    silent = ModelReply((ReasoningPart("Let me count."),), finish="length")
    said: Any = [{"role": "user", "content": "Count."}]
    api.server.says(cut, silent, cut, silent)

    answer = api.client.agents.messages.create(agent.id, messages=said)
    assert kinds(answer) == ["assistant_message"]
    assert answer.stop_reason.stop_reason == "max_tokens_exceeded"
    with pytest.raises(InternalServerError, match="limit of tokens before it gave an answer"):
        api.client.agents.messages.create(agent.id, messages=said)
    assert [run.stop_reason for run in api.client.runs.list(agent_id=agent.id)] == [
        "max_tokens_exceeded",
        "max_tokens_exceeded",
    ]

    def streamed() -> list[Any]:
        return list(api.client.agents.messages.create(agent.id, messages=said, streaming=True))

    events = streamed()
    assert [getattr(event, "content", None) for event in events].count("One, two, th") == 1
    reasons = [event.stop_reason for event in events if event.message_type == "stop_reason"]
    assert reasons == ["max_tokens_exceeded"]
    with pytest.raises(APIStatusError, match="limit of tokens before it gave an answer"):
        streamed()


def test_the_model_receives_the_new_messages_and_the_earlier_ones(
    api: Api, agent: AgentState
) -> None:
    api.server.says("Nice.", "I do.")
    api.client.agents.messages.create(agent.id, input="I like tea.")
    several = [
        {"role": "system", "content": "She is in a hurry."},
        {
            "role": "user",
            "content": "Why?",
            "name": "Ada",
            "otid": "my-otid",
            "sender_id": "identity-1",
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "text", "text": "Are you there?"}],
        },
    ]
    api.client.agents.messages.create(agent.id, messages=several)

    seen = [(message.role, message.text) for message in api.server.model.requests[-1].messages]
    assert seen[0][0] == "system"
    assert "Her name is Ada." in seen[0][1]
    assert seen[1:3] == [("user", "I like tea."), ("assistant", "Nice.")]
    assert [text for _, text in seen[3:]] == ["She is in a hurry.", "Why?", "Are you there?"]
    assert api.server.model.requests[-1].stream is False
    listed = api.client.agents.messages.list(agent.id, order="asc").items[3:6]
    assert [message.message_type for message in listed] == [
        "system_message",
        "user_message",
        "user_message",
    ]
    why = listed[1]
    assert (why.name, why.otid, why.sender_id, why.step_id) == (
        "Ada",
        "my-otid",
        "identity-1",
        None,
    )
    assert listed[2].otid == part_otid(listed[2].id, 0)


def test_a_turn_with_a_tool_returns_the_call_the_result_and_the_answer(
    api: Api, agent: AgentState
) -> None:
    insert = call("memory_insert", label="human", new_string="She likes tea.")
    api.server.says(insert, "I will remember that.")

    answer = api.client.agents.messages.create(agent.id, input="I like tea.")

    called, result, said = answer.messages
    assert called.message_type == "tool_call_message"
    id = insert.call_id
    assert called.tool_call.to_dict() == {
        "name": "memory_insert",
        "arguments": insert.arguments,
        "tool_call_id": id,
    }
    assert [one.to_dict() for one in called.tool_calls] == [called.tool_call.to_dict()]  # type: ignore[union-attr]
    assert result.message_type == "tool_return_message"
    value = "Her name is Ada.\nShe likes tea."
    returned = {
        "tool_return": value,
        "status": "success",
        "tool_call_id": id,
        "stdout": None,
        "stderr": None,
    }
    assert returned.items() <= result.to_dict().items()
    assert result.to_dict()["tool_returns"] == [{"type": "tool", **returned}]
    assert said.message_type == "assistant_message"
    assert called.step_id == result.step_id != said.step_id
    assert answer.usage.step_count == 2
    assert api.client.agents.blocks.retrieve("human", agent_id=agent.id).value == value


def test_a_failed_tool_call_is_reported_and_the_turn_continues(api: Api, agent: AgentState) -> None:
    api.server.says(call("memory_insert", label="nowhere", new_string="x"), "Sorry.")

    _, result, said = api.client.agents.messages.create(agent.id, input="Hello.").messages

    assert result.message_type == "tool_return_message"
    assert result.status == "error"
    assert "nowhere" in result.tool_return
    assert result.stderr[0].startswith("Error executing function memory_insert: ")
    assert result.is_err is None
    assert (said.message_type, said.content) == ("assistant_message", "Sorry.")  # type: ignore[union-attr]


def test_the_client_chooses_how_a_message_tools_text_is_shown(api: Api, agent: AgentState) -> None:
    speech = api.client.tools.list(name="send_message").items[0]
    api.client.agents.tools.attach(speech.id, agent_id=agent.id)

    def ask(**options: Any) -> list[tuple[str, str | None]]:
        api.server.says(call("send_message", message="Hello, Ada."), "Done.")
        answer = api.client.agents.messages.create(agent.id, input="Hello.", **options)
        return [
            (message.message_type or "", getattr(message, "content", None))
            for message in answer.messages
        ]

    # The result "sent" is not shown, since the text itself is shown.
    as_speech = [("assistant_message", "Hello, Ada."), ("assistant_message", "Done.")]
    as_call = [
        ("tool_call_message", None),
        ("tool_return_message", None),
        ("assistant_message", "Done."),
    ]
    assert ask() == as_speech
    assert ask(use_assistant_message=False) == as_call
    assert ask(assistant_message_tool_name="other") == as_call
    assert ask(assistant_message_tool_kwarg="words") == [as_call[0], as_call[2]]

    def listed(**options: Any) -> int:
        page = api.client.agents.messages.list(agent.id, limit=100, **options).items
        return sum(message.message_type == "tool_call_message" for message in page)

    assert (listed(), listed(use_assistant_message=False)) == (0, 4)
    custom = {
        "assistant_message_tool_name": "memory_insert",
        "assistant_message_tool_kwarg": "new_string",
    }
    assert listed(**custom) == 4


def test_only_the_requested_message_types_are_returned(api: Api, agent: AgentState) -> None:
    api.server.says(call("memory_insert", label="human", new_string="x"), "Done.")

    types = ["assistant_message", "tool_return_message"]
    answer = api.client.agents.messages.create(
        agent.id, input="Hello.", include_return_message_types=types
    )
    assert kinds(answer) == ["tool_return_message", "assistant_message"]
    listed = api.client.agents.messages.list(
        agent.id, include_return_message_types=["user_message"]
    ).items
    assert [message.message_type for message in listed] == ["user_message"]
    api.server.says("Nothing of that.")
    assert (
        api.client.agents.messages.create(
            agent.id, input="Hello.", include_return_message_types=[]
        ).messages
        == []
    )


def test_a_picture_reaches_the_model_and_is_listed(api: Api, agent: AgentState) -> None:
    content: list[Any] = [
        {"type": "text", "text": "What is this?"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": PIXEL, "detail": "low"},
        },
        {"type": "image", "source": {"type": "url", "url": "https://example.org/cat.png"}},
    ]

    api.client.agents.messages.create(agent.id, messages=[{"role": "user", "content": content}])

    pictures = (
        ImagePart("image/png", PIXEL, None, "low"),
        ImagePart("image/png", None, "https://example.org/cat.png"),
    )
    assert api.server.model.requests[-1].messages[-1].parts == (
        TextPart("What is this?"),
        *pictures,
    )
    user = api.client.agents.messages.list(agent.id, order="asc").items[1]
    assert user.to_dict()["content"] == content


def test_lists_of_messages_are_in_the_order_of_the_retired_server(
    api: Api, agent: AgentState
) -> None:
    """Lists have the same order as on the retired server.

    `order` says which end is returned, `after` and `before` are times, and the parts of a message
    keep their order.
    """
    for number in range(4):
        api.server.says((ReasoningPart("Hm."), TextPart(f"Answer {number}.")))
        api.client.agents.messages.create(agent.id, input=f"Question {number}.")

    def listed(**query: Any) -> str:
        shown = api.client.agents.messages.list(agent.id, **query).items
        names = {"system": "S", "user": "Q", "reasoning": "R", "assistant": "A"}
        texts = [str(getattr(one, "content", "") or "") for one in shown]
        return " ".join(
            names[one.message_type.split("_")[0]]
            + "".join(c for c in text if c.isdigit() and one.message_type[0] != "s")
            for one, text in zip(shown, texts, strict=True)
        )

    ids = list(dict.fromkeys(one.id for one in api.client.agents.messages.list(agent.id)))
    assert len(ids) == 9
    assert listed(order="asc") == listed() == "S Q0 R A0 Q1 R A1 Q2 R A2 Q3 R A3"
    assert listed(limit=3) == listed(limit=3, order="desc") == "R A2 Q3 R A3"
    assert listed(limit=2, order="asc") == "S Q0"
    # `after` gives newer and `before` older messages, in either order. `order` chooses the end of
    # that range.
    for order, newest, oldest in (("desc", "Q3 R A3", "R A0 Q1"), ("asc", "Q2 R A2", "S Q0")):
        assert listed(order=order, after=ids[4], limit=100) == "Q2 R A2 Q3 R A3"
        assert listed(order=order, before=ids[4], limit=100) == "S Q0 R A0 Q1"
        assert listed(order=order, after=ids[4], limit=2) == newest
        assert listed(order=order, before=ids[4], limit=2) == oldest
        assert listed(order=order, after=ids[1], before=ids[4]) == "R A0 Q1"
        assert listed(order=order, after=ids[-1]) == ""
    # A client that pages back asks for messages before the first one that it has.
    back = api.client.agents.messages.list(agent.id, limit=4, before=ids[8])
    assert list(dict.fromkeys(one.id for one in back)) == [*ids[4:8], *ids[:4]]
    # All conversations together, as one list, and one message by its id.
    everything = api.http.get("/v1/messages/", params={"limit": 3}).json()
    assert [one["id"] for one in everything] == [ids[6], ids[6], ids[7], ids[8], ids[8]]
    thread = api.client.runs.list(agent_id=agent.id).items[0].conversation_id
    assert len(api.client.messages.list(conversation_id=thread, limit=2)) == 3
    (thought, said) = api.client.messages.retrieve(ids[8])
    assert (thought.message_type, said.message_type) == ("reasoning_message", "assistant_message")
    with pytest.raises(NotFoundError):
        api.client.messages.retrieve(new_id("message"))


def test_messages_are_listed_in_both_orders_including_their_parts(
    api: Api, agent: AgentState
) -> None:
    insert = call("memory_insert", label="human", new_string="x")
    api.server.says((ReasoningPart("Hm."), TextPart("Let me note that."), insert), "Done.")
    api.client.agents.messages.create(agent.id, input="Hello.")

    oldest_first = api.client.agents.messages.list(agent.id, order="asc").items
    by_default = api.client.agents.messages.list(agent.id).items

    types = "system user reasoning assistant tool_call tool_return assistant".split()
    assert [message.message_type for message in oldest_first] == [
        f"{type}_message" for type in types
    ]
    assert by_default == oldest_first
    assert api.client.agents.messages.list(agent.id, conversation_id="default").items == by_default
    thread = api.client.runs.list(agent_id=agent.id).items[0].conversation_id
    assert len(api.client.agents.messages.list(agent.id, conversation_id=thread).items) == 7
    with pytest.raises(NotFoundError):
        api.client.agents.messages.list(agent.id, conversation_id=new_id("conv"))
    # One agent never shows another's messages.
    with pytest.raises(NotFoundError):
        api.client.agents.messages.list(
            api.client.agents.create(model=MODEL).id, conversation_id=thread
        )


def test_a_filter_by_type_returns_full_pages(client: StrictLetta, agent: AgentState) -> None:
    """A client stops at an empty page, so a filter must not make one."""
    said = [f"Message {number}." for number in range(4)]
    for text in said:
        client.agents.messages.create(agent.id, input=text)

    only = {"include_return_message_types": ["user_message"]}
    found = client.agents.messages.list(agent.id, limit=1, order="asc", **only)
    assert [message.content for message in found] == said
    newest = client.agents.messages.list(agent.id, limit=1, **only).items
    found = client.agents.messages.list(agent.id, limit=1, before=newest[0].id, **only)
    assert [message.content for message in found] == said[-2::-1]


def test_a_reset_removes_the_messages_and_keeps_the_memory(api: Api, agent: AgentState) -> None:
    api.server.says(call("memory_insert", label="human", new_string="She likes tea."), "Done.")
    api.client.agents.messages.create(agent.id, input="I like tea.")

    state = api.client.agents.messages.reset(agent.id, add_default_initial_messages=False)

    listed = api.client.agents.messages.list(agent.id).items
    assert [message.message_type for message in listed] == ["system_message"]
    assert "She likes tea." in listed[0].content  # type: ignore[union-attr,operator]
    assert state.message_ids == [listed[0].id]
    assert api.client.agents.retrieve(agent.id).message_ids == state.message_ids
    api.client.agents.messages.create(agent.id, input="Who am I?")
    assert [message.role for message in api.server.model.requests[-1].messages] == [
        "system",
        "user",
    ]


def test_a_cancel_of_named_runs_denies_no_calls_of_other_runs(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    client.agents.tools.update_approval(
        "memory_insert", agent_id=agent.id, body_requires_approval=True
    )
    threads = [client.conversations.create(agent_id=agent.id).id for _ in range(3)]
    waiting = []
    for thread in threads:
        server.says(call("memory_insert", label="human", new_string="She likes tea."))
        list(client.conversations.messages.create(thread, input="Remember tea."))
        (run,) = client.runs.list(conversation_id=thread).items
        waiting.append(run.id)
    stranger = new_id("run")

    def still_wait() -> list[bool]:
        listed = [client.conversations.messages.list(thread, order="asc") for thread in threads]
        return [list(page)[-1].message_type == "approval_request_message" for page in listed]

    assert client.agents.messages.cancel(agent.id, run_ids=[stranger]) == {stranger: "failed"}
    assert still_wait() == [True, True, True]
    cancelled = client.agents.messages.cancel(agent.id, run_ids=[waiting[1], stranger])
    assert cancelled == {waiting[1]: "cancelled", stranger: "failed"}
    assert still_wait() == [True, False, True]
    cancelled = client.agents.messages.cancel(agent.id)
    assert cancelled == {waiting[0]: "cancelled", waiting[2]: "cancelled"}
    assert still_wait() == [False, False, False]


def test_a_cancelled_turn_stops_and_the_next_message_is_answered(
    client: StrictLetta, server: ServerInThread, agent: AgentState
) -> None:
    gate = Gate(server)
    server.answers_with(gate)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(lambda: client.agents.messages.create(agent.id, input="Wait."))
        gate.wait()
        (run,) = client.runs.list(agent_id=agent.id, active=True).items

        stranger = new_id("run")
        assert client.agents.messages.cancel(agent.id, run_ids=[stranger]) == {stranger: "failed"}
        assert client.agents.messages.cancel(agent.id) == {run.id: "cancelled"}
        answer = asking.result(LIMIT)

    assert (answer.messages, answer.stop_reason.stop_reason) == ([], "cancelled")
    assert client.runs.retrieve(run.id).status == "cancelled"
    with pytest.raises(ConflictError, match="No active runs to cancel"):
        client.agents.messages.cancel(agent.id)
    assert client.agents.messages.cancel(agent.id, run_ids=[run.id]) == {run.id: "failed"}
    server.forget()
    assert kinds(client.agents.messages.create(agent.id, input="And now?")) == ["assistant_message"]
    assert [message.text for message in server.model.requests[-1].messages[1:]] == [
        "Wait.",
        "And now?",
    ]


@pytest.mark.parametrize("path", ["messages", "messages/stream"])
def test_a_second_message_during_a_turn_is_refused_as_busy(
    api: Api, agent: AgentState, path: str
) -> None:
    gate = Gate(api.server)
    api.server.answers_with(gate)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(lambda: api.client.agents.messages.create(agent.id, input="First."))
        gate.wait()
        (run,) = api.client.runs.list(agent_id=agent.id).items
        rows = api.server.rows()

        answer = api.http.post(f"/v1/agents/{agent.id}/{path}", json={"input": "Second."})

        assert (answer.status_code, answer.json()) == (409, {"detail": BUSY, "run_id": run.id})
        assert answer.headers["x-should-retry"] == "false"
        assert api.server.rows() == rows
        with pytest.raises(ConflictError, match="Another request is currently being processed"):
            api.client.with_options(max_retries=2).agents.messages.create(agent.id, input="Second.")
        with pytest.raises(ConflictError, match="Another request is currently being processed"):
            api.client.agents.messages.reset(agent.id)
        gate.open()
        asking.result(LIMIT)
    assert len(api.server.model.requests) == 1


def said(*otids: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello.", "otid": otid} for otid in otids]}


@pytest.mark.parametrize(
    ("body", "headers"),
    [(said("otid-1"), {}), ({"input": "Hello."}, {"x-stainless-retry-count": "1"})],
)
def test_a_repeated_request_gets_the_first_answer(
    api: Api, agent: AgentState, body: Any, headers: dict[str, str]
) -> None:
    api.server.says("The only answer.")
    path = f"/v1/agents/{agent.id}/messages"
    first = api.http.post(path, json=body)
    rows = api.server.rows()

    again = api.http.post(path, json=body, headers=headers)

    assert (again.status_code, again.json()) == (200, first.json())
    assert api.server.rows() == rows
    assert len(api.server.model.requests) == 1


def test_an_otid_of_another_message_is_refused(api: Api, agent: AgentState) -> None:
    path = f"/v1/agents/{agent.id}/messages"
    api.http.post(path, json=said("otid-1"))
    rows = api.server.rows()

    assert "CONFLICT: The otid otid-1 already belongs" in refused(
        api.http.post(path, json=said("otid-1", "otid-2")), 409
    )
    assert api.http.post(path, json=said("same", "same")).status_code in (400, 422)
    assert api.server.rows() == rows


def test_a_plain_turn_costs_at_most_twelve_statements_in_two_transactions(
    api: Api, agent: AgentState
) -> None:
    api.client.agents.messages.create(agent.id, input="Hello.")

    with count_statements(api.server.runtime.store) as counted:  # type: ignore[attr-defined]
        api.client.agents.messages.create(agent.id, input="Hello again.")

    assert 6 <= len(counted.statements) <= 12, counted.statements
    assert counted.transactions == 2
