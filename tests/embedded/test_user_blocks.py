"""`ricordo.memory.UserBlocks`: a user's memory, read and decided by a program."""

from datetime import UTC, datetime

import letta_client
import pytest
from letta_client import Letta

from ricordo import memory


def test_a_proposal_waits_until_the_user_approves_it(client: Letta) -> None:
    blocks = memory.UserBlocks(client, "ada")
    block = blocks.write("human", "Her name is Ada.", message="Told by herself")
    assert isinstance(block, memory.UserBlock)
    proposal = blocks.propose(
        "human",
        "Her name is Ada Lovelace.",
        old="Her name is Ada.",
        reasoning="She signed so.",
        agent_id="tutor",
    )
    assert blocks.read("human").body == "Her name is Ada."
    assert [(waiting.label, waiting.pending) for waiting in blocks.read_all()] == [("human", 1)]
    assert blocks.proposals() == [proposal]
    assert (proposal.author, proposal.author_kind) == ("tutor", "agent")
    assert "+Her name is Ada Lovelace." in proposal.diff
    decided = blocks.approve(proposal)
    assert decided.status == "approved"
    assert blocks.read("human").version == decided.version
    assert blocks.read("human").body == "Her name is Ada Lovelace."
    assert blocks.proposals() == []


def test_rejecting_a_proposal_keeps_the_block_and_its_reason(client: Letta) -> None:
    blocks = memory.UserBlocks(client, "grace")
    blocks.write("likes", "Tea.")
    proposal = blocks.propose("likes", "Coffee.", old="Tea.", reasoning="A guess.")
    rejected = blocks.reject(proposal, reason="Never coffee.")
    assert (rejected.status, rejected.note) == ("rejected", "Never coffee.")
    assert blocks.read("likes").body == "Tea."
    assert blocks.proposals("likes", status="rejected") == [rejected]


def test_approving_with_another_text_stores_that_text(client: Letta) -> None:
    blocks = memory.UserBlocks(client, "alan")
    proposal = blocks.propose("home", "Lives in London.", reasoning="Said so.")
    blocks.approve(proposal, body="Lives near London.")
    assert blocks.read("home").body == "Lives near London."


def test_the_history_has_each_version_with_its_author_and_text(client: Letta) -> None:
    blocks = memory.UserBlocks(client, "emmy")
    for number in range(1, 6):
        blocks.write("plan", f"Step {number}.", message=f"Reason {number}")
    versions = blocks.history("plan")
    assert [version.message for version in versions] == [f"Reason {n}" for n in (5, 4, 3, 2, 1)]
    assert all(version.author == "emmy" for version in versions)
    assert all(version.timestamp <= datetime.now(UTC) for version in versions)
    assert blocks.history("plan", limit=2, before=versions[1].sha) == versions[2:4]
    assert blocks.body_at("plan", versions[3].sha) == "Step 2."
    restored = blocks.restore("plan", versions[3].sha, message="Back")
    assert restored.body == "Step 2."
    assert blocks.history("plan")[0].message == "Back"


def test_an_edit_of_an_older_version_is_merged_or_refused_by_lines(client: Letta) -> None:
    blocks = memory.UserBlocks(client, "mary")
    first = blocks.write("list", "one\ntwo\nthree")
    blocks.write("list", "ONE\ntwo\nthree")
    merged = blocks.write("list", "one\ntwo\nTHREE", version=first.version)
    assert isinstance(merged, memory.UserBlock)
    assert merged.body == "ONE\ntwo\nTHREE"
    with pytest.raises(letta_client.ConflictError):
        blocks.write("list", "1\ntwo\nthree", version=first.version)


def test_a_missing_block_raises_the_clients_not_found_error(client: Letta) -> None:
    blocks = memory.UserBlocks(client, "ada")
    with pytest.raises(letta_client.NotFoundError, match="no memory block"):
        blocks.read("nothing")
    with pytest.raises(letta_client.NotFoundError, match="no user"):
        memory.UserBlocks(client, "nobody here").read_all()


def test_a_deleted_block_keeps_its_history(client: Letta) -> None:
    blocks = memory.UserBlocks(client, "edsger")
    blocks.write("notes", "Writes by hand.")
    blocks.delete("notes", message="No longer")
    assert blocks.read_all() == []
    newest = blocks.history("notes")[0]
    assert (newest.message, newest.is_deleted) == ("No longer", True)


def test_a_block_is_read_and_written_as_markdown_and_as_toml(client: Letta) -> None:
    blocks = memory.UserBlocks(client, "barbara")
    blocks.write("likes", "Tea.")
    for format, changed in (("markdown", "Coffee."), ("toml", "Rain.")):
        text = blocks.read_as("likes", format)
        before = blocks.read("likes").body
        blocks.write_as("likes", text.replace(before, changed), format, message=f"As {format}")
        assert (blocks.read("likes").body, blocks.history("likes")[0].message) == (
            changed,
            f"As {format}",
        )
    with pytest.raises(letta_client.BadRequestError, match="Line"):
        blocks.write_as("likes", "body = ", "toml")
