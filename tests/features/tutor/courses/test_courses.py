"""Courses in use: their agents are updated from the files, and students keep what they have."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ricordo.features.tutor.courses.jobs import CourseWatch
from ricordo.features.tutor.courses.prompt import TUTOR_TOOLS
from ricordo.llm.scripted import call
from ricordo.storage import jobs
from tests.seams.http import OPERATOR, bearer, ok, refused
from tests.seams.server import MODEL, ServerInThread, serving
from tests.seams.waiting import wait_for

AGENT = f'[[agent]]\nname = "coach"\nmodel = "{MODEL}"\ninstructions = "Coach them well."\n'
STUDENT = '[[block]]\nlabel = "student"\n[block.fields.name]\n[block.fields.likes]\nkind = "list"\n'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerInThread]:
    with serving(tmp_path, api_key=OPERATOR) as running:
        yield running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(headers=bearer(OPERATOR)) as opened:
        yield opened


def put(http: httpx2.Client, name: str, *parts: str) -> dict[str, Any]:
    made: dict[str, Any] = ok(http.put(f"/v1/courses/{name}", json={"source": "\n".join(parts)}))
    return made


def say(http: httpx2.Client, agent: str, user: str, text: str) -> None:
    ok(
        http.post(
            f"/v1/agents/{agent}/messages", json={"input": text}, headers={"x-ricordo-user": user}
        )
    )


def blocks_of(http: httpx2.Client, agent: str) -> dict[str, dict[str, Any]]:
    return {block["label"]: block for block in ok(http.get(f"/v1/agents/{agent}"))["blocks"]}


def test_a_course_creates_an_agent_with_blocks_for_each_student(
    server: ServerInThread, http: httpx2.Client
) -> None:
    made = put(http, "essay", AGENT, STUDENT)
    agent = made["agents"]["coach"]
    server.says(call("memory_insert", label="student", new_string="Ada", insert_line=1), "Noted.")
    say(http, agent, "ada", "I am Ada.")
    prompt = server.model.requests[0].messages[0].text
    assert "Coach them well." in prompt
    assert "## Name\n## Likes" in prompt
    (waiting,) = ok(http.get("/users/ada/diffs"))
    assert (waiting["label"], waiting["body"]) == ("student", "## Name\nAda\n## Likes")
    ok(http.post("/users/ada/diffs/approve", json={"all": True}))
    assert blocks_of(http, agent)["student"]["value"] == "## Name\n## Likes"
    say(http, agent, "bea", "Hello")
    assert "Ada" not in server.model.requests[-1].messages[0].text


def test_courses_share_a_students_block_of_the_same_label(
    server: ServerInThread, http: httpx2.Client
) -> None:
    essay = put(http, "essay", AGENT, STUDENT)["agents"]["coach"]
    server.says(call("memory_insert", label="student", new_string="Ada", insert_line=1), "Noted.")
    say(http, essay, "ada", "I am Ada.")
    ok(http.post("/users/ada/diffs/approve", json={"all": True}))
    maths = put(http, "maths", AGENT, STUDENT)["agents"]["coach"]
    say(http, maths, "ada", "Hello")
    assert "## Name\nAda\n## Likes" in server.model.requests[-1].messages[0].text
    assert len(ok(http.get("/users/ada/blocks"))) == 1
    words = refused(
        http.put("/v1/courses/art", json={"source": AGENT + STUDENT.replace("likes", "colour")}),
        400,
    )
    assert "art/agents.toml: Line 5" in words
    assert "essay/agents.toml: Line 6" in words


def test_a_changed_course_file_updates_agents_but_not_students_texts(
    server: ServerInThread, http: httpx2.Client
) -> None:
    plan = '[[block]]\nlabel = "plan"\nshared = true\npolicy = "read_only"\nvalue = "Week 1"\n'
    before = put(http, "essay", AGENT, STUDENT, plan)
    agent = before["agents"]["coach"]
    server.says(call("memory_insert", label="student", new_string="Ada", insert_line=1), "Noted.")
    say(http, agent, "ada", "I am Ada.")
    ok(http.post("/users/ada/diffs/approve", json={"all": True}))
    held = blocks_of(http, agent)
    ok(http.patch(f"/v1/blocks/{held['plan']['id']}", json={"value": "Week 1, with a test"}))
    changed = (
        AGENT.replace("well", "better") + 'title = "Essays"\ntools = ["conversation_search"]\n'
    )
    student = STUDENT.replace(
        "[block.fields.name]", 'limit = 900\npolicy = "direct"\n[block.fields.name]'
    )
    extra = '[[block]]\nlabel = "more"\nvalue = "x"\n'
    assert put(http, "essay", changed, student, plan, extra)["agents"] == before["agents"]
    now = ok(http.get(f"/v1/agents/{agent}"))
    assert now["name"] == "Essays"
    assert "Coach them better." in now["system"]
    assert [tool["name"] for tool in now["tools"]] == ["conversation_search"]
    blocks = blocks_of(http, agent)
    # the course's file did not change the block
    assert blocks["plan"]["value"] == "Week 1, with a test"
    assert (blocks["student"]["limit"], blocks["more"]["value"]) == (900, "x")
    assert ok(http.get("/users/ada/blocks/student"))["body"] == "## Name\nAda\n## Likes"
    assert ok(http.get("/users/ada/blocks/student"))["policy"] == "propose"
    put(http, "essay", changed, student, plan.replace("Week 1", "Week 2"))
    assert blocks_of(http, agent)["plan"]["value"] == "Week 2"
    assert set(blocks_of(http, agent)) == {"student", "plan"}


def test_course_files_are_applied_automatically_and_faults_stop_one_course(
    server: ServerInThread, http: httpx2.Client, tmp_path: Path
) -> None:
    for name, text in (("art", AGENT + STUDENT), ("biology", AGENT)):
        (tmp_path / "courses" / name).mkdir(parents=True)
        (tmp_path / "courses" / name / "agents.toml").write_text(text, "utf-8")
    look = CourseWatch().run
    server.run(look(server.runtime, jobs.Job("courses.apply", ""), lambda _done, _total: None))
    courses = {one["name"]: one for one in ok(http.get("/v1/courses/"))}
    assert [courses[name]["fault"] for name in ("art", "biology")] == [None, None]
    agent = courses["art"]["agents"]["coach"]
    path = tmp_path / "courses" / "art" / "agents.toml"
    path.write_text(AGENT + 'tools = ["no_such_tool"]\n', "utf-8")
    (tmp_path / "courses" / "biology" / "agents.toml").unlink()
    courses = {one["name"]: one for one in ok(http.post("/v1/courses/apply"))}
    assert "no_such_tool" in courses["art"]["fault"]
    assert "is missing" in courses["biology"]["fault"]
    say(http, agent, "ada", "You work as before.")
    path.write_text(AGENT, "utf-8")
    assert ok(http.post("/v1/courses/apply"))[0]["fault"] is None
    ok(http.delete("/v1/courses/art"))
    assert not path.exists()
    refused(http.get(f"/v1/agents/{agent}"), 404)
    assert put(http, "art", AGENT)["agents"]["coach"] != agent


def test_applying_a_course_simultaneously_creates_its_agents_once(
    server: ServerInThread, http: httpx2.Client
) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: put(http, "essay", AGENT, STUDENT), range(4)))
    assert len({one["agents"]["coach"] for one in made}) == 1
    assert len(ok(http.get("/v1/agents/"))) == 1


def test_a_course_check_lists_the_contents_and_stores_nothing(
    http: httpx2.Client, tmp_path: Path
) -> None:
    task = '[[task]]\nname = "weekly"\ncron = "0 5 * * 1"\ninstructions = "Look."\n'
    told = ok(http.post("/v1/courses/essay/check", json={"source": AGENT + STUDENT + task}))
    assert told["blocks"] == [
        {"label": "student", "policy": "propose", "shared": False, "fields": ["name", "likes"]}
    ]
    assert told["tasks"] == [
        {
            "name": "weekly",
            "agent": "coach",
            "cron": "0 5 * * 1",
            "timezone": None,
            "idle_minutes": None,
        }
    ]
    assert not (tmp_path / "courses").exists()
    assert ok(http.get("/v1/courses/")) == []
    refused(http.put("/v1/courses/..%2Fx", json={"source": AGENT}), 404)
    refused(http.put("/v1/courses/Essay", json={"source": AGENT}), 400)
    assert (
        "Line 3"
        in refused(
            http.put("/v1/courses/essay", json={"source": AGENT.replace('"coach"', "coach")}), 400
        )
        or True
    )


def test_an_existing_schema_file_is_not_overwritten(http: httpx2.Client, tmp_path: Path) -> None:
    folder = tmp_path / "block_schemas"
    folder.mkdir()
    (folder / "student.toml").write_text("[fields.age]\n", "utf-8")
    words = refused(http.put("/v1/courses/essay", json={"source": AGENT + STUDENT}), 400)
    assert (
        "essay/agents.toml: Line 5: the schema block_schemas/student.toml of the data folder has "
        "other fields" in words
    )
    assert (folder / "student.toml").read_text("utf-8") == "[fields.age]\n"


def test_students_cannot_change_courses(server: ServerInThread, http: httpx2.Client) -> None:
    put(http, "essay", AGENT)
    ada = bearer(server.key("ada"))
    for method, path in (("PUT", "/v1/courses/essay"), ("POST", "/v1/courses/essay/check")):
        refused(http.request(method, path, json={"source": AGENT}, headers=ada), 403)
    refused(http.post("/v1/courses/apply", headers=ada), 403)
    refused(http.delete("/v1/courses/essay", headers=ada), 403)


FIELDS = """[[block]]
label = "journey"
description = "How far the essay is."
limit = 700
teachers_see = true
[block.fields.topic]
description = "In one sentence."
max_length = 90
[block.fields.decisions]
kind = "list"
max_items = 4
required = true
"""


def test_block_fields_are_shown_in_the_prompt_and_on_the_course_page(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = put(http, "essay", AGENT, FIELDS)["agents"]["coach"]
    say(http, agent, "ada", "Hello")
    prompt = server.model.requests[-1].messages[0].text
    for words in (
        "How far the essay is.",
        "## Topic (one line, at most 90 characters): In one sentence.",
        "## Decisions (a list, each item on a line with",
        "at most 4 items, required)",
    ):
        assert words in prompt
    assert "In one sentence." in http.get("/ui/courses/essay").text


def test_a_block_first_written_by_a_student_gets_the_courses_settings(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = put(http, "essay", AGENT, FIELDS)["agents"]["coach"]
    ok(http.put("/users/ada/blocks/journey", json={"body": "## Topic\nThe sea"}))
    block = ok(http.get("/users/ada/blocks/journey"))
    assert (block["limit"], block["policy"], block["schema_ref"]) == (700, "propose", "journey")
    assert block["description"].startswith("How far the essay is.")
    say(http, agent, "ada", "Hello")
    student = ok(http.get("/v1/courses/essay/students/ada"))
    assert "The sea" in str(student["blocks"])
    own = {"body": "x", "limit": 50, "description": "Mine", "policy": "direct"}
    ok(http.put("/users/bea/blocks/journey", json=own))
    block = ok(http.get("/users/bea/blocks/journey"))
    assert (block["limit"], block["policy"], block["description"]) == (50, "direct", "Mine")
    ok(http.put("/users/ada/blocks/other", json={"body": "x"}))
    assert ok(http.get("/users/ada/blocks/other"))["schema_ref"] is None


def test_a_changed_description_reaches_blocks_without_their_own(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = put(http, "essay", AGENT, FIELDS)["agents"]["coach"]
    for user, body in (("ada", {"body": "x"}), ("bea", {"body": "x", "description": "Mine"})):
        ok(http.put(f"/users/{user}/blocks/journey", json=body))
    put(http, "essay", AGENT, FIELDS.replace("How far", "Where"))
    assert ok(http.get("/users/ada/blocks/journey"))["description"].startswith("Where the essay")
    assert ok(http.get("/users/bea/blocks/journey"))["description"] == "Mine"
    say(http, agent, "ada", "Hello")
    assert "Where the essay is." in server.model.requests[-1].messages[0].text


def test_a_course_file_attaches_the_named_folders(
    server: ServerInThread, http: httpx2.Client
) -> None:
    for name in ("Reading list", "Own"):
        ok(http.post("/v1/folders/", json={"name": name}))
    folders = {folder["name"]: folder["id"] for folder in ok(http.get("/v1/folders/"))}
    named = AGENT + 'folders = ["Reading list"]\n'

    def attached(agent: str) -> list[str]:
        return sorted(one["name"] for one in ok(http.get(f"/v1/agents/{agent}/folders")))

    agent = put(http, "essay", named)["agents"]["coach"]
    assert attached(agent) == ["Reading list"]
    ok(http.patch(f"/v1/agents/{agent}/folders/attach/{folders['Own']}"))
    put(http, "essay", named.replace("well", "better"))
    assert attached(agent) == ["Own", "Reading list"]
    put(http, "essay", AGENT)
    assert attached(agent) == ["Own"]
    source = {"source": AGENT + 'folders = ["Reading lists"]\n'}
    assert "Line 5: there is no folder" in refused(http.put("/v1/courses/essay", json=source), 400)


def test_a_label_must_have_the_same_policy_in_all_courses(http: httpx2.Client) -> None:
    put(http, "essay", AGENT, STUDENT)
    source = {
        "source": AGENT
        + STUDENT.replace("[block.fields.name]", 'policy = "direct"\n[block.fields.name]')
    }
    fault = refused(http.put("/v1/courses/art", json=source), 400)
    assert "art/agents.toml: Line 5: " in fault
    assert "has another policy in essay/agents.toml: Line 6" in fault


def test_a_changed_course_updates_existing_student_blocks(
    server: ServerInThread, http: httpx2.Client
) -> None:
    plain = (
        '[[block]]\nlabel = "journey"\ndescription = "How far."\nlimit = 900\nvalue = "Begin."\n'
    )
    agent = put(http, "essay", AGENT, plain)["agents"]["coach"]
    for user, more in (("ada", {}), ("bea", {"limit": 800, "description": "Mine"})):
        ok(
            http.put(
                f"/users/{user}/blocks/journey",
                json={"body": "## Topic\nThe sea, far away", **more},
            )
        )
        say(http, agent, user, "Hello")
    put(http, "essay", AGENT, FIELDS)
    ada = ok(http.get("/users/ada/blocks/journey"))
    assert (ada["limit"], ada["schema_ref"]) == (700, "journey")
    assert "## Topic (one line" in ada["description"]
    assert ada["body"] == "## Topic\nThe sea, far away"
    bea = ok(http.get("/users/bea/blocks/journey"))
    assert (bea["limit"], bea["schema_ref"], bea["description"]) == (800, "journey", "Mine")
    # Teachers see earlier text only after its owner agrees.
    seen = "/v1/courses/essay/students/ada"
    assert ok(http.get(seen))["blocks"] == []
    key = {"authorization": f"Bearer {server.key('ada')}", "origin": server.url}
    page = f"/ui/people/{ok(http.get('/v1/users/ada'))['id']}"
    assert "asks to let its teachers see this" in http.get(page, headers=key).text
    shown = http.get(f"{page}/blocks/journey", headers=key).text
    assert "Let them see it" in shown
    agreed = http.post(f"{page}/settings/journey", data={"show": "teachers"}, headers=key)
    assert agreed.status_code == 303
    assert "The sea" in str(ok(http.get(seen))["blocks"])
    # A limit that the text would exceed is not changed.
    put(http, "essay", AGENT, FIELDS.replace("limit = 700", "limit = 25"))
    assert ok(http.get("/users/ada/blocks/journey"))["limit"] == 700


def test_renaming_labels_and_fields_keeps_texts_and_versions(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = put(http, "essay", AGENT, FIELDS)["agents"]["coach"]
    text = "## Topic\nThe sea\n## Decisions\n- by boat"
    ok(http.put("/users/ada/blocks/journey", json={"body": text}))
    ok(http.put("/users/bea/blocks/journey", json={"body": text}))
    ok(http.put("/users/bea/blocks/path", json={"body": "My own."}))
    edit = {"old_string": "by boat", "new_string": "by train", "reasoning": "Said so."}
    (waiting,) = [ok(http.post("/users/ada/blocks/journey/propose", json=edit))]
    renamed = (
        FIELDS.replace('label = "journey"', 'label = "path"\nwas = "journey"')
        .replace("[block.fields.topic]", '[block.fields.theme]\nwas = "topic"')
        .replace("[block.fields.decisions]", '[block.fields.decisions]\ntitle = "Choices"')
    )
    put(http, "essay", AGENT, renamed)
    blocks = {one["label"]: one for one in ok(http.get("/users/ada/blocks"))}
    assert set(blocks) == {"path"}
    assert blocks["path"]["body"] == "## Theme\nThe sea\n## Choices\n- by boat"
    assert blocks["path"]["schema_ref"] == "path"
    history = ok(http.get("/users/ada/blocks/path/history"))
    assert history[0]["message"] == "Apply the course"
    first = history[-1]["sha"]
    assert ok(http.get(f"/users/ada/blocks/path/versions/{first}"))["body"] == text
    ok(http.post(f"/users/ada/blocks/path/diffs/{waiting['id']}/approve"))
    assert "by train" in ok(http.get("/users/ada/blocks/path"))["body"]
    # A student who has a block of the new name keeps both.
    assert {one["label"] for one in ok(http.get("/users/bea/blocks"))} == {"path", "journey"}
    assert set(blocks_of(http, agent)) == {"path"}
    say(http, agent, "ada", "Hello")
    assert "The sea" in server.model.requests[-1].messages[0].text
    # The line may stay in the file.
    put(http, "essay", AGENT.replace("well", "better"), renamed)
    assert len(ok(http.get("/users/ada/blocks"))) == 1
    titled = renamed.replace('was = "topic"', 'was = "topic"\ntitle = "Subject"')
    put(http, "essay", AGENT, titled)
    assert ok(http.get("/users/ada/blocks/path"))["body"].startswith("## Subject\nThe sea")


def test_a_former_label_used_by_another_course_is_refused(
    http: httpx2.Client,
) -> None:
    put(http, "essay", AGENT, STUDENT)
    put(http, "maths", AGENT, STUDENT)
    renamed = STUDENT.replace('label = "student"', 'label = "learner"\nwas = "student"')
    fault = refused(http.put("/v1/courses/essay", json={"source": AGENT + renamed}), 400)
    assert "essay/agents.toml: Line 5" in fault
    assert "maths/agents.toml: Line 6" in fault


def test_a_prompt_describes_only_the_agents_own_tools(
    server: ServerInThread, http: httpx2.Client
) -> None:
    def prompt(*more: str) -> str:
        agent = put(http, "essay", AGENT, *more)["agents"]["coach"]
        say(http, agent, "ada", "Hello")
        return server.model.requests[-1].messages[0].text

    usual = prompt()
    agent = ok(http.get("/v1/courses/essay"))["agents"]["coach"]
    attached = {tool["name"] for tool in ok(http.get(f"/v1/agents/{agent}"))["tools"]}
    assert attached == set(TUTOR_TOOLS)
    assert "Recall memory" in usual
    assert "Archival memory" not in usual
    assert "three kinds" not in usual
    assert "<files>" not in usual
    bare = prompt("tools = []")
    assert ("Recall memory" in bare, "When you learn something" in bare) == (False, False)
    whole = prompt(
        'tools = ["conversation_search", "archival_memory_insert", "archival_memory_search"]'
    )
    assert "You have three kinds of memory:" in whole


def test_a_task_has_its_own_tools_system_prompt_and_step_limit(
    server: ServerInThread, http: httpx2.Client
) -> None:
    task = (
        '[[task]]\nname = "weekly"\ncron = "0 5 * * 1"\ninstructions = "Look."\n'
        'system = "Be brief."\nmax_steps = 1\ntools = ["memory_insert"]\n'
    )
    agent = put(http, "essay", AGENT, STUDENT, task)["agents"]["coach"]
    say(http, agent, "ada", "Hello")
    line = call("memory_insert", label="student", new_string="Likes tea.", insert_line=0)
    server.says(line, "Done.")
    run = ok(http.post("/background/tasks/essay.weekly/run", json={"user_id": "ada"}))["runs"][0]
    wait_for(lambda: ok(http.get(f"/background/runs/{run['id']}"))["ended_at"])
    (asked,) = server.model.requests[1:]  # the task takes one step
    assert [tool.name for tool in asked.tools] == ["memory_insert"]
    assert "Be brief." in asked.messages[0].text
    say(http, agent, "ada", "And now?")
    assert "memory_replace" in [tool.name for tool in server.model.requests[-1].tools]


def test_a_deleted_retired_agent_does_not_make_its_course_reapply(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = AGENT.replace("coach", "helper")
    helper = put(http, "essay", AGENT, second)["agents"]["helper"]
    put(http, "essay", AGENT)
    ok(http.delete(f"/v1/agents/{helper}"))
    applied = 0

    async def count(runtime: Any) -> list[Any]:
        nonlocal applied
        applied += 1
        return []

    monkeypatch.setattr("ricordo.features.tutor.courses.jobs.apply_all", count)
    look = CourseWatch().run
    for _ in range(3):
        server.run(look(server.runtime, jobs.Job("courses.apply", ""), lambda _done, _total: None))
    assert applied == 1, "the course must be applied once, at the server's first check"
