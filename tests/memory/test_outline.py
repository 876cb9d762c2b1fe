"""The summary without a model: what a reader needs first, in bounds, the same every time."""

from ricordo.domain.message import Message, ToolReturnPart
from ricordo.memory.summary import outline
from ricordo.prompt.transcript import heartbeat_event
from tests.seams import make
from tests.seams.stores import START

AGENT = make.agent()
BEAT = heartbeat_event("Go on.", "now")
HOUR = 3_600_000_000


def talk() -> list[Message]:
    return [
        make.message(AGENT, "My cat is called Minka.", created_at=START),
        make.message(AGENT, "A fine name.", "assistant", created_at=START + HOUR),
        make.call(AGENT, "memory_insert", created_at=START + HOUR),
        make.result(AGENT, "memory_insert", created_at=START + HOUR),
        make.call(AGENT, "web_search", created_at=START + HOUR),
        make.message(AGENT, role="tool", parts=(ToolReturnPart("call-1", "web_search", "error", "down"),)),
        make.message(AGENT, parts=(BEAT,), created_at=START + 9 * HOUR),
        make.message(AGENT, "When does the vet\nopen?", created_at=START + 2 * HOUR),
        make.message(AGENT, "At nine.", "assistant", created_at=START + 3 * HOUR),
    ]


def test_it_says_who_said_what_and_when_and_which_tools_were_called() -> None:
    said = outline(talk(), earlier="She lives in Turin.", timezone="Europe/Rome")
    assert said.startswith("(No model wrote this summary.")
    assert said.partition("\n\n")[2] == (
        "Earlier summary:\nShe lives in Turin.\n\n"
        "8 messages from 2026-01-01 01:00:00 AM CET+0100 to 2026-01-01 04:00:00 AM CET+0100. "
        "Tools called: memory_insert (1), web_search (1, 1 failed).\n\nHow the messages begin, oldest first:\n"
        "- 2026-01-01 01:00:00 AM CET+0100, user: My cat is called Minka.\n"
        "- 2026-01-01 02:00:00 AM CET+0100, agent: A fine name.\n"
        "- 2026-01-01 03:00:00 AM CET+0100, user: When does the vet open?\n"
        "- 2026-01-01 04:00:00 AM CET+0100, agent: At nine."
    )
    again = ""
    for _ in range(5):
        again = outline(talk(), earlier=again)
    assert again.count("No model wrote") == 1
    assert again.count("Earlier summary:") >= 2
    assert len(again) <= 8_000
    assert "messages from" not in outline([make.message(AGENT, parts=(BEAT,))])
    assert outline([], earlier="Before.").endswith("Earlier summary:\nBefore.")


def test_it_stays_within_its_bounds_whatever_was_said() -> None:
    many = [make.message(AGENT, f"Question {n}: " + "why " * 400) for n in range(900)]
    for longest in (0, 1, 50, 400, 1_500, 8_000, 50_000):
        said = outline(many, earlier="e" * 9_000, longest=longest)
        assert len(said) <= min(longest, 8_000), longest
    assert "older ones are left out)" in said
    assert said.splitlines()[-1].startswith("- 2026-01-01 12:00:00 AM UTC+0000, user: Question 899")
    assert len(said) > 6_000
