"""Reading LoCoMo's format and counting results, on a small invented conversation."""

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench import locomo

SAMPLE: dict[str, Any] = {
    "sample_id": 7,
    "conversation": {
        "speaker_a": "Ida",
        "speaker_b": "Otto",
        "session_2_date_time": "2:05 pm on 3 March, 2022",
        "session_2": [{"speaker": "Otto", "dia_id": "D2:1", "text": "The kiln is fixed."}],
        "session_10_date_time": "9:00 am on 4 March, 2022",
        "session_10": [{"speaker": "Ida", "dia_id": "D10:1", "text": "Good."}],
        "session_1_date_time": "2:00 pm on 3 March, 2022",
        "session_1": [
            {
                "speaker": "Ida",
                "dia_id": "D1:1",
                "text": "I fired a bowl.",
                "blip_caption": "a blue bowl",
            },
            *({"speaker": "Otto", "dia_id": f"D1:{n}", "text": f"Turn {n}."} for n in range(2, 10)),
        ],
    },
    "qa": [
        {"question": "What did Ida fire?", "category": 4, "evidence": ["D1:1"]},
        {"question": "And what else?", "category": 1, "evidence": ["D:1:02; D2:01", "D1:99"]},
        {"question": "Who is the king?", "category": 5, "evidence": []},
        {"question": "What is missing?", "category": 2, "evidence": ["D4:4"]},
        {"question": "Nothing said of it?", "category": 3},
    ],
}


def read(folder: Path, **changed: Any) -> locomo.Conversation:
    file = folder / "made-up.json"
    file.write_text(
        json.dumps([SAMPLE | {"conversation": SAMPLE["conversation"] | changed}]), "utf-8"
    )
    (only,) = locomo.read(file)
    return only


def test_turns_are_read_in_session_order_and_questions_with_their_evidence(
    tmp_path: Path,
) -> None:
    conversation = read(tmp_path)
    assert (conversation.id, conversation.speakers) == ("7", ("Ida", "Otto"))
    ids = [[turn.id for turn in session] for session in conversation.sessions()]
    assert ids == [[f"D1:{n}" for n in range(1, 10)], ["D2:1"], ["D10:1"]]
    first = conversation.turns[0]
    assert (first.speaker, first.session) == ("Ida", 1)
    assert first.text == "I fired a bowl. [shared a photo: a blue bowl]"
    times = [turn.said_at for turn in conversation.turns]
    assert times == sorted(set(times))
    assert times[0] == datetime(2022, 3, 3, 14, tzinfo=UTC)
    assert times[1] - times[0] == timedelta(seconds=30)  # five minutes for nine turns and a pause
    assert times[-2:] == [
        datetime(2022, 3, 3, 14, 5, tzinfo=UTC),
        datetime(2022, 3, 4, 9, tzinfo=UTC),
    ]
    assert [(one.text, one.category, one.evidence) for one in conversation.questions] == [
        ("What did Ida fire?", 4, frozenset({"D1:1"})),
        ("And what else?", 1, frozenset({"D1:2", "D2:1"})),
    ]
    with pytest.raises(ValueError, match="two is no id of a turn"):
        read(tmp_path, session_2=[{"speaker": "Otto", "dia_id": "two", "text": "Hm."}])


def test_recall_and_ndcg_are_computed_from_the_ranks_of_the_evidence() -> None:
    evidence = frozenset({"a", "b"})
    assert [locomo.recall(["x", "a", "y", "b"], evidence, first) for first in (1, 2, 3, 4)] == [
        0,
        0.5,
        0.5,
        1,
    ]
    assert locomo.ndcg(["b", "a", "x"], evidence) == 1
    second = (1 / math.log2(3) + 1 / math.log2(4)) / (1 + 1 / math.log2(3))
    assert locomo.ndcg(["x", "a", "b"], evidence) == pytest.approx(second)
    assert locomo.ndcg(["x"] * 10 + ["a"], evidence) == 0
    assert locomo.ndcg(["a"], evidence, first=1) == 1
