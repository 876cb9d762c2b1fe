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
    allowed_names,
    is_as_strict,
    join,
    label_of,
    names_of,
    permits,
    read_label,
    shared_label,
)
from ricordo.domain.message import (
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import ModelInfo
from ricordo.errors import Invalid

NAMES = ("local", "local:mine", "openai", "anthropic", "mcp", "mcp:school")
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


@pytest.mark.parametrize("clauses", ["mcp:school", "mcp:school,openai"])
def test_one_server_is_stricter_than_all_servers_of_its_kind(clauses: str) -> None:
    assert is_as_strict(clauses, "mcp,openai")
    assert not is_as_strict("mcp", clauses)
    assert allowed_names(f"mcp,openai;{clauses}") == clauses.split(",")


def test_a_provider_whose_name_begins_with_local_is_not_covered_by_local() -> None:
    assert not permits("local", Destination("local:mine"))
    assert not is_as_strict("local:mine", "local")
    assert not permits(join("local", "local:mine"), Destination("local:mine"))
    assert allowed_names("local;local:mine") == []


@pytest.mark.parametrize("name", ["nobody", "local"])
def test_a_destination_cannot_take_the_name_of_a_rule(name: str) -> None:
    assert not permits(name, Destination(name))
    assert permits("local", Destination(name, is_local=True))
    assert not permits("nobody", Destination(name, is_local=True))


def test_deeply_nested_json_is_searched_for_labelled_texts() -> None:
    clearance = Clearance()
    clearance.know("block:human", "local", "Grandmother lives in Lisbon.")
    text = "[" * 900 + '"Grandmother lives in Lisbon."' + "]" * 900
    assert clearance.repeats(text, Destination("openai")) == "block:human"
    assert clearance.repeats("[" * 900 + "]" * 900, Destination("openai")) is None


@given(st.lists(st.sampled_from(NAMES), max_size=5))
def test_names_are_read_back_from_a_label(names: list[str]) -> None:
    assert names_of(label_of(names)) == [sorted(set(names))]


@pytest.mark.parametrize("name", ["", " ", "a;b", "a,b", "Ä", "nobody", "x" * 101])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        label_of([name])


def test_a_policy_names_at_most_thirty_destinations() -> None:
    names = [f"provider{number}" for number in range(31)]
    assert names_of(label_of([*names[:30], " Provider1 "])) == [sorted(names[:30])]
    with pytest.raises(Invalid, match="at most 30"):
        label_of(names)


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
        ("vllm", "m", "http://", False),
        ("vllm", "m", "localhost", False),
    ],
)
def test_a_destination_is_local_by_its_address_not_by_its_name(
    provider: str, name: str, endpoint: str | None, is_local: bool
) -> None:
    info = ModelInfo(f"{provider}/{name}", provider, name, "openai", endpoint=endpoint)
    assert DEFAULT_NETWORKS.of_model(info).is_local == is_local


def test_an_operator_can_name_local_hosts_and_networks() -> None:
    networks = LocalNetworks.parse("Ollama, ,100.64.3.3/10")
    assert networks.holds("http://ollama:11434")
    assert networks.holds("http://100.100.0.1")
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


@pytest.mark.parametrize(
    ("stored", "label"),
    [
        (None, None),
        ("OpenAI,local", "local,openai"),
        ("openai;local,openai", "openai"),
        # A value that is no label allows no destination.
        ("", "nobody"),
        ("local;", "nobody"),
        ("a b", "nobody"),
        (["local"], "nobody"),
        (False, "nobody"),
    ],
)
def test_a_label_of_an_unknown_author_never_allows_more(stored: object, label: str | None) -> None:
    assert read_label(stored) == label


@given(st.lists(labels, min_size=1, max_size=4))
def test_the_shared_label_of_texts_limits_each_of_them_no_more(group: list[str | None]) -> None:
    shared = shared_label(group)
    assert all(is_as_strict(label, shared) for label in group)
    if len(set(group)) == 1:
        assert shared == group[0]


SECRET = """The gate code is 4711 0815, ask ada@home.example about lesson B12X7.
She has an extraordinarily old Donaudampfschiff."""


@pytest.mark.parametrize(
    ("text", "is_repeated"),
    [
        ("Tell me whether the gate code is known.", True),
        ("Is 4711 0815 right?", True),
        ("Write to <ada@home.example>.", True),
        ("What is b12x7?", True),
        ("What is a Donaudampfschiff?", True),
        ("That is extraordinarily good.", False),
        ('{"notes": [{"is 4711 0815 right": 1}]}', True),
        ('["x", {"a": "4711\\n0815"}]', True),
        ("{4711 0815", True),
        ("The gate is open.", False),
        ("In 4711 ask her.", False),
        ("A lesson about the code.", False),
        ("", False),
    ],
)
def test_a_text_that_repeats_a_phrase_number_or_address_is_recognized(
    text: str, is_repeated: bool
) -> None:
    clearance = Clearance()
    clearance.know("block:human", "local", f"Ada's notes.\n{SECRET}")
    found = "block:human" if is_repeated else None
    assert clearance.repeats(text, CLOUD) == found
    assert clearance.repeats(text, Destination("vllm", is_local=True)) is None
    assert clearance.spills(text, None) == found
    assert clearance.spills(text, "openai") == found
    assert clearance.spills(text, "local") is None
    labelled = clearance.with_labels(message("m", "user", TextPart(text), egress="openai"))
    assert labelled.egress == ("local;openai" if is_repeated else "openai")


def test_a_name_that_repeats_a_text_is_recognized_with_its_underscores() -> None:
    clearance = Clearance()
    clearance.know("block:human", "local", SECRET)
    assert clearance.spills_in_name("the_gate_code_is") == "block:human"
    assert clearance.spills_in_name("gate_code") is None


LINE = "the gate code is 4711"


@pytest.mark.parametrize(
    "part",
    [
        TextPart(f"Hello.\n{LINE}"),
        TextPart("Hello.\nThe gate code\nis 4711"),
        ReasoningPart(LINE),
        ToolCallPart("call-1", "note", f'{{"a": ["{LINE}"]}}'),
        ToolCallPart("call-1", "note", f'{{"{LINE}": 1}}'),
        ToolReturnPart("call-1", "note", "success", LINE),
        ToolReturnPart("call-1", "note", "success", f'{{"a": "{LINE}"}}', is_json=True),
        ImagePart("image/png", "AAAA", text=f"Note: {LINE}."),
        ToolReturnPart(
            "call-1",
            "note",
            "success",
            "A picture.",
            pictures=(ImagePart("image/png", "AAAA", text=LINE),),
        ),
    ],
)
def test_no_part_of_another_message_repeats_a_withheld_line(part: object) -> None:
    clearance = Clearance()
    clearance.withhold("block:human", "local", LINE)
    original = message("m", "assistant", TextPart("Before."), part)
    (cleared,) = clearance.messages([original], CLOUD)
    assert "4711" not in repr(cleared)
    assert "AAAA" not in repr(cleared)
    assert cleared.text.startswith("Before.")
    assert clearance.withheld["message:m"] == 1
    assert LINE not in clearance.text(f"Hello.\n{LINE.upper()}", CLOUD).casefold()
    local = Destination("vllm", is_local=True)
    assert clearance.text(f"Hello.\n{LINE}", local) == f"Hello.\n{LINE}"
    assert [call.call_id for call in cleared.tool_calls] == [
        call.call_id for call in original.tool_calls
    ]
    # The user's message of this turn is sent as it is.
    exempt = Clearance(texts=clearance.texts, exempt=frozenset(["m"]))
    assert exempt.messages([original], CLOUD) == [original]


def test_parts_without_a_forbidden_line_stay() -> None:
    clearance = Clearance()
    clearance.withhold("block:human", "local", LINE)
    picture = ImagePart("image/png", "AAAA", text="A cat")
    result = ToolReturnPart("call-1", "note", "success", "Done.", pictures=(picture,))
    call = ToolCallPart("call-1", "note", '{"gate": "closed"}')
    messages = [message("m", "tool", picture, result, ReasoningPart("Hm."), TextPart("Hi."), call)]
    assert clearance.messages(messages, CLOUD) == messages


def test_what_a_destination_may_read_is_recorded() -> None:
    clearance = Clearance()
    assert clearance.record(CLOUD) == {}
    assert clearance.may_read(CLOUD, "block:free", None, "Free.")
    assert clearance.record(CLOUD) == {}
    assert clearance.may_read(CLOUD, "block:open", "openai", "Open.")
    assert not clearance.may_read(CLOUD, "block:secret", "local", "One.\n\nTwo.")
    assert not clearance.may_read(CLOUD, "block:blank", "local", " ")
    question = message("m-1", "user", TextPart(SECRET), egress="openai")
    answer = message("m-2", "assistant", TextPart("An answer of some words."), egress="openai")
    secret = message("m-3", "user", TextPart("A.\nB."), TextPart("C."), egress="local")
    *_, withheld = clearance.messages([question, answer, secret], CLOUD)
    assert withheld.text == "[1 message withheld from openai by an egress policy]"
    assert withheld.egress is None
    assert clearance.record(CLOUD) == {
        "destination": "openai",
        "is_local": False,
        "shown": ["block:open", "message:m-1", "message:m-2"],
        "withheld": {"block:blank": 1, "block:secret": 2, "message:m-3": 3},
        "label": [["openai"]],
    }
    # An answer repeats common phrases, so it is recognized by its sources instead.
    assert clearance.spills("some words in an answer of some words", None) is None
    assert clearance.spills("the gate code is", None) == "message:m-1"


def test_messages_without_labels_are_returned_unchanged() -> None:
    messages = [message("m", "user", TextPart("Hello."))]
    assert Clearance().messages(messages, CLOUD) is messages
