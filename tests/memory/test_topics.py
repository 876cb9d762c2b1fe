"""Topics of "Never remember": lines that belong to a topic, and lines that do not."""

import pytest

from ricordo.memory.topics import TOPICS, topic_of
from ricordo.memory.unwanted import Rules

ABOUT = {
    "health": ("Has asthma.", "Was in hospital in May.", "Takes medication.", "Is depressed."),
    "religion": ("Goes to church on Sundays.", "Is a Muslim.", "Prays five times a day."),
    "politics": ("Votes for the Greens.", "Ran in an election.", "Is a Democrat.", "Is left-wing."),
    "money": ("Earns little.", "Has debts.", "Her salary is 900 euros.", "Pays no taxes."),
    "relationships": ("Has a girlfriend.", "Is divorced.", "Her husband is a cook."),
    "sexuality": ("Is gay.", "Came out as bisexual."),
    "family": ("Her mother is a nurse.", "Has two brothers.", "Grandparents live in Rome."),
    "where I live": ("The address is Via Roma 1.", "Wohnt in Ulm.", "Has a new apartment."),
    "crime": ("Was arrested once.", "Called the police.", "Spent a year in prison."),
}
OTHER = (
    "Plays chess.",
    "Likes tea.",
    "Prefers short answers.",
    "Is writing an essay on the sea.",
    "Loves maths and football.",
    "Works best in the morning.",
)


@pytest.mark.parametrize("topic", TOPICS)
def test_only_lines_about_a_topic_are_refused(topic: str) -> None:
    for rule in (topic, f"topic: {topic}", f"- Topic:  {topic.upper()}."):
        rules = Rules.of_text(rule)
        assert [line for line in ABOUT[topic] if not rules.refuse("", line)] == []
        assert [line for line in OTHER if rules.refuse("", line)] == []
    assert not Rules.of_text(topic).refuse(ABOUT[topic][0], f"{ABOUT[topic][0]}\nPlays chess.")


def test_a_rule_about_a_line_is_no_topic() -> None:
    assert topic_of("I have asthma") is None
    assert topic_of("my health") == "health"
    assert topic_of("Thema: Gesundheit") == "health"
