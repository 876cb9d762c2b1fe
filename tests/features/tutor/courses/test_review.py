"""Mistakes of a course's designer.

`check`, `apply` and `PUT` report the same, with file and line.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from ricordo.cli import app
from ricordo.errors import Unavailable
from ricordo.features.tutor.courses import service
from ricordo.features.tutor.courses.course_file import findings
from ricordo.llm.scripted import ScriptedModel
from ricordo.settings import Settings
from tests.seams.http import ok, refused
from tests.seams.server import MODEL, ServerInThread, serving

GOOD = f"""title = "Essay coach"
[[agent]]
name = "coach"
model = "{MODEL}"
instructions = "Coach them well."
[[block]]
label = "student"
[block.fields.name]
max_length = 80
[[task]]
name = "weekly"
cron = "0 5 * * 1"
instructions = "Look."
"""
# A change of the correct course, the line of the error, and words of its message.
MISTAKES = [
    ("instructions =", 'tools = ["web_serch"]\ninstructions =', 5, "web_serch"),
    (
        "instructions =",
        'tools = [\n  "conversation_search",\n  "conversation_serch",\n]\ninstructions =',
        7,
        'Did you mean "conversation_search"?',
    ),
    ("instructions =", 'tools = ["core_memory_apend"]\ninstructions =', 5, "core_memory_apend"),
    (MODEL, "openai/gpt-99-nonsense-of-nobody", 4, "gpt-99-nonsense-of-nobody"),
    (MODEL, "no-such-provider/x", 4, "no-such-provider"),
    (MODEL, "", 4, "model"),
    ('name = "weekly"', 'name = "weekly"\ntools = ["web_serch"]', 12, "web_serch"),
    ('label = "student"', 'label = "student"\nwas = "student"', 6, "that no block has now"),
    ("max_length = 80", 'was = "name"', 9, "which no field has now"),
    ("[[task]]", "[[tasks]]", 10, 'Did you mean "task"?'),
    ('instructions = "Coach', 'instruction = "Coach', 5, 'Did you mean "instructions"?'),
    ("max_length = 80", "max_lenght = 80", 9, 'Did you mean "max_length"?'),
    ('label = "student"', 'label = "student"\nlimit = 3', 6, "limit is 3"),
    ('label = "student"', 'label = "student"\npolicy = "ask"', 8, '"policy" must be one of'),
    ('label = "student"', 'label = "student"\nlimit = 0', 8, '"limit" must lie between'),
    ('cron = "0 5 * * 1"', 'cron = "0 25 * * 1"', 12, "hour"),
    ('name = "weekly"', 'name = "weekly"\nagent = "couch"', 10, "must name an agent"),
    ("[block.fields.name]", "[block.fields.other]", 6, "has other fields in"),
    ('label = "student"', 'label = "lab"', 6, "the schema block_schemas/lab.toml"),
    ("Essay coach", "Essay \udcff coach", 1, "UTF-8"),
    ("Look.", "Look." + "x" * 300_000, 13, "262144"),
    ('name = "coach"', 'name = "coach"\n[[agent]', 4, ""),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("review")) as running:
        yield running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http() as opened:
        yield opened


def course_file(server: ServerInThread, name: str, text: str) -> Path:
    path = server.settings.data_dir / "courses" / name / "agents.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def faults(courses: list[dict[str, Any]]) -> dict[str, str | None]:
    return {course["name"]: course["fault"] for course in courses}


def test_check_apply_and_put_report_each_mistake_with_its_line(
    server: ServerInThread, http: httpx2.Client
) -> None:
    schema = server.settings.data_dir / "block_schemas" / "lab.toml"
    schema.parent.mkdir(exist_ok=True)
    schema.write_text("[fields.colour]\n", "utf-8")
    course_file(server, "art", GOOD)
    ok(http.post("/v1/courses/apply"))
    agents = len(ok(http.get("/v1/agents/")))
    for old, new, line, words in MISTAKES:
        text = GOOD.replace(old, new, 1)
        assert text != GOOD
        path = course_file(server, "essay", text)
        checked = faults(ok(http.post("/v1/courses/check")))
        assert len(ok(http.get("/v1/agents/"))) == agents
        applied = faults(ok(http.post("/v1/courses/apply")))
        assert checked == {name: applied[name] for name in checked}, new
        fault = checked["essay"] or ""
        sentence = rf"^essay/agents.toml: Line {line}: .*{re.escape(words)}"
        assert re.search(sentence, fault, re.MULTILINE), (new[:60], fault)
        path.unlink()
        if "\udcff" not in text and len(text) < 200_000:
            source = {"source": text}
            assert refused(http.put("/v1/courses/essay", json=source), 400).endswith(fault)
            assert refused(http.post("/v1/courses/essay/check", json=source), 400).endswith(fault)
        assert not path.exists()
        assert len(ok(http.get("/v1/agents/"))) == agents


def test_a_valid_course_passes_the_check_and_is_applied(
    server: ServerInThread, http: httpx2.Client
) -> None:
    course_file(server, "good", GOOD)
    lines = {one["name"]: one for one in ok(http.post("/v1/courses/check"))}
    assert lines["good"] == {
        "name": "good",
        "fault": None,
        "warning": None,
        "agents": 1,
        "blocks": 1,
        "tasks": 1,
        "skills": 0,
    }
    applied = {one["name"]: one for one in ok(http.post("/v1/courses/apply"))}
    assert applied["good"]["fault"] is None


def test_a_context_window_above_that_of_the_model_is_refused(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.runtime.models.add(ScriptedModel([], name="small", context_window=9_000))
    text = '[[agent]]\nname = "a"\nmodel = "scripted/small"\ninstructions = "Teach."\n'
    good = {"source": f"{text}context_window = 9000\n"}
    ok(http.post("/v1/courses/window/check", json=good))
    bad = {"source": f"{text}context_window = 9001\n"}
    for answer in (
        http.post("/v1/courses/window/check", json=bad),
        http.put("/v1/courses/window", json=bad),
    ):
        assert 'Line 5: "context_window" is above that of the model' in refused(answer, 400)


def test_instructions_naming_a_missing_tool_are_a_warning_with_their_line(
    server: ServerInThread, http: httpx2.Client
) -> None:
    words = (
        '"Use memory_insert, and archival_memory_search for what is long. no_such_tool is none."'
    )
    text = f'[[agent]]\nname = "a"\nmodel = "{MODEL}"\ninstructions = {words}\n'
    text += '[[task]]\nname = "t"\nidle_minutes = 5\ninstructions = "memory_insert"\ntools = []\n'
    course_file(server, "words", text)
    (line,) = [one for one in ok(http.post("/v1/courses/check")) if one["name"] == "words"]
    assert line["fault"] is None
    first, second = line["warning"].splitlines()
    assert first.startswith('words/agents.toml: Line 4: the text names the tool "archival_memory')
    assert first.endswith('which is not in the "tools" of this agent.')
    assert second.startswith('words/agents.toml: Line 8: the text names the tool "memory_insert"')
    assert second.endswith('which is not in the "tools" of this task.')


def test_a_limit_below_the_current_shared_text_is_reported(
    server: ServerInThread, http: httpx2.Client
) -> None:
    plan = f'[[agent]]\nname = "a"\nmodel = "{MODEL}"\ninstructions = "Teach."\n'
    plan += '[[block]]\nlabel = "plan"\nshared = true\nvalue = "Week 1"\nlimit = 900\n'
    agent = ok(http.put("/v1/courses/plan", json={"source": plan}))["agents"]["a"]
    (block,) = ok(http.get(f"/v1/agents/{agent}"))["blocks"]
    ok(http.patch(f"/v1/blocks/{block['id']}", json={"value": "Week 2, " * 20}))
    course_file(server, "plan", plan.replace("900", "60"))
    checked = faults(ok(http.post("/v1/courses/check")))
    assert "plan/agents.toml: Line 5: " in (checked["plan"] or "")
    assert faults(ok(http.post("/v1/courses/apply")))["plan"] == checked["plan"]


def test_an_agent_removed_from_the_file_is_hidden_until_it_returns(
    server: ServerInThread, http: httpx2.Client
) -> None:
    one = f'[[agent]]\nname = "a"\nmodel = "{MODEL}"\ninstructions = "Teach."\n'
    two = one.replace('"a"', '"b"')
    agents = ok(http.put("/v1/courses/pair", json={"source": one + two}))["agents"]
    assert sorted(agents) == ["a", "b"]
    assert ok(http.put("/v1/courses/pair", json={"source": one}))["agents"] == {"a": agents["a"]}
    assert ok(http.get(f"/v1/agents/{agents['b']}"))["hidden"] is True
    assert agents["b"] not in http.get("/ui/agents").text
    again = ok(http.put("/v1/courses/pair", json={"source": one + two}))["agents"]
    assert again == agents
    assert ok(http.get(f"/v1/agents/{agents['b']}"))["hidden"] is False


def test_a_course_check_without_courses_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_DATA_DIR", str(tmp_path))
    result = CliRunner().invoke(app, ["course", "check"])
    assert (result.exit_code, "ricordo course new NAME" in result.output) == (1, True)


def test_a_course_that_cannot_be_applied_any_more_leaves_its_file_unchanged(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Unavailable("The folder is read-only.")

    path = course_file(server, "lab", GOOD)
    monkeypatch.setattr(service, "write_schemas", fail)
    for content in (GOOD.replace("\n", "\r\n").encode(), b"# \xff\n" + GOOD.encode()):
        path.write_bytes(content)
        source = {"source": GOOD.replace("Essay", "New")}
        assert "read-only" in refused(http.put("/v1/courses/lab", json=source), 503)
        assert path.read_bytes() == content
    path.unlink()
    assert "read-only" in refused(http.put("/v1/courses/lab", json={"source": GOOD}), 503)
    assert not path.exists()
    server.provoked()


def test_a_course_file_that_cannot_be_replaced_or_deleted_is_reported(
    server: ServerInThread, http: httpx2.Client
) -> None:
    path = course_file(server, "lab", GOOD)
    ok(http.post("/v1/courses/apply"))
    path.unlink()
    path.mkdir()
    assert "cannot be read" in refused(http.put("/v1/courses/lab", json={"source": GOOD}), 503)
    assert "cannot be deleted" in refused(http.delete("/v1/courses/lab"), 503)
    server.provoked()
    path.rmdir()
    ok(http.delete("/v1/courses/lab"))


def test_the_doctor_lists_faults_of_course_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_DATA_DIR", str(tmp_path))
    for name, text in (("art", GOOD), ("essay", GOOD.replace("[[task]]", "[[tasks]]"))):
        (tmp_path / "courses" / name).mkdir(parents=True)
        (tmp_path / "courses" / name / "agents.toml").write_text(text, "utf-8")
    lines = findings(Settings(data_dir=tmp_path))
    assert lines[0].startswith('!essay/agents.toml: Line 10: "tasks" is not known here.')
    assert lines[1].startswith("courses: art ")
    monkeypatch.setenv("RICORDO_COURSES_DIR", str(tmp_path / "none"))
    (line,) = findings(Settings(data_dir=tmp_path))
    assert line.startswith(f"!There is no folder {tmp_path / 'none'}.")
