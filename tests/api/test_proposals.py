"""Proposals over HTTP: made, listed, approved, edited, rejected; and a run undone."""

from dataclasses import replace

import httpx2
import pytest
from letta_client.types import AgentState

from ricordo.api import proposals as api
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.memory import user_memory
from ricordo.memory.proposals import ProposalDraft
from ricordo.memory.proposals import propose as make_proposal
from ricordo.storage import blocks, versions
from ricordo.storage.engine.store import Transaction
from tests.api.conftest import Api
from tests.seams.http import get, ok, post, propose, put, refused

TEXT = "Name: Ada\nLikes tea.\nLives in Turin.\n"


@pytest.fixture
def ada(http: httpx2.Client) -> str:
    user = new_id("ada")
    put(http, user, "student", TEXT)
    return user


def test_a_new_proposal_is_listed_and_does_not_change_the_block(
    http: httpx2.Client, ada: str
) -> None:
    before = get(http, ada, "student")

    edit = {"old_string": "tea", "new_string": "green tea", "reasoning": "She ordered some."}
    made = post(http, ada, "student/propose", **edit, confidence=0.75, agent_id="course-tutor")

    assert (made["status"], made["agent_id"], made["author"]) == (
        "open",
        "course-tutor",
        "course-tutor",
    )
    assert (made["reasoning"], made["confidence"], made["base"]) == (
        "She ordered some.",
        0.75,
        before["version"],
    )
    assert "-Likes tea.\n+Likes green tea.\n" in made["diff"]
    assert made["expires_at"] > made["created_at"]
    assert get(http, ada, "student") == before | {"pending": 1}
    assert [one["pending"] for one in ok(http.get(f"/users/{ada}/blocks"))] == [1]
    assert get(http, ada, "student/diffs") == ok(http.get(f"/users/{ada}/diffs")) == [made]
    assert len(get(http, ada, "student/history")) == 1


def test_a_proposal_of_a_local_agent_shows_the_agents_name(
    http: httpx2.Client, ada: str, agent: AgentState
) -> None:
    propose(http, ada, "student", "tea", "coffee", agent_id=agent.id)
    propose(http, ada, "student", "Turin", "Rome", agent_id=new_id("agent"))
    propose(http, ada, "student", "Ada", "Ada L.")

    assert [one["author"] for one in get(http, ada, "student/diffs")][::2] == ["agent", "Nina"]


IMPOSSIBLE_EDITS: list[tuple[dict[str, object], int, str]] = [
    ({"old_string": "coffee", "new_string": "tea"}, 400, "does not occur"),
    ({"old_string": "i", "new_string": "o"}, 400, "replace_all"),
    ({"old_string": "tea", "new_string": "tea"}, 400, "changes nothing"),
    ({"old_string": "", "new_string": "tea"}, 400, "empty"),
    ({"old_string": "tea", "new_string": "x" * 200_000}, 422, "limit"),
    ({"old_string": "tea", "new_string": "coffee", "confidence": 1.5}, 422, "confidence"),
    ({"old_string": "tea", "new_string": "a\0"}, 422, "NUL"),
    ({"old_string": "tea"}, 422, "new_string"),
]


def test_an_invalid_edit_is_not_proposed(http: httpx2.Client, ada: str) -> None:
    for edit, status, said in IMPOSSIBLE_EDITS:
        answer = http.post(f"/users/{ada}/blocks/student/propose", json={"reasoning": "", **edit})
        assert said in refused(answer, status), edit
    assert get(http, ada, "student/diffs") == []
    ok(http.patch(f"/users/{ada}/blocks/student", json={"policy": "read_only"}))
    edit = {"old_string": "tea", "new_string": "coffee", "reasoning": ""}
    assert "read-only" in refused(http.post(f"/users/{ada}/blocks/student/propose", json=edit), 403)


def test_hidden_text_is_reported_refused_from_agents_and_removed_by_an_approval(
    api: Api, ada: str
) -> None:
    http = api.http
    hidden = "green\u200b\U000e0041 tea"
    edit = {"old_string": "tea", "new_string": hidden, "reasoning": "She said so."}
    answer = http.post(
        f"/users/{ada}/blocks/student/propose", json={**edit, "agent_id": "course-tutor"}
    )
    assert "invisible characters" in refused(answer, 400)

    def by_teacher(tx: Transaction) -> str:
        owned = user_memory.open_memory(tx, Scope(), ada)
        block = user_memory.require(tx, owned, "student")
        text = block.value.replace("tea", hidden)
        draft = ProposalDraft(owned.chain.id, "student", text, block)
        return make_proposal(tx, draft, ChangeMetadata(Actor("user", "teacher-1"))).id

    for keeps, text in ((False, "Likes green tea."), (True, f"Likes {hidden}.")):
        put(http, ada, "student", TEXT)
        proposal = api.server.write(by_teacher)
        (made,) = get(http, ada, "student/diffs")
        assert made["has_hidden_text"]
        post(http, ada, f"student/diffs/{proposal}/approve", keeps_hidden_text=keeps)
        block = get(http, ada, "student")
        assert (text in block["body"], block["has_hidden_text"]) == (True, keeps)
    cleaned = ok(http.patch(f"/users/{ada}/blocks/student", json={"removes_hidden_text": True}))
    assert ("Likes green tea." in cleaned["body"], cleaned["has_hidden_text"]) == (True, False)


def test_an_agent_cannot_repeat_a_proposal_that_the_owner_rejected(
    http: httpx2.Client, ada: str
) -> None:
    def proposed(text: str, agent: str = "course-tutor") -> httpx2.Response:
        edit = {"old_string": "Likes tea.", "new_string": f"Likes tea.\n{text}", "reasoning": ""}
        return http.post(f"/users/{ada}/blocks/student/propose", json=edit | {"agent_id": agent})

    first = ok(proposed("Has an exam in linear algebra on 3 May."))
    post(http, ada, f"student/diffs/{first['id']}/reject")
    for again in (
        "Has an exam in linear algebra on 3 May.",
        "- has an exam in linear algebra on 3 May",
        "The student has an exam in linear algebra on 3 May!",
        "She has the linear algebra exam on 3 May",
        "Exam in linear algebra: on 3 May",
    ):
        assert "declined this change" in refused(proposed(again), 409), again
    for other in (
        "Has an exam in linear algebra on 4 May.",
        "Has no exam in linear algebra on 3 May.",
        "Has an exam in French history on 3 May.",
    ):
        ok(proposed(other))
    ok(proposed("Has an exam in linear algebra on 3 May.", "another-tutor"))


def test_a_proposal_can_replace_all_matches_or_create_a_block(
    http: httpx2.Client, ada: str
) -> None:
    many = post(
        http, ada, "student/propose", old_string="i", new_string="I", reasoning="", replace_all=True
    )
    assert many["body"] == TEXT.replace("i", "I")

    new = propose(http, ada, "journey", "", "Began today.")
    refused(http.get(f"/users/{ada}/blocks/journey"), 404)
    done = post(http, ada, f"journey/diffs/{new}/approve")
    assert (done["block"]["body"], done["block"]["policy"]) == ("Began today.", "propose")
    assert done["proposal"]["base_body"] is None


def test_an_approved_version_names_the_agent_as_author_and_its_approver(
    http: httpx2.Client, ada: str
) -> None:
    proposal = propose(http, ada, "student", "tea", "green tea", agent_id="tutor")

    done = post(http, ada, f"student/diffs/{proposal}/approve")

    assert (done["id"], done["status"], done["proposal"]["status"]) == (
        proposal,
        "approved",
        "approved",
    )
    assert done["block"] == get(http, ada, "student")
    assert (done["block"]["body"], done["block"]["pending"]) == (
        TEXT.replace("tea", "green tea"),
        0,
    )
    newest = get(http, ada, "student/history")[0]
    assert (newest["sha"], newest["author"], newest["message"]) == (
        done["version"],
        "tutor",
        "She said so.",
    )
    assert (newest["approved_by"], newest["proposal_id"]) == (
        done["proposal"]["resolved_by"],
        proposal,
    )
    assert get(http, ada, "student/diffs") == []
    assert [one["id"] for one in get(http, ada, "student/diffs", status="approved")] == [proposal]
    for again in ("approve", "reject"):
        assert "approved already" in refused(
            http.post(f"/users/{ada}/blocks/student/diffs/{proposal}/{again}"), 409
        )


def test_a_rejected_proposal_stays_readable_with_the_reason(http: httpx2.Client, ada: str) -> None:
    proposal = propose(http, ada, "student", "tea", "green tea")

    done = post(http, ada, f"student/diffs/{proposal}/reject", reason="I never said that.")

    assert (done["status"], done["version"], done["block"]["body"]) == ("rejected", None, TEXT)
    (kept,) = get(http, ada, "student/diffs", status="rejected")
    assert (kept["id"], kept["note"]) == (proposal, "I never said that.")
    again = propose(http, ada, "student", "tea", "coffee")
    assert (
        ok(http.post(f"/users/{ada}/blocks/student/diffs/{again}/reject"))["proposal"]["note"]
        is None
    )


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_a_proposal_is_decided_by_the_former_label_of_its_renamed_block(
    http: httpx2.Client, ada: str, decision: str
) -> None:
    proposal = propose(http, ada, "student", "tea", "coffee")
    ok(http.patch(f"/users/{ada}/blocks/student", json={"label": "profile"}))
    refused(http.post(f"/users/{ada}/blocks/other/diffs/{proposal}/{decision}"), 404)
    decided = post(http, ada, f"student/diffs/{proposal}/{decision}")
    assert decided["block"]["label"] == "profile"
    assert ("coffee" in decided["block"]["body"]) == (decision == "approve")
    # Another block with the label is another block.
    proposal = propose(http, ada, "profile", "Turin", "Rome")
    put(http, ada, "student", "New.")
    refused(http.post(f"/users/{ada}/blocks/student/diffs/{proposal}/{decision}"), 404)


def test_a_newer_proposal_of_an_agent_supersedes_its_older_one(
    http: httpx2.Client, ada: str
) -> None:
    older = propose(http, ada, "student", "tea", "green tea", agent_id="tutor")
    other = propose(http, ada, "student", "Turin", "Rome", agent_id="coach")
    newer = propose(http, ada, "student", "tea", "black tea", agent_id="tutor")

    assert [one["id"] for one in get(http, ada, "student/diffs")] == [newer, other]
    (gone,) = get(http, ada, "student/diffs", status="superseded")
    assert (gone["id"], gone["superseded_by"]) == (older, newer)
    assert len(get(http, ada, "student/diffs", status="all")) == 3
    assert [one["id"] for one in get(http, ada, "student/diffs", limit=1, after=newer)] == [other]
    assert get(http, ada, "student/diffs", after=older) == []


def test_a_repeated_proposal_returns_the_waiting_one(http: httpx2.Client, ada: str) -> None:
    waits = propose(http, ada, "student", "Turin.\n", "Turin.\nReads.\n", agent_id="tutor")
    beside = propose(http, ada, "student", "Turin.\n", "Turin.\nHas a cat.\n", agent_id="tutor")
    edit = {
        "old_string": "Turin.\n",
        "new_string": "Turin.\nReads.",
        "reasoning": "Again",
        "agent_id": "tutor",
    }

    again = post(http, ada, "student/propose", **edit)

    assert (again["id"], again["is_repeated"], again["reasoning"]) == (waits, True, "She said so.")
    assert [(one["id"], one["is_repeated"]) for one in get(http, ada, "student/diffs")] == [
        (beside, False),
        (waits, False),
    ]
    # Line ends are normalized at the API, so the last of these equals the old text.
    for text, said in (("Turin.", "says this already"), ("Turin.\r\n", "changes nothing")):
        stands = {"old_string": "Turin.\n", "new_string": text, "reasoning": ""}
        sent = http.post(f"/users/{ada}/blocks/student/propose", json=stands)
        assert said in refused(sent, 400), repr(text)
    for id in (beside, waits):
        post(http, ada, f"student/diffs/{id}/approve")
    assert get(http, ada, "student")["body"] == TEXT + "Has a cat.\nReads.\n"


def test_an_approval_edited_by_the_owner_still_names_the_run(api: Api, ada: str) -> None:
    run = new_id("run")

    def work(tx: Transaction) -> str:
        owned = user_memory.open_memory(tx, Scope(), ada)
        block = user_memory.require(tx, owned, "student")
        draft = ProposalDraft(
            owned.chain.id, "student", block.value.replace("tea", "coffee"), block
        )
        metadata = ChangeMetadata(
            Actor("agent", "agent-1", "Nina"),
            "I heard it",
            run_id=run,
            step_id="step-1",
            is_untrusted=True,
        )
        return make_proposal(tx, draft, metadata).id

    proposal = api.server.write(work)
    post(api.http, ada, f"student/diffs/{proposal}/approve", body=TEXT.replace("tea", "espresso"))

    newest = get(api.http, ada, "student/history")[0]
    assert (newest["author"], newest["author_kind"], newest["is_untrusted"]) == (ada, "user", False)
    assert (newest["run_id"], newest["step_id"], newest["proposal_id"]) == (run, "step-1", proposal)
    # The edited text is the owner's, so it stays when the run is undone.
    done = ok(api.http.post(f"/users/{ada}/runs/{run}/undo"))
    assert (done["blocks"], get(api.http, ada, "student")["body"]) == (
        [],
        TEXT.replace("tea", "espresso"),
    )


def test_a_change_without_a_message_gets_one_generated_from_the_change(
    http: httpx2.Client, ada: str
) -> None:
    put(http, ada, "student", TEXT + "Reads.\n")
    assert get(http, ada, "student/history")[0]["message"] == 'student: + "Reads."'
    edit = {"old_string": "tea", "new_string": "rum", "reasoning": ""}
    assert post(http, ada, "student/propose", **edit)["reasoning"] == 'student: + "Likes rum."'


def test_a_conflicting_approval_returns_three_texts_and_writes_nothing(
    http: httpx2.Client, ada: str
) -> None:
    proposal = propose(http, ada, "student", "tea", "green tea")
    now = put(http, ada, "student", TEXT.replace("tea", "coffee"))
    address = f"/users/{ada}/blocks/student/diffs/{proposal}/approve"

    for _ in range(2):
        answer = http.post(address)
        assert "same lines" in refused(answer, 409)
        conflict = answer.json()["conflict"]
        assert (conflict["base"], conflict["ours"]) == (TEXT, TEXT.replace("tea", "coffee"))
        assert (conflict["theirs"], conflict["proposal_id"]) == (
            TEXT.replace("tea", "green tea"),
            proposal,
        )
        assert '"body"' in conflict["how"]
    assert get(http, ada, "student") == now | {"pending": 1}
    assert [one["status"] for one in get(http, ada, "student/diffs")] == ["conflicted"]
    assert get(http, ada, "student/diffs", status="open") == []
    settled = TEXT.replace("tea", "coffee and green tea")
    assert ok(http.post(address, json={"body": settled}))["block"]["body"] == settled
    assert get(http, ada, "student/history")[0]["author"] == ada
    assert get(http, ada, "student/diffs") == []


def test_a_bulk_decision_reports_the_outcome_of_each_proposal(
    http: httpx2.Client, ada: str
) -> None:
    put(http, ada, "journey", "Began.")
    first = propose(http, ada, "student", "tea", "green tea", agent_id="a")
    second = propose(http, ada, "student", "tea", "coffee", agent_id="b")
    third = propose(http, ada, "journey", "Began", "Began today")
    address = f"/users/{ada}/diffs"

    done = ok(
        http.post(f"{address}/approve", json={"ids": [first, second, "nothing", third, third]})
    )

    assert [one["status"] for one in done] == ["approved", "conflicted", "failed", "approved"]
    assert [one["id"] for one in done] == [first, second, "nothing", third]
    assert done[0]["version"] == get(http, ada, "student")["version"]
    assert (done[0]["detail"], done[2]["detail"]) == (None, "Proposal with ID nothing not found")
    fourth = propose(http, ada, "journey", "Began today", "Began")
    rest = ok(http.post(f"{address}/reject", json={"all": True, "reason": "Enough."}))
    assert [(one["id"], one["status"]) for one in rest] == [
        (fourth, "rejected"),
        (second, "rejected"),
    ]
    assert {one["note"] for one in ok(http.get(address, params={"status": "rejected"}))} == {
        "Enough."
    }
    assert ok(http.post(f"{address}/approve", json={"all": True})) == []
    for body in ({}, {"ids": []}, {"ids": ["a"], "all": True}, {"all": False}):
        refused(http.post(f"{address}/approve", json=body), 422)


def test_undoing_a_run_changes_only_that_users_memory_and_keeps_later_edits(
    api: Api, ada: str
) -> None:
    run, other = new_id("run"), new_id("ada")
    put(api.http, other, "student", TEXT)

    def work(tx: Transaction) -> None:
        for user in (ada, other):
            owned = user_memory.open_memory(tx, Scope(), user)
            versions.lock(tx, owned.chain.id)
            block = user_memory.require(tx, owned, "student")
            metadata = ChangeMetadata(
                Actor("agent", "agent-1", "Nina"),
                "I heard it",
                run_id=run,
                approved_by=owned.user.id,
            )
            blocks.update(
                tx, block, replace(block, value=block.value.replace("tea", "coffee")), metadata
            )

    api.server.write(work)
    put(api.http, ada, "student", get(api.http, ada, "student")["body"] + "Reads much.\n")
    # The agent was deleted with its runs, but its texts are still there.
    done = ok(api.http.post(f"/users/{ada}/runs/{run}/undo"))

    assert [(one["label"], one["status"]) for one in done["blocks"]] == [("student", "undone")]
    assert get(api.http, ada, "student")["body"] == TEXT + "Reads much.\n"
    assert get(api.http, ada, "student")["version"] == done["blocks"][0]["version"]
    assert get(api.http, other, "student")["body"] == TEXT.replace("tea", "coffee")
    assert ok(api.http.post(f"/users/{ada}/runs/{run}/undo"))["blocks"][0]["status"] == "unchanged"


def test_approving_all_decides_a_limited_number_and_reports_the_rest(
    http: httpx2.Client, ada: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "DECIDED_AT_ONCE", 2)
    address = f"/users/{ada}/diffs"
    for number in range(5):
        put(http, ada, f"page{number}", "Name: Ada")
        propose(http, ada, f"page{number}", "Ada", "Eve", agent_id=f"agent {number}")
    put(http, ada, "page0", "Name: Ida")
    before = {one["id"] for one in ok(http.get(address))}

    answers = [http.post(f"{address}/approve", json={"all": True}) for _ in range(3)]

    assert [len(ok(answer)) for answer in answers] == [2, 2, 2]
    assert [answer.headers["x-waiting"] for answer in answers] == ["4", "2", "1"]
    # A proposal that collided is tried again only when no other proposal waits. So it blocks none.
    outcomes = [one["status"] for answer in answers for one in answer.json()]
    assert sorted(outcomes) == ["approved"] * 4 + ["conflicted"] * 2
    assert {one["id"] for answer in answers for one in answer.json()} == before
    done = http.post(f"{address}/reject", json={"all": True})
    assert (len(ok(done)), done.headers["x-waiting"]) == (1, "0")


def test_the_block_list_counts_waiting_proposals_also_for_new_blocks(
    http: httpx2.Client, ada: str
) -> None:
    propose(http, ada, "student", "tea", "coffee")
    for text in ("Greek", "Latin"):
        propose(http, ada, "goals", "", f"Learn {text}.", agent_id=text)
    for path in ("blocks", "blocks/"):
        listed = http.get(f"/users/{ada}/{path}")
        assert ([one["pending"] for one in ok(listed)], listed.headers["x-waiting"]) == ([1], "3")
    assert [one["label"] for one in get(http, ada, "goals/diffs")] == ["goals", "goals"]
