"""What is written into a Dolt history besides rows: names of branches, and messages that tie its commits to versions. Pure.

The last lines of a commit name the version that it is, so that one which was made just before a kill is found again.
"""

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ricordo.domain.clock import to_datetime
from ricordo.domain.version import BlockVersion, Proposal

_TRAILER = re.compile(r"(?:\A|\n\n)Ricordo-Version: ([0-9a-f]{40}) (\d{1,18})\nRicordo-Chain: (\S+)\s*\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_LONGEST = 120  # characters of a user's or a label's part in the name of a branch
_LONGEST_REASON = 10_000


@dataclass(frozen=True, slots=True)
class Trailer:
    """Which version a commit is: its git id in hex, its number, and its chain."""

    version: str
    number: int
    chain_id: str


def version_message(last: BlockVersion, reason: str | None = None) -> str:
    shown = (last.reason if reason is None else reason).strip()[:_LONGEST_REASON]
    lines = f"Ricordo-Version: {last.id.hex()} {last.number}\nRicordo-Chain: {last.chain_id}"
    return f"{shown}\n\n{lines}" if shown else lines


def trailer_of(message: str) -> Trailer | None:
    """Which version a commit says it is; None where it says nothing. Only the very end of the message counts."""
    found = _TRAILER.search(message)
    return Trailer(found[1], int(found[2]), found[3]) if found else None


def proposal_message(proposal: Proposal) -> str:
    """What is known of a proposal, as JSON."""
    known: dict[str, Any] = {
        "proposal": proposal.id,
        "label": proposal.label,
        "new_label": proposal.new_label,
        "author": {"kind": proposal.author.kind, "id": proposal.author.id, "name": proposal.author.name},
        "reasoning": proposal.reasoning[:_LONGEST_REASON],
        "confidence": proposal.confidence,
        "base": proposal.base.hex() if proposal.base else None,
        "created_at": to_datetime(proposal.created_at).isoformat(),
        "run_id": proposal.run_id,
        "step_id": proposal.step_id,
        "is_untrusted": proposal.is_untrusted,
    }
    return json.dumps({name: value for name, value in known.items() if value is not None}, ensure_ascii=False)


def proposal_in(message: str) -> str | None:
    """The id of the proposal whose commit this is; None where it is none."""
    try:
        id = json.loads(message).get("proposal") if message.startswith("{") else None
    except ValueError:
        return None
    return id if isinstance(id, str) else None


def branch_of(user: str, proposal: Proposal) -> str:
    label = "/".join(_part(part) for part in proposal.label.split("/"))
    return f"{branches_of(user)}{_cut(label)}/{proposal.id}"


def branches_of(user: str) -> str:
    return f"agent/{_part(user)}/"


def scratch_of(user: str) -> str:
    return f"ricordo/{_part(user)}"


def date_of(at: int) -> str:
    """A time in microseconds as Dolt reads dates of commits, in whole seconds UTC."""
    return to_datetime(at).replace(microsecond=0, tzinfo=None).isoformat()


def _part(text: str) -> str:
    if _PLAIN.fullmatch(text) and not text.endswith(".lock") and not text.startswith("-"):
        return _cut(text)
    # `quote` leaves some signs alone that a branch may not hold, and dots, which it may not hold everywhere.
    return _cut(quote(text, safe="").replace(".", "%2E").replace("~", "%7E"))


def _cut(text: str) -> str:
    return re.sub(r"%.?$", "", text[:_LONGEST]).rstrip("/.")
