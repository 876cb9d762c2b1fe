"""Models without a role for tool results, and the form in which they get results."""

from ricordo.domain.message import Message, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelInfo
from ricordo.llm.adaptation import LearnedModel, learned_of, reads_plain_results
from ricordo.llm.learned_dialect import LearnedDialect, LearnedDialects
from ricordo.llm.scripted import ScriptedModel
from ricordo.prompt.transcript import transcript


def model_with(*, calls_as_text: bool = False, calls_tools: bool | None = None) -> ScriptedModel:
    model = ScriptedModel([])
    info = ModelInfo("a/x", "a", "x", "openai", calls_tools=calls_tools)
    learned, key = LearnedDialects(), ("", "http://host/v1", "x")
    learned.learn(key, LearnedDialect(calls_as_text=calls_as_text))
    model.info = info  # type: ignore[misc]
    model.learned = LearnedModel(learned, key, info)  # type: ignore[attr-defined]
    return model


def takes_results(model: ScriptedModel) -> bool:
    return not reads_plain_results(model, learned_of(model))


def test_models_that_call_tools_as_text_or_not_at_all_take_no_results_role() -> None:
    assert takes_results(ScriptedModel([]))
    assert takes_results(model_with())
    assert takes_results(model_with(calls_tools=True))
    assert not takes_results(model_with(calls_as_text=True))
    assert not takes_results(model_with(calls_tools=False))


def shown(
    content: str,
    *,
    name: str = "find",
    is_json: bool = False,
    status: str = "success",
    plain: bool = True,
) -> str:
    said = Message("m-1", "a", "c", "user", (TextPart("Find it."),), 0)
    call = Message(
        "m-2",
        "a",
        "c",
        "assistant",
        (ToolCallPart("call-1", name, '{"new_string": "Likes tea."}'),),
        0,
    )
    result = ToolReturnPart("call-1", name, status, content, is_json=is_json)  # type: ignore[arg-type]
    messages = transcript(
        [said, call, Message("m-3", "a", "c", "tool", (result,), 0)],
        "UTC",
        8_000,
        has_plain_results=plain,
    )
    return messages[-1].tool_returns[0].content


def test_a_plain_result_is_shown_without_an_envelope() -> None:
    for content, text in (
        ("Sunny.", "Sunny."),
        ("", "Done."),
        ('{"a": 1, "b": null, "c": []}', '{"a": 1, "b": null, "c": []}'),
    ):
        assert shown(content) == text
    assert shown("no such file", status="error") == "Failed: no such file"
    assert shown('{"a": 1, "b": null, "c": "two\\nlines"}', is_json=True) == "a: 1\nc: two\nlines"
    rows = '[{"when": "today", "who": "Ada", "tags": ["x", "y"]}, {"when": "then", "more": {"deep": true}}]'
    assert shown(rows, is_json=True) == (
        "- when: today\n  who: Ada\n  tags:\n    - x\n    - y\n- when: then\n  more:\n    deep: true"
    )
    assert shown("[]", is_json=True) == "Done."
    assert shown("3.5", is_json=True) == "3.5"
    assert '"status": "OK"' in shown("Sunny.", plain=False)


def test_the_result_of_a_memory_edit_shows_only_what_was_written() -> None:
    assert shown("Name is Ada.\nLikes tea.", name="memory_insert") == "Saved: Likes tea."
    noted = "Name is Ada.\nLikes tea.\n\n[A secret (key) was removed from the text that you wrote.]"
    assert (
        shown(noted, name="memory_insert")
        == "Saved: Likes tea.\n\n[A secret (key) was removed from the text that you wrote.]"
    )
    proposed = 'Your change of memory block "human" was proposed.'
    assert shown(proposed, name="memory_insert") == proposed
