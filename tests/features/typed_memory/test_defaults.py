import pytest

from ricordo.errors import Invalid
from ricordo.features.typed_memory.rotation import default_max_chars, default_threshold


def test_without_a_word_blocks_have_1500_characters_and_rotate_above_80_percent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CORE_MEMORY_MAX_CHARS", "ARCHIVAL_ROTATION_THRESHOLD"):
        monkeypatch.setenv(name, "")
    assert (default_max_chars(), default_threshold()) == (1500, 0.8)


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORE_MEMORY_MAX_CHARS", "900")
    monkeypatch.setenv("ARCHIVAL_ROTATION_THRESHOLD", "0.5")
    assert (default_max_chars(), default_threshold()) == (900, 0.5)


@pytest.mark.parametrize("value", ["many", "12.5", "0", "-5", "149"])
def test_a_length_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CORE_MEMORY_MAX_CHARS", value)
    with pytest.raises(Invalid):
        default_max_chars()


@pytest.mark.parametrize("value", ["high", "0", "1.1", "-1", "nan", "inf"])
def test_a_threshold_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ARCHIVAL_ROTATION_THRESHOLD", value)
    with pytest.raises(Invalid):
        default_threshold()
