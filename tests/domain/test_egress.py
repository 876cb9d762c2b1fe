"""Labels of egress policies, and the texts that a clearance allows, with generated policies."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.egress import (
    DEFAULT_NETWORKS,
    Clearance,
    Destination,
    LocalNetworks,
    is_as_strict,
    join,
    label_of,
    names_of,
    permits,
)
from ricordo.domain.message import Message, TextPart, ToolCallPart, ToolReturnPart
from ricordo.domain.model import ModelInfo
from ricordo.errors import Invalid

NAMES = ("local", "openai", "anthropic", "mcp", "mcp:school")
policies = st.one_of(st.none(), st.lists(st.sampled_from(NAMES), max_size=3))
labels = st.lists(policies, max_size=3).map(lambda group: join(*map(label_of, group)))
destinations = st.builds(
    Destination, st.sampled_from(("openai", "anthropic", "mcp:school", "vllm")), st.booleans()
)


@given(policies, destinations)
def test_a_policy_allows_exactly_the_named_destinations(
    names: list[str] | None, to: Destination
) -> None:
    is_named = names is None or not to.names.isdisjoint(names)
    assert permits(label_of(names), to) == is_named


@given(labels, labels, destinations)
def test_a_joined_label_allows_what_both_labels_allow(
    one: str | None, other: str | None, to: Destination
) -> None:
    joined = join(one, other)
    assert permits(joined, to) == (permits(one, to) and permits(other, to))
    assert join(joined, one) == joined
    assert join(other, one) == joined


@given(labels, labels, destinations)
def test_a_stricter_label_allows_nothing_that_the_looser_one_forbids(
    one: str | None, other: str | None, to: Destination
) -> None:
    assert is_as_strict(join(one, other), one)
    if is_as_strict(one, other) and permits(one, to):
        assert permits(other, to)


@given(st.lists(st.sampled_from(NAMES), max_size=5))
def test_names_are_read_back_from_a_label(names: list[str]) -> None:
    assert names_of(label_of(names)) == [sorted(set(names))]


@pytest.mark.parametrize("name", ["", " ", "a;b", "a,b", "Ä", "nobody", "x" * 101])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        label_of([name])


@pytest.mark.parametrize(
    ("provider", "name", "endpoint", "is_local"),
    [
        ("ollama", "llama3", "http://127.0.0.1:11434", True),
        ("ollama", "gpt-oss:120b-cloud", "http://127.0.0.1:11434", False),
        ("vllm", "m", "http://[::1]:8000/v1", True),
        ("vllm", "m", "http://[::ffff:10.0.0.1]:8000/v1", True),
        ("vllm", "m", "http://192.168.1.5:8000/v1", True),
        ("vllm", "m", "http://localhost.:8000/v1", True),
        ("vllm", "m", "http://localhost.example.com/v1", False),
        ("vllm", "m", "http://10.example.com/v1", False),
        ("openai", "m", "https://api.openai.com/v1", False),
        ("plugin", "m", None, False),
        ("ricordo", "librarian", None, True),
        ("vllm", "m", "http://[broken", False),
    ],
)
def test_a_destination_is_local_by_its_address_not_by_its_name(
    provider: str, name: str, endpoint: str | None, is_local: bool
) -> None:
    info = ModelInfo(f"{provider}/{name}", provider, name, "openai", endpoint=endpoint)
    assert DEFAULT_NETWORKS.of_model(info).is_local == is_local


def test_an_operator_can_name_local_hosts_and_networks() -> None:
    networks = LocalNetworks.parse("ollama, 100.64.0.0/10")
    assert networks.holds("http://ollama:11434")
    assert networks.holds("http://100.64.3.3")
    assert not networks.holds("http://127.0.0.1")


def message(id: str, role: str, *parts: object, egress: str | None = None) -> Message:
    return Message(id, "agent", "conv", role, parts, 0, egress=egress)  # type: ignore[arg-type]


CLOUD = Destination("openai")
words = st.text("abcdefgh ", min_size=12, max_size=40).filter(lambda text: len(text.split()) > 1)


@given(words, st.sampled_from(("user", "assistant", "tool", "summary")))
def test_nothing_of_a_withheld_message_is_left(secret: str, role: str) -> None:
    call = ToolCallPart("call-1", "note", f'{{"text": "{secret}"}}')
    result = ToolReturnPart("call-1", "note", "success", secret, stdout=(secret,))
    labelled = message("m", role, TextPart(secret), call, result, egress="local")
    (cleared,) = Clearance().messages([labelled], CLOUD)
    assert secret not in repr(replace(cleared, id=""))
    assert [part.call_id for part in cleared.tool_calls] == ["call-1"]
    assert [part.call_id for part in cleared.tool_returns] == ["call-1"]
    assert cleared.role == role


@given(words, st.sampled_from(("{}", "- {}", "1. {}.", "  {}  ", "Remember: {}!")))
def test_a_withheld_line_is_removed_in_any_list_format(secret: str, form: str) -> None:
    clearance = Clearance()
    clearance.withhold("block:human", "local", secret)
    if len(" ".join(secret.split())) < 8:
        return
    text = f"Before.\n{form.format(secret.upper())}\nAfter."
    (cleared,) = clearance.messages([message("m", "user", TextPart(text))], CLOUD)
    assert secret.upper().strip() not in cleared.text
    assert cleared.text.startswith("Before.")
    assert cleared.text.endswith("After.")
    local = Destination("vllm", is_local=True)
    (same,) = clearance.messages([message("m", "user", TextPart(text))], local)
    assert same.text == text


def test_messages_without_labels_are_returned_unchanged() -> None:
    messages = [message("m", "user", TextPart("Hello."))]
    assert Clearance().messages(messages, CLOUD) is messages
