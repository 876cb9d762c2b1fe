"""Skills over HTTP: stored, listed in prompts, opened, run, and seen by their owners alone."""

import json

import pytest

from ricordo.llm.scripted import call
from tests.features.skills.conftest import Skills, opening, running, skill_md
from tests.seams.http import ok, refused

SCRIPT = "import sys\nprint('run', sys.argv[1:], sys.stdin.read())\n"


def test_a_skill_can_be_stored_listed_changed_and_deleted(skills: Skills) -> None:
    for path in (skills.path("ada"), f"/v1/agents/{skills.agent}/skills", "/v1/skills"):
        made = skills.put(path, "lists", files={"scripts/run.py": SCRIPT})["skill"]
        assert (made["description"], made["policy"]) == ("Makes lists.", "propose")
        assert made["files"] == {"scripts/run.py": SCRIPT}
        (listed,) = skills.get(path)
        assert "content" not in listed
        assert (listed["name"], listed["version"]) == ("lists", made["version"])
        skills.put(path, "lists", skill_md("lists", "Makes long lists."))
        assert skills.get(f"{path}/lists")["files"] == {}
        assert len(skills.get(f"{path}/lists/history")) == 2
        restored = skills.http.post(f"{path}/lists/restore", json={"sha": made["version"]})
        assert ok(restored)["skill"]["files"] == {"scripts/run.py": SCRIPT}
        assert ok(skills.http.delete(f"{path}/lists")) == {"skill": None, "proposal": None}
        assert refused(skills.http.get(f"{path}/lists"), 404)
        revived = skills.http.post(f"{path}/lists/restore", json={"sha": made["version"]})
        assert ok(revived)["skill"]["content"] == made["content"]
        ok(skills.http.delete(f"{path}/lists"))


def test_skills_have_blame_and_comparison_like_blocks(skills: Skills) -> None:
    first = skills.put("/v1/skills", "blamed")["skill"]
    second = skills.put("/v1/skills", "blamed", skill_md("blamed", body="Write it.\nTwice."))
    path = f"/v1/blocks/{first['block_id']}"
    lines = skills.get(f"{path}/blame")["lines"]
    by_text = {line["text"]: line["version"] for line in lines}
    assert by_text["name: blamed"] == first["version"]
    assert by_text["Twice."] == second["skill"]["version"]
    assert "+Twice." in skills.get(f"{path}/compare")["unified"]
    ok(skills.http.delete("/v1/skills/blamed"))


def test_the_prompt_lists_names_and_a_tool_opens_the_rest(skills: Skills) -> None:
    body = "First vuqbody."
    files = {"scripts/run.py": SCRIPT, "references/more.md": "Moreqq."}
    skills.put(skills.path("bea"), "lists", skill_md("lists", body=body), files=files)
    prompt = skills.prompt("bea")
    assert "- lists: Makes lists." in prompt
    for text in ("vuqbody", "Moreqq", "scripts/run.py"):
        assert text not in prompt
    opened, more, ran, missing = skills.say(
        "bea",
        opening("lists"),
        opening("lists", file="references/more.md"),
        running("lists", "scripts/run.py", arguments=["a", "b"], input="in"),
        opening("lists", file="../etc/passwd"),
    )
    assert opened.startswith("Skill lists, version ")
    assert "Files: SKILL.md, references/more.md, scripts/run.py." in opened
    assert body in opened
    assert "description:" not in opened
    assert more == "Moreqq.\n"
    assert json.loads(ran)["stdout"] == "run ['a', 'b'] in"
    assert "has no file" in missing


def test_the_nearest_owners_skill_wins(skills: Skills) -> None:
    agent = skills.new_agent()
    skills.put("/v1/skills", "near", skill_md("near", "Of all."))
    assert "- near: Of all." in skills.prompt("cleo", agent)
    skills.put(f"/v1/agents/{agent}/skills", "near", skill_md("near", "Of the agent."))
    assert "- near: Of the agent." in skills.prompt("cleo", agent)
    skills.put(skills.path("cleo"), "near", skill_md("near", "Of Cleo."))
    assert "- near: Of Cleo." in skills.prompt("cleo", agent)
    assert "- near: Of the agent." in skills.prompt("dan", agent)
    assert "- near: Of all." in skills.prompt("dan")
    assert "- near: Of Cleo." in skills.prompt("cleo")
    ok(skills.http.delete("/v1/skills/near"))


def test_users_see_only_their_own_skills(skills: Skills) -> None:
    skills.put(skills.path("eva"), "evas", skill_md("evas", "Evaqq.", "Evabodyqq."))
    skills.put(skills.path("fay"), "fays", skill_md("fays", "Fayqq.", "Faybodyqq."))
    of_eva = skills.prompt("eva")
    assert "Evaqq." in of_eva
    assert "Fayqq." not in of_eva
    assert "Evaqq." not in skills.prompt()
    for user, name in (("fay", "evas"), ("eva", "fays"), (None, "evas")):
        opened, ran = skills.say(user, opening(name), running(name, "scripts/run.py"))
        assert "There is no skill" in opened
        assert "There is no skill" in ran


def test_only_agents_with_the_skill_tool_see_skills(skills: Skills) -> None:
    skills.put(skills.path("gus"), "lists")
    body = {"model": "scripted/model"}
    agent = str(ok(skills.http.post("/v1/agents/", json=body))["id"])
    prompt = skills.prompt("gus", agent)
    assert "<skills>" not in prompt
    assert "Makes lists." not in prompt


def test_memory_tools_cannot_edit_skills(skills: Skills) -> None:
    agent = skills.new_agent("memory")
    skills.put(skills.path("hal"), "lists")
    label = "skills/lists/SKILL"
    new, other, edit = skills.say(
        "hal",
        call("memory", command="create", path="skills/new/SKILL", file_text="Hi.", description="x"),
        call("memory", command="rename", path=label, new_path="skills/more/SKILL"),
        call("memory", command="str_replace", path=label, old_str="list", new_str="x"),
        agent=agent,
    )
    assert "is a skill" in new
    for refusal in (other, edit):
        assert label in refusal
        assert "not" in refusal
    assert [skill["name"] for skill in skills.get(skills.path("hal"))] == ["lists"]


@pytest.mark.parametrize(
    ("content", "files", "reason"),
    [
        ("No front matter.", {}, "front matter"),
        ("---\nname: lists\n---\n", {}, "description"),
        ("---\nname: other\ndescription: x\n---\n", {}, "Both must be the same"),
        ("---\nname: lists\ndescription: [x]\n---\n", {}, "must be a text"),
        ("---\nname: lists\ndescription: a </value> b\n---\n", {}, "tags"),
        ("---\nname: lists\ndescription: a\u200b\U000e0041b\n---\n", {}, "invisible"),
        ("---\nname: &a lists\ndescription: *a\n---\n", {}, "aliases"),
        (f"---\nname: lists\ndescription: {'x' * 1025}\n---\n", {}, "1024"),
        (skill_md("lists"), {"../x": "y"}, "path"),
        (skill_md("lists"), {"/etc/x": "y"}, "path"),
        (skill_md("lists"), {"a.txt": "x", "A.txt": "y"}, "case"),
        (skill_md("lists"), {"skill.md": "x"}, "case"),
        (skill_md("lists"), {"a": "x", "a/b": "y"}, "a file and a folder"),
        (skill_md("lists"), {f"f{number}": "" for number in range(101)}, "100"),
        (skill_md("lists"), {"big.txt": "x" * 100_001}, "limit"),
    ],
)
def test_invalid_skills_are_refused_with_a_reason(
    skills: Skills, content: str, files: dict[str, str], reason: str
) -> None:
    answer = skills.http.put(
        f"{skills.path('ida')}/lists", json={"content": content, "files": files}
    )
    assert reason in refused(answer, answer.status_code)
    assert answer.status_code in (400, 413, 422)


@pytest.mark.parametrize("name", ["Lists", "a--b", "-a", "a_b", "x" * 65, "ünlich"])
def test_invalid_skill_names_are_refused(skills: Skills, name: str) -> None:
    answer = skills.http.put(f"{skills.path('ida')}/{name}", json={"content": skill_md(name)})
    assert "not a valid name of a skill" in refused(answer, 400)


def test_an_invalid_skill_text_is_hidden_from_agents(skills: Skills) -> None:
    ok(skills.http.put("/users/joy/blocks/skills/odd/SKILL", json={"body": "No front matter."}))
    (listed,) = skills.get(skills.path("joy"))
    assert "must begin with a front matter" in listed["problem"]
    prompt = skills.prompt("joy")
    assert "odd" not in prompt
    assert "No front matter." not in prompt
    (opened,) = skills.say("joy", opening("odd"))
    assert "front matter" in opened


def test_skills_are_not_used_as_knowledge_about_their_owner(skills: Skills) -> None:
    ok(skills.http.put("/users/kay/blocks/human", json={"body": "Likes vuqtea."}))
    skills.put(skills.path("kay"), "lists", skill_md("lists", body="Use vuqtea sheets."))
    answers = [
        skills.http.get("/v1/users/kay/profile"),
        skills.http.post("/users/kay/ask", json={"question": "What about vuqtea?"}),
        skills.http.post("/users/kay/memories/search", json={"query": "vuqtea"}),
    ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert "Likes vuqtea." in answer.text
        assert "sheets" not in answer.text
