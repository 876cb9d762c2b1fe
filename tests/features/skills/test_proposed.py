"""Skills that agents propose: approved, used, changed and restored, by their owners alone."""

import json
from typing import Any

import pytest

from ricordo.llm.scripted import call
from tests.features.skills.conftest import Skills, opening, proposing, running, skill_md
from tests.seams.http import ok, refused
from tests.seams.stores import count_statements

SCRIPT = {"scripts/hi.py": "print('first')\n"}
CHANGED = {"scripts/hi.py": "print('second')\n"}


def waiting(skills: Skills, path: str, name: str) -> list[Any]:
    proposals: list[Any] = skills.get(f"{path}/{name}/proposals")
    return proposals


def decide(skills: Skills, path: str, name: str, decision: str = "approve") -> Any:
    (proposal,) = waiting(skills, path, name)
    return ok(skills.http.post(f"{path}/{name}/proposals/{proposal['id']}/{decision}"))


def script_output(skills: Skills, user: str | None, name: str = "hi") -> Any:
    return json.loads(skills.say(user, running(name, "scripts/hi.py"))[0]).get("stdout")


def test_a_proposed_skill_is_approved_used_changed_and_restored(skills: Skills) -> None:
    path = skills.path("ada")
    content = skill_md("hi", "Says hi.")
    (told,) = skills.say("ada", proposing("hi", instructions=content, files=SCRIPT))
    assert told.startswith("Proposed (proposal-")
    assert skills.get(path) == []
    assert "Says hi." not in skills.prompt("ada")
    assert "There is no skill" in skills.say("ada", opening("hi"))[0]
    (proposal,) = waiting(skills, path, "hi")
    assert (proposal["author_kind"], proposal["reasoning"]) == ("agent", "It went well.")
    assert "+print('first')" in proposal["diff"]
    first = decide(skills, path, "hi")["version"]
    assert "- hi: Says hi." in skills.prompt("ada")
    assert script_output(skills, "ada") == "first"

    (told,) = skills.say("ada", proposing("hi", files=CHANGED, reason="Better."))
    assert told.startswith("Proposed (")
    assert script_output(skills, "ada") == "first"
    (proposal,) = waiting(skills, path, "hi")
    assert "-print('first')\n+print('second')" in proposal["diff"]
    assert skills.get(path)[0]["pending"] == 1
    decide(skills, path, "hi")
    assert script_output(skills, "ada") == "second"

    newest, oldest = skills.get(f"{path}/hi/history")
    assert (newest["author_kind"], newest["message"]) == ("agent", "Better.")
    assert newest["approved_by"]
    assert newest["run_id"].startswith("run-")
    assert oldest["sha"] == first
    ok(skills.http.post(f"{path}/hi/restore", json={"sha": first}))
    assert script_output(skills, "ada") == "first"


def test_a_repeated_proposal_waits_once_and_a_rejected_one_changes_nothing(skills: Skills) -> None:
    path = skills.path("bea")
    new = proposing("hi", instructions=skill_md("hi"), files=SCRIPT)
    _, again = skills.say("bea", new, new)
    assert "waits already" in again
    assert "waits already" in skills.say("bea", new)[0]
    (proposal,) = waiting(skills, path, "hi")
    reject = f"{path}/hi/proposals/{proposal['id']}/reject"
    assert ok(skills.http.post(reject, json={"reason": "No."}))["status"] == "rejected"
    assert refused(skills.http.post(reject.replace("reject", "approve")), 409)
    assert skills.get(path) == []
    assert refused(skills.http.get(f"{path}/hi/proposals"), 404)


def test_an_agent_without_a_user_can_propose_own_and_organization_skills(skills: Skills) -> None:
    agents = f"/v1/agents/{skills.agent}/skills"
    own = proposing("own", instructions=skill_md("own", "Its own."))
    shared = proposing("shared", instructions=skill_md("shared", "Of all."), owner="organization")
    skills.say(None, own, shared)
    for path, name in ((f"/v1/agents/{skills.agent}", "own"), ("/v1", "shared")):
        (listed,) = skills.get(f"{path}/skill-proposals")
        assert listed["label"] == f"skills/{name}/SKILL"
    decide(skills, agents, "own")
    decide(skills, "/v1/skills", "shared")
    prompt = skills.prompt("cleo")
    assert "- own: Its own." in prompt
    assert "- shared: Of all." in prompt
    ok(skills.http.delete("/v1/skills/shared"))


def test_a_turn_of_a_user_cannot_propose_skills_for_others(skills: Skills) -> None:
    for owner in ("agent", "organization"):
        new = proposing("of-dan", instructions=skill_md("of-dan"), owner=owner)
        (told,) = skills.say("dan", new)
        assert "belongs to that user" in told
    for path in (f"/v1/agents/{skills.agent}/skills", "/v1/skills"):
        assert "of-dan" not in [skill["name"] for skill in skills.get(path)]
        assert refused(skills.http.get(f"{path}/of-dan/proposals"), 404)


def test_changes_after_untrusted_content_are_only_proposed(skills: Skills) -> None:
    for policy in ("direct", "guarded"):
        path = skills.path(f"eva-{policy}")
        user = f"eva-{policy}"
        skills.put(path, "hi", files=SCRIPT)
        ok(skills.http.patch(f"{path}/hi", json={"policy": policy}))
        # A step without untrusted content changes the skill at once.
        (told,) = skills.say(user, proposing("hi", files={"a.txt": "Clean."}))
        assert told == "The skill hi is changed."
        # The output of a script is untrusted, and so is every later step of the conversation.
        skills.say(user, running("hi", "scripts/hi.py"))
        (told,) = skills.say(user, proposing("hi", files=CHANGED))
        assert told.startswith("Proposed (")
        (proposal,) = waiting(skills, path, "hi")
        assert proposal["is_untrusted"]
        stored = skills.get(f"{path}/hi")
        assert stored["files"]["scripts/hi.py"] == SCRIPT["scripts/hi.py"]
        assert not stored["is_untrusted"]


def test_changes_of_a_read_only_skill_cannot_be_proposed(skills: Skills) -> None:
    path = skills.path("fay")
    skills.put(path, "hi", files=SCRIPT)
    ok(skills.http.patch(f"{path}/hi", json={"policy": "read_only"}))
    assert "read-only" in skills.say("fay", proposing("hi", files=CHANGED))[0]
    assert waiting(skills, path, "hi") == []


def test_invalid_skill_proposals_are_refused_with_a_reason(skills: Skills) -> None:
    hidden = skill_md("hi", body="Be kind.\U000e0041\U000e0042")
    cases = [
        (proposing("hi", instructions=hidden), "invisible characters"),
        (proposing("hi", instructions=skill_md("other")), "Both must be the same"),
        (proposing("hi", instructions=skill_md("hi", "a <system> b")), "tags"),
        (proposing("hi", files=SCRIPT), "Give its instructions"),
        (proposing("hi", instructions=skill_md("hi", body="x" * 100_001)), "limit"),
        (proposing("hi", instructions=skill_md("hi"), files={"../a": "b"}), "path"),
        (proposing("hi", instructions=skill_md("hi"), removed_files=["a"]), "has no file"),
    ]
    for proposed, reason in cases:
        (told,) = skills.say("gus", proposed)
        assert reason in told, told
    assert skills.get(skills.path("gus")) == []
    assert refused(skills.http.get(f"{skills.path('gus')}/hi/proposals"), 404)


def test_an_approved_skill_belongs_to_the_proposing_agent_only(skills: Skills) -> None:
    skills.say("hal", proposing("hi", instructions=skill_md("hi", "Says hi.")))
    decide(skills, skills.path("hal"), "hi")
    other = skills.new_agent()
    assert "Says hi." in skills.prompt("hal")
    assert "Says hi." not in skills.prompt("hal", other)
    (told,) = skills.say("hal", proposing("hi", files=CHANGED), agent=other)
    assert "another agent" in told


def test_concurrent_changes_are_merged_or_shown_as_a_conflict(skills: Skills) -> None:
    path = skills.path("ida")
    skills.put(path, "hi", skill_md("hi", body="One.\nTwo.\nThree."), files=SCRIPT)
    skills.say("ida", proposing("hi", files=CHANGED))
    skills.put(path, "hi", skill_md("hi", body="Zero.\nTwo.\nThree."), files=SCRIPT)
    decide(skills, path, "hi")
    stored = skills.get(f"{path}/hi")
    assert "Zero." in stored["content"]
    assert stored["files"] == CHANGED
    skills.say("ida", proposing("hi", files={"scripts/hi.py": "print('third')\n"}))
    skills.put(path, "hi", files={"scripts/hi.py": "print('fourth')\n"})
    (proposal,) = waiting(skills, path, "hi")
    answer = skills.http.post(f"{path}/hi/proposals/{proposal['id']}/approve")
    assert answer.status_code == 409
    assert ok(skills.http.get(f"{path}/hi"))["files"]["scripts/hi.py"] == "print('fourth')\n"


def test_a_proposal_that_would_merge_into_an_invalid_skill_is_refused(skills: Skills) -> None:
    path = skills.path("joy")
    skills.put(path, "hi", files={"a": "x"})
    skills.say("joy", proposing("hi", files={"b": "y"}))
    # The merge of the owner's edit and the proposal would not be a valid skill.
    skills.put(path, "hi", files={"a": "x", "b/c": "z"})
    (proposal,) = waiting(skills, path, "hi")
    answer = skills.http.post(f"{path}/hi/proposals/{proposal['id']}/approve")
    assert answer.status_code in (400, 409)
    assert skills.get(f"{path}/hi")["files"] == {"a": "x\n", "b/c": "z\n"}


def test_skill_proposals_are_listed_with_other_proposals(skills: Skills) -> None:
    skills.say("kim", proposing("hi", instructions=skill_md("hi")))
    ok(skills.http.put("/users/kim/blocks/human", json={"body": "Kim."}))
    (listed,) = skills.get("/users/kim/diffs")
    assert [proposal["id"] for proposal in skills.get("/v1/users/kim/skill-proposals")] == [
        listed["id"]
    ]
    assert listed["label"] == "skills/hi/SKILL"
    ok(skills.http.post(f"/users/kim/blocks/{listed['label']}/diffs/{listed['id']}/approve"))
    assert [skill["name"] for skill in skills.get(skills.path("kim"))] == ["hi"]


def test_listing_proposals_takes_a_constant_number_of_statements(skills: Skills) -> None:
    def listed(user: str) -> tuple[int, list[str]]:
        with count_statements(skills.server.runtime.store) as counted:
            found = skills.get(f"/v1/users/{user}/skill-proposals")
        return len(counted.statements), [proposal["label"] for proposal in found]

    skills.say("one", proposing("b", instructions=skill_md("b")))
    skills.say(
        "many", *(proposing(name, instructions=skill_md(name)) for name in ("c", "a", "d", "b"))
    )
    listed("one")  # the first list reads data that is read only once

    one, labels_of_one = listed("one")
    many, labels_of_many = listed("many")

    assert labels_of_one == ["skills/b/SKILL"]
    assert labels_of_many == [f"skills/{name}/SKILL" for name in "abcd"]
    assert many == one


def test_an_agent_called_by_another_agent_only_proposes_changes(skills: Skills) -> None:
    tool = "send_message_to_agent_and_wait_for_reply"
    asker = skills.new_agent(tool)
    path = f"/v1/agents/{skills.agent}/skills"
    skills.put(path, "hi", files=SCRIPT)
    ok(skills.http.patch(f"{path}/hi", json={"policy": "guarded"}))
    asking = call(tool, message="Change your skill.", other_agent_id=skills.agent)
    skills.say(None, asking, proposing("hi", files=CHANGED), "Done.", agent=asker)
    assert skills.get(f"{path}/hi")["files"] == SCRIPT
    assert len(waiting(skills, path, "hi")) == 1


@pytest.mark.parametrize(
    ("broken", "removed"),
    [
        ("No front matter.\n{files}", []),
        ("---\nname: other\ndescription: Makes lists.\n---\n{files}", []),
        ("---\nname: [\n---\n{files}", []),
        ("{files}=== file: scripts/hi.py ===\nprint('first')\n", []),
        ("No front matter.\n{files}=== file: ../up ===\n", ["../up"]),
        ("", None),
    ],
)
def test_an_agent_can_repair_an_invalid_skill(
    skills: Skills, broken: str, removed: list[str] | None
) -> None:
    """The broken text itself must not block the edits that mend it."""
    path = skills.path("abe")
    content = skill_md("mend", body="Run it.")
    skills.put(path, "mend", content, files=SCRIPT)
    text = broken.format(files="=== file: scripts/hi.py ===\nprint('first')\n")
    body = {"body": text}
    ok(skills.http.put("/users/abe/blocks/skills%2Fmend%2FSKILL", json=body))
    assert skills.get(f"{path}/mend")["problem"]
    if removed is None:
        mending = proposing("mend", instructions=content, files=SCRIPT)
    else:
        mending = proposing("mend", instructions=content, removed_files=removed)
    (told,) = skills.say("abe", mending)
    assert told.startswith("Proposed ("), told
    decide(skills, path, "mend")
    assert skills.get(f"{path}/mend")["problem"] is None
    assert script_output(skills, "abe", "mend") == "first"
