import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.errors import Invalid
from ricordo.features.typed_memory.schemas.rotation import (
    MAX_CHARS,
    THRESHOLD,
    AdaptiveRotation,
    AggressiveRotation,
    ContextMetrics,
    PreservativeRotation,
    RotationStrategy,
    default_max_chars,
    default_threshold,
)

TEXT = (
    "She waves.\n[USER] Alice | Student\n[STATE] active_task\n[CONTEXT] Discussed "
    "identity\n[TASK] Essay\nShe left."
)


def metrics_with_usage(share: float) -> ContextMetrics:
    return ContextMetrics(
        persona_chars=0, human_chars=round(1000 * share), persona_max=1000, human_max=1000
    )


def test_usage_is_a_share_of_each_limit_and_of_the_total() -> None:
    metrics = ContextMetrics(persona_chars=300, human_chars=900, persona_max=1500, human_max=1000)

    assert (metrics.persona_usage, metrics.human_usage, metrics.total_usage) == (0.2, 0.9, 0.48)
    assert ContextMetrics(0, 3000, 0, 1500).human_usage == 1.0
    assert ContextMetrics(0, 3000, 0, 1500).persona_usage == 0.0


@pytest.mark.parametrize("kind", [AggressiveRotation, PreservativeRotation, AdaptiveRotation])
@given(
    st.one_of(st.text(), st.lists(st.text() | st.just("[TASK] x")).map("\n".join)),
    st.integers(0, 200),
)
def test_a_compressed_text_never_exceeds_the_target(
    kind: type[RotationStrategy], text: str, target: int
) -> None:
    compressed = kind().compress(text, target)

    assert len(compressed) <= target
    if len(text) <= target:
        assert compressed == text


def test_the_adaptive_threshold_rises_for_empty_and_falls_for_full_blocks() -> None:
    half_empty = [0.97, *[0.1] * 9]
    for shares, threshold in (
        (half_empty * 3, 0.95),
        (half_empty * 4, 0.95),
        ([0.92] * 100, 0.6),
        ([0.1] * 30 + [0.7] * 30, 0.8),
    ):
        strategy = AdaptiveRotation()
        for share in shares:
            strategy.should_rotate(metrics_with_usage(share))
        assert (strategy.threshold, strategy.base_threshold) == (threshold, 0.8)


def test_each_strategy_compresses_to_its_most_important_parts() -> None:
    for kind, text, target, kept in (
        (AggressiveRotation, "0123456789", 7, "...6789"),
        (AggressiveRotation, "0123456789", 3, "789"),
        (
            PreservativeRotation,
            TEXT,
            100,
            (
                "[USER] Alice | Student\n[STATE] active_task\n[CONTEXT] Discussed identity\n[TASK] "
                "Essay\nShe waves."
            ),
        ),
        (PreservativeRotation, "[TASK] A very long task", 15, "[TASK] A ver..."),
        (AdaptiveRotation, TEXT, 12, "[TASK] Essay"),
        (
            AdaptiveRotation,
            TEXT,
            64,
            "[USER] Alice | Student\n[CONTEXT] Discussed identity\n[TASK] Essay",
        ),
        (AdaptiveRotation, "[TASK] A very long task", 15, "[TASK] A ver..."),
    ):
        assert kind().compress(text, target) == kept
    with pytest.raises(Invalid):
        AdaptiveRotation().compress("text", -1)


def test_defaults_come_from_the_environment_and_invalid_values_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (MAX_CHARS, THRESHOLD):
        monkeypatch.setenv(name, "")
    assert (default_max_chars(), default_threshold()) == (1500, 0.8)
    monkeypatch.setenv(MAX_CHARS, "900")
    monkeypatch.setenv(THRESHOLD, "0.55")
    strategy = AdaptiveRotation()
    assert (default_max_chars(), strategy.threshold) == (900, 0.55)
    for _ in range(40):
        strategy.should_rotate(metrics_with_usage(1.0))
    assert strategy.threshold == 0.55  # The configured threshold is beyond the limit.
    wrong = [(MAX_CHARS, default_max_chars, value) for value in ("many", "12.5", "-5", "149")]
    wrong += [
        (THRESHOLD, default_threshold, value) for value in ("high", "0", "1.1", "-1", "nan", "inf")
    ]  # type: ignore[list-item]
    for name, read, value in wrong:
        monkeypatch.setenv(name, value)
        with pytest.raises(Invalid):
            read()
    with pytest.raises(Invalid):
        AggressiveRotation(0)
