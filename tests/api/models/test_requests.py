"""Requests as clients send them: read, refused, and sent back."""

from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, cast, get_args

import httpx2
import letta_client.types
import pytest
from letta_client._models import construct_type
from letta_client.types import AgentState
from letta_client.types.agent_state import CompactionSettings as ClientSettings
from pydantic import ValidationError

from ricordo.api.conversations import ConversationSendRequest, ConversationUpdate
from ricordo.api.models.agents import AgentRequest, AgentUpdate
from ricordo.api.models.archives import ArchiveRequest, ArchiveUpdate, PassageRequest
from ricordo.api.models.base import RequestPart
from ricordo.api.models.compaction import (
    CompactionSettingsRequest,
    CompactionSettingsResponse,
    CompactRequest,
)
from ricordo.api.models.memory import BlockRequest, BlockUpdate
from ricordo.api.models.models import ModelConfigRequest, ModelSettingsRequest
from ricordo.api.models.runs import FeedbackRequest
from ricordo.api.models.tools import read_rule, rule_response
from ricordo.api.models.turns import (
    ApprovalDecisionRequest,
    AsyncSendRequest,
    CallDecisionRequest,
    CancelRequest,
    ImageContent,
    MessageRequest,
    SendRequest,
    TextContent,
)
from ricordo.api.search import MessageSearchRequest, PassageSearchRequest
from ricordo.domain.agent import CompactionSettings
from ricordo.domain.tool import RuleType, ToolRule
from ricordo.errors import Invalid
from tests.seams.server import MODEL, ServerInThread, StrictLetta

REQUESTS: Mapping[type[RequestPart], str] = {
    AgentRequest: "AgentCreateParams",
    AgentUpdate: "AgentUpdateParams",
    CompactionSettingsRequest: "agent_create_params.CompactionSettings",
    CompactRequest: "agents.message_compact_params.MessageCompactParams",
    SendRequest: "agents.MessageStreamParams",
    AsyncSendRequest: "agents.MessageCreateAsyncParams",
    ConversationSendRequest: "conversations.MessageCreateParams",
    MessageRequest: "MessageCreateParam",
    ApprovalDecisionRequest: "agents.ApprovalCreateParam",
    CallDecisionRequest: "agents.ToolReturnParam",
    TextContent: "agents.TextContentParam",
    ImageContent: "agents.ImageContentParam",
    BlockRequest: "BlockCreateParams",
    BlockUpdate: "BlockUpdateParams",
    ArchiveRequest: "ArchiveCreateParams",
    ArchiveUpdate: "ArchiveUpdateParams",
    PassageRequest: "archives.PassageCreateParams",
    FeedbackRequest: "steps.FeedbackCreateParams",
    ConversationUpdate: "ConversationUpdateParams",
    MessageSearchRequest: "MessageSearchParams",
    PassageSearchRequest: "PassageSearchParams",
    ModelConfigRequest: "LlmConfigParam",
}


@pytest.mark.parametrize("model", REQUESTS, ids=lambda model: model.__name__)
def test_every_field_of_the_official_client_is_known_here(model: type[RequestPart]) -> None:
    """Each field has an effect, is refused, or is listed as ignored with the reason."""
    module, _, name = REQUESTS[model].rpartition(".")
    fields = getattr(
        import_module(f"letta_client.types.{module}".removesuffix(".")), name
    ).__annotations__
    known = {*model.model_fields, *model.ignored}
    for field in model.model_fields.values():
        known.update(getattr(field.validation_alias, "choices", ()))
    assert set(fields) - known - {"betas"} == set()
    # A request may ignore a field that has an effect in the request that it extends.
    assert model.ignored.keys().isdisjoint(model.__annotations__)


def test_an_unknown_field_is_refused_by_name_wherever_it_stands(
    http: httpx2.Client, server: ServerInThread, agent: AgentState
) -> None:
    rows = server.rows()
    message = {"role": "user", "content": "Hello."}
    talk = f"/v1/agents/{agent.id}/messages"
    for path, body, where in (
        ("/v1/agents/", {"model": MODEL, "naem": "Ada"}, "body.naem"),
        ("/v1/blocks/", {"label": "human", "value": "", "readonly": True}, "body.readonly"),
        (talk, {"messages": [message], "stream": True}, "body.stream"),
        (talk, {"messages": [message | {"oitd": "a"}]}, "body.messages.0.message.oitd"),
        ("/v1/messages/search", {"query": "a", "role": "user"}, "body.role"),
        ("/v1/passages/search", {"query": "a", "tag": "x"}, "body.tag"),
    ):
        answer = http.post(path, json=body)
        assert (answer.status_code, where in answer.json()["detail"]) == (422, True), answer.text
    assert server.rows() == rows


def test_a_listed_model_configuration_can_be_sent_back(
    http: httpx2.Client, agent: AgentState
) -> None:
    """Older clients choose a model by `llm_config=client.models.list()[0]`."""
    config = http.get("/v1/models/").json()[0]
    made = http.post("/v1/agents/", json={"llm_config": config})
    assert made.status_code == 200
    assert made.json()["llm_config"]["context_window"] == config["context_window"]
    shown = made.json()["model_settings"]
    assert shown == {
        "provider_type": "openai",
        "temperature": 1.0,
        "max_output_tokens": 16_384,
        "parallel_tool_calls": True,
        "reasoning": {"reasoning_effort": "minimal"},
        "strict": False,
    }
    # A default that is shown sets nothing when it is sent back.
    agent = http.patch(f"/v1/agents/{made.json()['id']}", json={"model_settings": shown}).json()
    assert agent["llm_config"] == made.json()["llm_config"]
    for embedding in http.get("/v1/models/embedding").json():
        assert (
            http.post(
                "/v1/agents/", json={"model": MODEL, "embedding_config": embedding}
            ).status_code
            == 200
        )


def test_the_official_client_can_send_a_model_configuration_back(
    client: StrictLetta, agent: AgentState
) -> None:
    """The client writes `api_` before the names of some fields when it sends a model back."""
    config, embedding = client.models.list()[0], client.models.embeddings.list()[0]
    made = client.agents.create(llm_config=config, embedding_config=embedding)
    assert (made.llm_config.handle, made.embedding) == (config.handle, embedding.handle)
    changed = client.agents.update(agent.id, llm_config=made.llm_config)
    assert changed.llm_config.handle == config.handle

    chosen: Any = {"mode": "all", "model_settings": {"provider_type": "openai", "temperature": 0.2}}
    first = client.agents.update(agent.id, compaction_settings=chosen).compaction_settings
    other = client.agents.create(
        model=MODEL, compaction_settings=cast(Any, first)
    ).compaction_settings
    assert first is not None
    assert other == first
    assert (
        client.agents.update(agent.id, compaction_settings=cast(Any, other)).compaction_settings
        == first
    )


def test_settings_in_a_legacy_llm_config_take_effect(http: httpx2.Client) -> None:
    config = {
        "handle": MODEL,
        "context_window": 8000,
        "temperature": 0.2,
        "max_tokens": 500,
        "verbosity": "low",
    }
    made = http.post("/v1/agents/", json={"llm_config": config}).json()
    assert (
        made["llm_config"].items()
        >= {"context_window": 8000, "temperature": 0.2, "max_tokens": 500}.items()
    )
    assert made["model_settings"]["verbosity"] == "low"
    again = http.patch(
        f"/v1/agents/{made['id']}", json={"llm_config": made["llm_config"] | {"temperature": 0.4}}
    )
    assert again.json()["model_settings"] == made["model_settings"] | {"temperature": 0.4}
    made = http.post("/v1/agents/", json={"llm_config": config | {"effort": "high"}}).json()
    assert made["model_settings"]["reasoning"] == {"reasoning_effort": "high"}


def test_a_message_without_a_type_is_recognized_by_its_fields() -> None:
    body = SendRequest.model_validate(
        {
            "messages": [
                {"role": "user", "content": "Hello."},
                {"approve": True},
                {"type": "approval", "approvals": []},
            ]
        }
    )

    names = [type(message).__name__ for message in body.messages or ()]
    assert names == ["MessageRequest", "ApprovalDecisionRequest", "ApprovalDecisionRequest"]


def test_content_without_a_type_is_recognized_by_its_fields() -> None:
    content = [{"text": "Look."}, {"source": {"url": "https://example.org/cat.png"}}]
    (message,) = (
        SendRequest.model_validate({"messages": [{"role": "user", "content": content}]}).messages
        or ()
    )
    assert isinstance(message, MessageRequest)
    assert [type(part).__name__ for part in message.content] == ["TextContent", "ImageContent"]


def test_runs_to_cancel_can_be_sent_as_an_object_or_a_plain_list() -> None:
    for sent in ({"run_ids": ["run-1"]}, ["run-1"]):
        assert CancelRequest.model_validate(sent).run_ids == ["run-1"]


def test_lone_surrogates_nul_and_numbers_beyond_64_bits_are_refused() -> None:
    for value in ("\ud800", 2**64, -(2**63) - 1, "a\0b", "\\\0"):
        with pytest.raises(ValueError, match="cannot be stored"):
            AgentRequest.model_validate({"metadata": {"deep": [value]}})
    for value in (r"\u0000 and \\u0000", 2**63 - 1):  # backslashes and digits, no NUL
        AgentRequest.model_validate({"metadata": {"deep": [value]}})


def test_a_body_beyond_the_limit_is_refused(http: httpx2.Client) -> None:
    answer = http.post("/v1/blocks/", content=b'{"value": "' + b"x" * (33 * 1024 * 1024) + b'"}')
    told = "The request is longer than 32 MB. Send less, or raise RICORDO_MAX_BODY_MB."
    assert (answer.status_code, answer.json()) == (413, {"detail": told})


def test_an_invalid_or_unsupported_picture_is_refused(
    http: httpx2.Client, agent: AgentState
) -> None:
    for source in (
        {"media_type": "image/png", "data": "abc"},
        {"media_type": "audio/wav", "data": "aGk="},
    ):
        content = [{"type": "image", "source": {"type": "base64", **source}}]
        message = {"role": "user", "content": content}
        answer = http.post(f"/v1/agents/{agent.id}/messages", json={"messages": [message]})
        assert answer.status_code in (400, 422), source
    assert len(http.get(f"/v1/agents/{agent.id}/messages").json()) == 1  # only the system message


RULES: list[dict[str, Any]] = [
    {"type": "run_first", "tool_name": "plan", "args": {"depth": 1, "note": None}},
    {"type": "exit_loop", "tool_name": "plan"},
    {"type": "continue_loop", "tool_name": "plan"},
    {"type": "conditional", "tool_name": "plan", "child_output_mapping": {"yes": "write"}}
    | {"default_child": "check", "require_output_mapping": False},
    {"type": "constrain_child_tools", "tool_name": "plan", "children": ["write", "check"]}
    | {"child_arg_nodes": [{"name": "write", "args": {"path": "a"}}]},
    {"type": "max_count_per_step", "tool_name": "plan", "max_count_limit": 3},
    {"type": "parent_last_tool", "tool_name": "plan", "children": ["write"]},
    {"type": "required_before_exit", "tool_name": "plan"},
    {
        "type": "requires_approval",
        "tool_name": "plan",
        "prompt_template": "Ask before {{ tool_name }}.",
    },
]


def test_a_tool_rule_round_trips_also_through_the_official_client() -> None:
    """The client finds the rule's class by its type.

    The rule that it sends back is the same.
    """
    names = [
        m.name for m in iter_modules(letta_client.types.__path__) if m.name.endswith("_tool_rule")
    ]
    modules = [import_module(f"letta_client.types.{name}") for name in names]
    forms = [getattr(module, module.__all__[0]) for module in modules]
    assert len(forms) == 9
    assert {rule["type"] for rule in RULES} == set(get_args(RuleType))
    for sent in RULES:
        shown = rule_response(read_rule(sent))
        assert shown == {"prompt_template": None, **sent}
        assert read_rule(shown) == read_rule(sent)
        (form,) = (f for f in forms if sent["type"] in str(f.model_fields["type"].annotation))
        assert read_rule(form.model_validate(shown).model_dump()) == read_rule(sent)


def test_the_length_of_a_tool_rule_is_counted_in_characters() -> None:
    rule = {"type": "exit_loop", "tool_name": "a", "prompt_template": "ä" * 299_000}
    assert read_rule(rule).type == "exit_loop"


def test_a_tool_rules_missing_type_is_inferred_from_its_options() -> None:
    assert read_rule({"tool_name": "a", "max_count_limit": 1}).type == "max_count_per_step"
    assert (
        read_rule({"tool_name": "a", "type": None, "child_output_mapping": {"x": "b"}}).type
        == "conditional"
    )
    nodes = {"tool_name": "a", "children": ["b"], "child_arg_nodes": [{"name": "b"}]}
    assert read_rule(nodes).type == "constrain_child_tools"
    assert read_rule({"type": "exit_loop", "tool_name": "a", "id": "tool_rule-1"}) == ToolRule(
        "a", "exit_loop"
    )


IMPOSSIBLE_RULES: list[tuple[dict[str, Any], str]] = [
    (
        {"tool_name": "a", "type": "sometimes"},
        'rule for a has the unknown type "sometimes". Use one of: run_first',
    ),
    ({"tool_name": "a", "type": ["exit_loop"]}, "unknown type"),
    ({"tool_name": "a", "children": ["b"]}, "unknown type"),
    ({"type": "exit_loop"}, "names no tool"),
    ({"type": "exit_loop", "tool_name": ""}, "names no tool"),
    ({"type": "exit_loop", "tool_name": 5}, "names no tool"),
    ({"type": "exit_loop", "tool_name": "a", "children": ["b"]}, "has no field children"),
    (
        {"type": "exit_loop", "tool_name": "a", "prompt_template": 5},
        "prompt_template must be a text",
    ),
    ({"type": "exit_loop", "tool_name": "a", "prompt_template": "x" * 300_000}, "is too long"),
    ({"type": "constrain_child_tools", "tool_name": "a", "children": []}, "children"),
    ({"type": "constrain_child_tools", "tool_name": "a", "children": "b"}, "children"),
    (
        {
            "type": "constrain_child_tools",
            "tool_name": "a",
            "children": ["b"],
            "child_arg_nodes": "b",
        },
        "a list of objects",
    ),
    ({"type": "parent_last_tool", "tool_name": "a"}, "children"),
    ({"type": "conditional", "tool_name": "a", "child_output_mapping": {}}, "child_output_mapping"),
    ({"type": "max_count_per_step", "tool_name": "a", "max_count_limit": -1}, "max_count_limit"),
    ({"type": "run_first", "tool_name": "a", "args": [1]}, "args"),
    (
        {"tool_name": "a", "children": ["b"], "child_arg_nodes": [{"name": "c"}]},
        "not among its children",
    ),
    (
        {"tool_name": "a", "children": ["b"], "child_arg_nodes": [{"name": ["b"]}]},
        "not among its children",
    ),
]


def test_an_invalid_tool_rule_is_refused_with_the_reason() -> None:
    for sent, words in IMPOSSIBLE_RULES:
        with pytest.raises(Invalid, match=words):
            read_rule(sent)


def read(base: CompactionSettings | None = None, **sent: Any) -> CompactionSettings:
    return CompactionSettingsRequest.model_validate(sent).settings(base)


def test_an_empty_body_means_the_defaults() -> None:
    body, defaults = CompactionSettingsRequest(), CompactionSettings()
    for name in (
        "model",
        "prompt",
        "prompt_acknowledgement",
        "clip_chars",
        "mode",
        "sliding_window_percentage",
    ):
        assert getattr(body, name) == getattr(defaults, name)


def test_compaction_settings_are_returned_as_they_were_sent() -> None:
    model_settings = {
        "provider_type": "openai",
        "temperature": 0.2,
        "reasoning": {"reasoning_effort": "low"},
    }
    sent: dict[str, Any] = {
        "model": "openai/gpt-5-mini",
        "model_settings": {**model_settings, "verbosity": "low"},
        "prompt": "Sum up in verse.",
        "prompt_acknowledgement": True,
        "clip_chars": None,
        "mode": "self_compact_all",
        "sliding_window_percentage": 0.5,
    }
    settings = read(**sent)
    assert CompactionSettingsResponse.of(settings) == sent
    assert CompactionSettings(**asdict(settings)) == settings
    client: Any = construct_type(
        type_=ClientSettings, value=CompactionSettingsResponse.of(settings)
    )
    assert (client.mode, client.sliding_window_percentage, client.clip_chars) == (
        "self_compact_all",
        0.5,
        None,
    )
    assert client.api_model_settings.temperature == 0.2


def test_omitted_compaction_settings_keep_their_values() -> None:
    base = CompactionSettings(model="a/b", prompt="Mine.", clip_chars=9)
    assert read() == CompactionSettings()
    # Clients send back the settings that they read, in which null means that nothing was chosen.
    nulls = {"mode": None, "prompt_acknowledgement": None, "sliding_window_percentage": None}
    assert read(base, **nulls) == base
    assert CompactionSettingsResponse.of(base)["model_settings"] is None
    assert (
        read(
            CompactionSettings(model_settings={"temperature": 1.0}), model_settings=None
        ).model_settings
        == {}
    )
    assert read(base, clip_chars=8) == CompactionSettings(model="a/b", prompt="Mine.", clip_chars=8)
    assert read(base, model=None).model is None
    assert read(base, mode="all").prompt is None
    assert read(base, mode="all", prompt="Other.").prompt == "Other."
    assert read(base, mode="sliding_window").prompt == "Mine."


IMPOSSIBLE_SETTINGS: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    ({"mode": "everything"}, ("mode",), "Input should be 'all', 'sliding_window'"),
    ({"sliding_window_percentage": 1.2}, ("sliding_window_percentage",), "less than or equal to 1"),
    (
        {"sliding_window_percentage": -0.1},
        ("sliding_window_percentage",),
        "greater than or equal to 0",
    ),
    ({"sliding_window_percentage": float("nan")}, ("sliding_window_percentage",), "finite"),
    ({"clip_chars": -1}, ("clip_chars",), "greater than or equal to 0"),
    ({"clip_chars": 10**30}, ("clip_chars",), "less than or equal to"),
    ({"model": "gpt"}, (), 'a handle such as "openai/gpt-5-mini", not "gpt"'),
    ({"model": ""}, (), "a handle such as"),
    ({"model": "openai/"}, (), "a handle such as"),
    ({"model_settings": {"temperature": "hot"}}, ("model_settings", "temperature"), "valid number"),
    ({"model_settings": {"reasoning": "low"}}, ("model_settings", "reasoning"), "valid dictionary"),
    (
        {"model_settings": {"max_output_tokens": 0}},
        ("model_settings", "max_output_tokens"),
        "greater than",
    ),
    ({"prompt": "x" * 100_001}, ("prompt",), "at most 100000 characters"),
]


def test_invalid_compaction_settings_are_refused_with_place_and_reason() -> None:
    for sent, where, why in IMPOSSIBLE_SETTINGS:
        with pytest.raises(ValidationError) as caught:
            read(**sent)
        fault = caught.value.errors()[0]
        assert (fault["loc"], why in fault["msg"]) == (where, True), sent


def test_thinking_that_is_switched_off_has_no_budget() -> None:
    sent = {"thinking": {"type": "disabled", "budget_tokens": 1024}}
    assert ModelSettingsRequest.model_validate(sent).changes() == {
        "max_reasoning_tokens": None,
        "reasoning_effort": "none",
    }
