import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.errors import Invalid
from ricordo.features.typed_memory.rotation import (
    AdaptiveRotation,
    AggressiveRotation,
    ContextMetrics,
    PreservativeRotation,
    RotationStrategy,
)

STRATEGIES: tuple[type[AggressiveRotation | PreservativeRotation | AdaptiveRotation], ...] = (
    AggressiveRotation,
    PreservativeRotation,
    AdaptiveRotation,
)
TEXT = "\n".join(
    [
        "She waves.",
        "[USER] Alice | Student",
        "[STATE] active_task",
        "[CONTEXT] Discussed identity",
        "[TASK] Essay",
        "She left.",
    ]
)


def used(share: float) -> ContextMetrics:
    """A human block that is so full, beside an empty persona."""
    return ContextMetrics(persona_chars=0, human_chars=round(1000 * share), persona_max=1000, human_max=1000)


def test_usage_is_a_share_of_each_limit_and_of_both() -> None:
    metrics = ContextMetrics(persona_chars=300, human_chars=900, persona_max=1500, human_max=1000)

    assert (metrics.persona_usage, metrics.human_usage, metrics.total_usage) == (0.2, 0.9, 0.48)


def test_usage_stays_between_nothing_and_all() -> None:
    assert ContextMetrics(0, 3000, 0, 1500).human_usage == 1.0
    assert ContextMetrics(0, 3000, 0, 1500).persona_usage == 0.0
    assert ContextMetrics(5, 0, 0, 0).total_usage == 1.0
    assert ContextMetrics(-5, 0, 10, 10).persona_usage == 0.0


@pytest.mark.parametrize(
    ("strategy", "threshold"), [(AggressiveRotation(), 0.7), (PreservativeRotation(), 0.9), (AdaptiveRotation(), 0.8)]
)
def test_a_strategy_rotates_above_its_threshold_and_not_at_it(strategy: RotationStrategy, threshold: float) -> None:
    assert strategy.threshold == threshold
    assert not strategy.should_rotate(used(threshold))
    assert strategy.should_rotate(used(threshold + 0.01))


def test_a_full_persona_is_no_reason_to_rotate_the_human() -> None:
    full = ContextMetrics(persona_chars=1500, human_chars=100, persona_max=1500, human_max=1500)
    assert not any(kind().should_rotate(full) for kind in STRATEGIES)


@pytest.mark.parametrize("kind", STRATEGIES)
@given(st.one_of(st.text(), st.lists(st.text() | st.just("[TASK] x")).map("\n".join)), st.integers(0, 200))
def test_a_compressed_text_is_never_longer_than_asked_for(kind: type[RotationStrategy], text: str, target: int) -> None:
    compressed = kind().compress(text, target)

    assert len(compressed) <= target
    if len(text) <= target:
        assert compressed == text


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("target", range(6))
def test_very_little_room_is_kept_too(kind: type[RotationStrategy], target: int) -> None:
    assert len(kind().compress("[TASK] Essay", target)) <= target


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_negative_room_is_refused(kind: type[RotationStrategy]) -> None:
    with pytest.raises(Invalid):
        kind().compress("text", -1)


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("threshold", [0, -0.1, 1.01, float("nan")])
def test_a_threshold_that_cannot_be_is_refused(kind: type[AggressiveRotation], threshold: float) -> None:
    with pytest.raises(Invalid):
        kind(threshold)


def test_the_aggressive_one_keeps_the_end() -> None:
    assert AggressiveRotation().compress("0123456789", 7) == "...6789"
    assert AggressiveRotation().compress("0123456789", 3) == "789"
    assert AggressiveRotation().compress("0123456789", 0) == ""


def test_the_preservative_one_keeps_lines_with_a_tag_before_others() -> None:
    assert PreservativeRotation().compress(TEXT, 100).split("\n") == [
        "[USER] Alice | Student",
        "[STATE] active_task",
        "[CONTEXT] Discussed identity",
        "[TASK] Essay",
        "She waves.",
    ]


def test_the_adaptive_one_keeps_the_most_important_lines_in_their_order() -> None:
    compress = AdaptiveRotation().compress
    assert compress(TEXT, 12) == "[TASK] Essay"
    assert compress(TEXT, 35) == "[USER] Alice | Student\n[TASK] Essay"
    assert compress(TEXT, 64) == "[USER] Alice | Student\n[CONTEXT] Discussed identity\n[TASK] Essay"
    assert compress(TEXT, 94).endswith("[TASK] Essay\nShe left.")


def test_a_line_that_does_not_fit_is_cut() -> None:
    assert AdaptiveRotation().compress("[TASK] A very long task", 15) == "[TASK] A ver..."
    assert PreservativeRotation().compress("[TASK] A very long task", 15) == "[TASK] A ver..."


def test_a_threshold_rises_where_a_block_is_rotated_though_it_stands_half_empty() -> None:
    strategy = AdaptiveRotation()
    for _ in range(3):
        for share in (0.97, *[0.1] * 9):
            strategy.should_rotate(used(share))
    assert strategy.threshold == 0.95
    for share in (0.97, *[0.1] * 9):
        strategy.should_rotate(used(share))
    assert (strategy.threshold, strategy.base_threshold) == (0.95, 0.8)


def test_a_threshold_falls_where_a_block_is_nearly_full_all_the_time() -> None:
    strategy = AdaptiveRotation()
    for _ in range(100):
        strategy.should_rotate(used(0.92))
    assert strategy.threshold == 0.6


def test_a_block_that_was_never_rotated_or_is_used_well_changes_nothing() -> None:
    strategy = AdaptiveRotation()
    for share in (*[0.1] * 30, *[0.7] * 30):
        strategy.should_rotate(used(share))
    assert strategy.threshold == 0.8


def test_the_bases_default_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHIVAL_ROTATION_THRESHOLD", "0.55")
    strategy = AdaptiveRotation()
    assert strategy.threshold == 0.55
    for _ in range(40):
        strategy.should_rotate(used(1.0))
    assert strategy.threshold == 0.55  # somebody's wish lies further out than the bound
