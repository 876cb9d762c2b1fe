import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.errors import Invalid
from ricordo.features.typed_memory.schemas import brackets

# Characters with a meaning in the format, which are drawn more often than others.
TEXT = st.text(
    alphabet=st.one_of(st.sampled_from("|;,[]\\\n\r\t n.aZéß語🙂\u2028\x00"), st.characters()),
    max_size=30,
)
SEPARATORS = st.sampled_from(["|", ",", ";"])


@given(st.lists(TEXT, min_size=1), SEPARATORS)
def test_joined_values_split_back_unchanged(values: list[str], separator: str) -> None:
    cleaned = [brackets.clean(value) for value in values]

    assert brackets.split(brackets.join(cleaned, separator), separator) == cleaned


def test_only_separators_line_breaks_and_backslashes_are_escaped() -> None:
    for values, separator, text in (
        (["Reads, writes", "a|b"], ";", "Reads, writes; a|b"),
        (["Reads, writes", "a;b"], ",", "Reads\\, writes, a;b"),
        (["a|b", "c"], "|", "a\\|b | c"),
        (["one\ntwo", "C:\\new"], ";", "one\\ntwo; C:\\\\new"),
    ):
        assert brackets.join(values, separator) == text
        assert brackets.split(text, separator) == values
    # A backslash before another character is an ordinary backslash.
    assert brackets.split("C:\\temp; \\,; \\", ";") == ["C:\\temp", "\\,", "\\"]


@pytest.mark.parametrize("value", [None, 5, b"bytes", ["text"]])
def test_values_that_are_not_text_are_refused(value: object) -> None:
    with pytest.raises(Invalid, match=type(value).__name__):
        brackets.clean(value)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match=type(value).__name__):
        brackets.read_lines(value, ("TASK",))  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="Put it into a list"):
        brackets.clean_all("one text")


@given(
    st.lists(
        st.one_of(
            TEXT, TEXT.map(lambda text: f"[TASK] {text}"), TEXT.map(lambda text: f"\\[TASK]{text}")
        )
    )
)
def test_untagged_lines_are_kept_even_if_they_look_tagged(
    lines: list[str],
) -> None:
    cleaned = brackets.clean_lines(lines)

    found, others = brackets.read_lines(
        "\n".join(brackets.write_lines(cleaned, ("TASK",))), ("TASK",)
    )

    assert (found, others) == ({}, cleaned)
