"""Conversations and questions in LoCoMo's format, and the recall of a search's evidence.

The data has a separate licence and is not part of this repository; any other file of the same
format works too.
"""

import json
import lzma
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
# A question of the last category asks about something that was never said, so its results are
# reported separately.
ANSWERABLE = (1, 2, 3, 4)
_EVIDENCE = re.compile(r"D?(\d+):0*(\d+)")
_A_TURN = timedelta(minutes=1)


@dataclass(frozen=True)
class Turn:
    """A turn of one speaker.

    `id` is LoCoMo's own, such as D3:14. The first speaker is the user unless the data says
    otherwise.
    """

    id: str
    session: int
    speaker: str
    text: str
    said_at: datetime
    role: str = "user"


@dataclass(frozen=True)
class Question:
    """A question, and the ids of the turns that answer it.

    `kind` is given by the data; otherwise it is the name of the category.
    """

    text: str
    category: int
    evidence: frozenset[str]
    kind: str = ""


@dataclass(frozen=True)
class Conversation:
    """Two people's turns in order, and questions whose evidence is among them."""

    id: str
    speakers: tuple[str, str]
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]
    unanswerable: tuple[str, ...] = ()

    def said_by(self, role: str) -> frozenset[str]:
        """Return the ids of the turns of this role."""
        return frozenset(turn.id for turn in self.turns if turn.role == role)

    def sessions(self) -> list[list[Turn]]:
        """Return the turns of each session, in order."""
        grouped: dict[int, list[Turn]] = {}
        for turn in self.turns:
            grouped.setdefault(turn.session, []).append(turn)
        return list(grouped.values())


def read(path: Path) -> list[Conversation]:
    """Return the conversations of a file.

    Questions are left out if their evidence names no turn.
    """
    content = path.read_bytes()
    if path.suffix == ".xz":
        content = lzma.decompress(content)
    return [_conversation(sample) for sample in json.loads(content)]


def recall(found: Sequence[str], evidence: frozenset[str], first: int) -> float:
    """Return the share of the evidence among the first results."""
    return len(evidence & set(found[:first])) / len(evidence)


def ndcg(found: Sequence[str], evidence: frozenset[str], first: int = 10) -> float:
    """Return how early the evidence is among the first results: 1 if nothing comes before it."""
    gained = sum(
        1 / math.log2(place + 2) for place, id in enumerate(found[:first]) if id in evidence
    )
    return gained / sum(1 / math.log2(place + 2) for place in range(min(first, len(evidence))))


def _conversation(sample: dict[str, Any]) -> Conversation:
    said = sample["conversation"]
    numbers = sorted(
        int(match[1]) for key in said if (match := re.fullmatch(r"session_(\d+)", key))
    )
    starts = [_moment(said[f"session_{number}_date_time"]) for number in numbers]
    turns: list[Turn] = []
    for place, number in enumerate(numbers):
        session, later = (
            said[f"session_{number}"],
            [start for start in starts if start > starts[place]],
        )
        # A long session must not overlap the next one.
        pace = min([_A_TURN, *((start - starts[place]) / (len(session) + 1) for start in later)])
        turns += [
            _turn(turn, number, starts[place] + index * pace, said["speaker_a"])
            for index, turn in enumerate(session)
        ]
    known = {_key(turn.id): turn.id for turn in turns}
    questions = [_question(item, known) for item in sample["qa"]]
    return Conversation(
        str(sample["sample_id"]),
        (said["speaker_a"], said["speaker_b"]),
        tuple(turns),
        tuple(question for question in questions if question.evidence),
        tuple(item["question"] for item in sample["qa"] if item.get("kind") == "abstention"),
    )


def _turn(turn: dict[str, Any], session: int, said_at: datetime, user: str) -> Turn:
    photo = f" [shared a photo: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
    role = turn.get("role") or ("user" if turn["speaker"] == user else "assistant")
    return Turn(turn["dia_id"], session, turn["speaker"], f"{turn['text']}{photo}", said_at, role)


def _question(item: dict[str, Any], known: dict[tuple[int, int], str]) -> Question:
    # Some evidence is malformed, as "D:11:26" or several ids in one text.
    named = {
        (int(m[1]), int(m[2]))
        for text in item.get("evidence", ())
        for m in _EVIDENCE.finditer(text)
    }
    return Question(
        item["question"],
        item["category"],
        frozenset(known[key] for key in named if key in known),
        item.get("kind") or CATEGORIES[item["category"]],
    )


def _key(id: str) -> tuple[int, int]:
    match = _EVIDENCE.fullmatch(id)
    if match is None:
        raise ValueError(f"{id} is no id of a turn; they look like D3:14.")
    return int(match[1]), int(match[2])


def _moment(text: str) -> datetime:
    return datetime.strptime(text, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
