"""Containerfile, compose files, systemd unit and Open WebUI's pipe.

The tests check that the names in these files exist, and that the files work as documented. They do
not build the image, since that takes a container builder and a base image from the network.
"""

import asyncio
import importlib.util
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from ricordo.domain.message import ReasoningPart, TextPart
from ricordo.domain.model import ModelReply
from ricordo.settings import ProviderSettings, Settings
from tests.seams.http import bearer
from tests.seams.server import MODEL, Gate, ServerInThread, call, serving

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (ROOT / "Containerfile").read_text("utf-8")
COMPOSE: dict[str, dict[str, Any]] = {
    path.name: yaml.safe_load(path.read_text("utf-8")) for path in DEPLOY.glob("compose*.yaml")
}
UNIT = (DEPLOY / "ricordo.service").read_text("utf-8")
VARIABLES = {f"RICORDO_{name.upper()}" for name in Settings.model_fields} | {
    name.upper() for name in ProviderSettings.model_fields
}
LIMIT = 60


def instructions(name: str) -> list[str]:
    joined = re.sub(r"\\\n", "", CONTAINERFILE)
    return [
        line.partition(" ")[2].strip()
        for line in joined.splitlines()
        if line.startswith(f"{name} ")
    ]


def test_hadolint_finds_nothing_in_the_containerfile() -> None:
    """Hadolint comes with requirements/dev.txt on every platform but Windows."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, ROOT / "Containerfile"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_image_has_no_root_user_a_volume_and_a_configurable_base() -> None:
    assert instructions("USER") == ["10001:10001"]
    assert "--owner=10001 --group=10001" in CONTAINERFILE
    (volume,) = instructions("VOLUME")
    environment = dict(part.split("=", 1) for part in " ".join(instructions("ENV")).split())
    assert environment["RICORDO_DATA_DIR"] == volume
    assert {name for name in environment if name.startswith("RICORDO_")} <= VARIABLES
    assert instructions("EXPOSE") == [str(Settings.model_fields["port"].default)]
    assert {line.partition(" ")[0] for line in instructions("FROM")} == {"${PYTHON_IMAGE}"}
    assert re.fullmatch(
        r"PYTHON_IMAGE=docker\.io/library/python:3\.\d+-slim-\w+", instructions("ARG")[0]
    )
    assert "://" not in CONTAINERFILE


def test_copied_files_exist_and_are_not_ignored() -> None:
    copied = {
        path for line in instructions("COPY") if "--from" not in line for path in line.split()[:-1]
    }
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    assert {path for path in copied if not (ROOT / path).exists()} == set()
    assert {path.partition("/")[0] for path in copied} == let_in
    packages = (ROOT / "requirements/container.txt").read_text("utf-8")
    assert [
        name
        for name in ("psycopg", "anthropic", "hatchling")
        if not re.search(rf"^{name}(\[.*\])?==", packages, re.MULTILINE)
    ] == []


def test_each_compose_file_extends_the_first_and_names_only_existing_files() -> None:
    assert set(COMPOSE) == {
        f"compose{kind}.yaml" for kind in ("", ".postgres", ".ollama", ".open-webui")
    }
    alone = COMPOSE["compose.yaml"]["services"]["ricordo"]
    assert (alone["build"], alone["volumes"]) == (
        {"context": "..", "dockerfile": "Containerfile"},
        ["data:/data"],
    )
    assert alone["read_only"] is True
    for name, file in COMPOSE.items():
        services = {**COMPOSE["compose.yaml"]["services"], **file["services"]}
        for service in file["services"].values():
            assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(
                file["volumes"]
            ), name
            assert set(service.get("depends_on", [])) <= set(services), name
            for port in service.get("ports", []):
                assert port.startswith("127.0.0.1:"), f"{name} opens {port} to other machines"
        given = file["services"].get("ricordo", {}).get("environment", {})
        assert set(given) <= VARIABLES, name
        images = [service["image"] for key, service in file["services"].items() if key != "ricordo"]
        assert [
            image
            for image in images
            if not re.fullmatch(r"\$\{\w+_IMAGE:-[a-z.]+/[a-z/-]+:[\w.-]+\}", image)
        ] == []
        text = (DEPLOY / name).read_text("utf-8")
        assert set(re.findall(r"deploy/(\S+\.yaml)", text)) <= set(COMPOSE)


def test_the_compose_files_require_a_key_and_give_valid_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {
        variable: value
        for file in COMPOSE.values()
        for variable, value in file["services"].get("ricordo", {}).get("environment", {}).items()
    }
    assert given["RICORDO_API_KEY"].startswith("${RICORDO_API_KEY:?")
    for variable, value in given.items():
        monkeypatch.setenv(
            variable,
            re.sub(r"\$\{\w+:([?-])([^}]*)\}", lambda m: "a" * 32 if m[1] == "?" else m[2], value),
        )
    settings, providers = Settings(), ProviderSettings()
    assert settings.postgres_url == f"postgresql://ricordo:{'a' * 32}@postgres/ricordo"
    assert (str(providers.ollama_base_url), providers.ollama_context_length) == (
        "http://ollama:11434",
        16384,
    )


def test_the_unit_gives_the_server_time_to_stop_and_few_rights() -> None:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT)
    service = parser["Service"]
    grace = Settings.model_fields["shutdown_grace"].default
    assert float(service["TimeoutStopSec"]) > grace + 5
    assert (
        float(COMPOSE["compose.yaml"]["services"]["ricordo"]["stop_grace_period"].removesuffix("s"))
        > grace + 5
    )
    variable, _, folder = service["Environment"].partition("=")
    assert variable in VARIABLES
    assert folder == f"/var/lib/{service['StateDirectory']}" == service["WorkingDirectory"]
    assert service["User"] == "ricordo"
    strict = (
        "NoNewPrivileges",
        "PrivateTmp",
        "PrivateDevices",
        "ProtectHome",
        "RestrictNamespaces",
        "LockPersonality",
    )
    assert [name for name in strict if service[name] != "yes"] == []
    assert (service["ProtectSystem"], service["CapabilityBoundingSet"]) == ("strict", "")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not on this machine")
def test_systemd_accepts_the_unit_and_rates_its_exposure_low(
    tmp_path: Path,
) -> None:
    unit = tmp_path / "ricordo.service"
    unit.write_text(
        re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT, flags=re.MULTILINE), "utf-8"
    )
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)]
    for each in (["systemd-analyze", "verify", str(unit)], command):
        done = subprocess.run(each, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(
        tmp_path_factory.mktemp("school"), api_key="a-long-secret-of-the-operator"
    ) as server:
        yield server


def test_the_images_health_check_fails_without_a_server(
    school: ServerInThread,
) -> None:
    check = json.loads(instructions("HEALTHCHECK")[0].partition("CMD ")[2])
    assert check[0] == "python"
    port = school.url.rpartition(":")[2]
    for environment, code in (({"RICORDO_PORT": port}, 0), ({"RICORDO_PORT": "1"}, 1)):
        done = subprocess.run(
            [sys.executable, *check[1:]],
            env=environment,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == code


# Open WebUI's pipe, called as Open WebUI 0.12.4 calls it.


@pytest.fixture
def pipe(school: ServerInThread) -> Any:
    """The pipe with a service's key, loaded again as at a start of Open WebUI."""
    spec = importlib.util.spec_from_file_location(
        "open_webui_pipe", ROOT / "ricordo/features/openwebui/mirror/pipe.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.Pipe()
    made.valves = made.Valves(SERVER_URL=school.url, API_KEY=school.key(role="service"))
    school.forget()
    return made


def chat(
    pipe: Any,
    model: str,
    said: Any,
    *before: str,
    user: str = "1",
    stream: bool = True,
    **more: Any,
) -> list[str]:
    """Return the pieces of an answer that Open WebUI shows."""
    earlier = [
        {"role": ("user", "assistant")[place % 2], "content": text}
        for place, text in enumerate(before)
    ]

    async def talk() -> list[str]:
        body = {
            "model": f"ricordo.{model}",
            "stream": stream,
            "messages": [*earlier, {"role": "user", "content": said}],
            "tools": [{}] * 36,
        }
        answer = await pipe.pipe(body, {"id": user, "role": "user"}, **more)
        return [answer] if isinstance(answer, str) else [piece async for piece in answer]

    return asyncio.run(talk())


def test_open_webui_lists_the_agents_and_streams_their_answers(
    pipe: Any, school: ServerInThread
) -> None:
    with school.client(api_key="a-long-secret-of-the-operator") as client:
        agent = client.agents.create(name="Tutor", model=MODEL)
        assert {"id": agent.id, "name": "Tutor"} in asyncio.run(pipe.pipes())
        school.says("It is raining in Turin.", "The sun shines again.")
        assert (
            "".join(chat(pipe, agent.id, "How is the weather?", __chat_id__="c1"))
            == "It is raining in Turin."
        )
        parts = [{"type": "text", "text": "And now?"}]
        before = ("How is the weather?", "It is raining in Turin.")
        assert chat(pipe, agent.id, parts, *before, __chat_id__="c1", stream=False) == [
            "The sun shines again."
        ]
        (conversation,) = client.conversations.list(agent_id=agent.id)
        assert conversation.summary == "chat_c1"
        said = [
            each.content
            for each in client.conversations.messages.list(conversation.id)
            if each.message_type == "user_message"
        ]
        assert sorted(map(str, said)) == ["And now?", "How is the weather?"]


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        ((TextPart("One, two, th"),), "One, two, th"),
        ((ReasoningPart("Let me count."),), "The model reached its limit of tokens"),
    ],
)
def test_open_webui_shows_an_answer_at_the_limit_of_tokens_or_the_reason(
    pipe: Any, school: ServerInThread, parts: tuple[TextPart | ReasoningPart, ...], shown: str
) -> None:
    with school.client(api_key="a-long-secret-of-the-operator") as client:
        agent = client.agents.create(model=MODEL)
    school.says(ModelReply(parts, finish="length"))
    assert "".join(chat(pipe, agent.id, "Count.", __chat_id__="c1")).startswith(shown)


def test_open_webui_shows_proposals_and_sends_edits_and_stops(
    pipe: Any, school: ServerInThread
) -> None:
    with school.client(api_key="a-long-secret-of-the-operator") as client:
        blocks = [{"label": "student", "value": "", "policy": "propose"}]
        agent = client.agents.create(model=MODEL, memory_blocks=blocks)  # type: ignore[list-item]
    shown: list[Any] = []

    async def emitter(event: Any) -> None:
        shown.append(event["data"])

    school.says(call("memory_insert", label="student", new_string="Plays the cello."), "I see.")
    assert (
        "".join(
            chat(pipe, agent.id, "I play the cello.", __chat_id__="e", __event_emitter__=emitter)
        )
        == "I see."
    )
    assert [each["description"].split(" (")[0] for each in shown] == [
        "Thinking…",
        "Using memory_insert",
        "Used memory_insert",
        "Proposed to remember: Plays the cello.",
    ]
    gate = Gate(school)
    school.answers_with(gate)

    async def stop() -> None:
        body = {
            "model": f"ricordo.{agent.id}",
            "stream": True,
            "messages": [{"role": "user", "content": "Slowly."}],
        }
        begun = asyncio.Event()

        async def begin(_event: Any) -> None:
            begun.set()

        answer = await pipe.pipe(body, {"id": "1"}, __chat_id__="stopped", __event_emitter__=begin)
        reading = asyncio.ensure_future(anext(answer))
        await begun.wait()
        await asyncio.to_thread(gate.wait)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading

    asyncio.run(stop())
    with school.client(api_key="a-long-secret-of-the-operator") as client:
        assert [run.status for run in client.runs.list(agent_id=agent.id)] == [
            "cancelled",
            "completed",
        ]


def test_two_users_of_open_webui_are_two_users_here_with_own_conversations(
    pipe: Any, school: ServerInThread
) -> None:
    with school.client(api_key="a-long-secret-of-the-operator") as client:
        agent = client.agents.create(model=MODEL)
        for user in ("1", "2", "1"):
            chat(pipe, agent.id, "Hello.", user=user, __chat_id__=f"of-{user}")
        users = {
            each.summary: each.model_dump()["user_id"]
            for each in client.conversations.list(agent_id=agent.id)
        }
        assert set(users) == {"chat_of-1", "chat_of-2"}
        assert len(set(users.values())) == 2


def test_title_requests_reach_no_agent_and_errors_are_explained(
    pipe: Any, school: ServerInThread
) -> None:
    with school.client(api_key="a-long-secret-of-the-operator") as client:
        agent = client.agents.create(model=MODEL)
    assert chat(
        pipe,
        agent.id,
        "### Task: a title",
        stream=False,
        __chat_id__="t",
        __task__="title_generation",
    ) == ["{}"]
    assert school.model.requests == []
    gone = "agent-00000000-0000-4000-8000-000000000000"
    assert "".join(chat(pipe, gone, "Hello.", __chat_id__="x")).startswith("Ricordo refused: ")
    pipe.valves.API_KEY = "wrong"
    assert "This key is unknown" in "".join(chat(pipe, agent.id, "Hello.", __chat_id__="x"))
    pipe.valves.SERVER_URL = "http://127.0.0.1:1"
    assert "".join(chat(pipe, agent.id, "Hello.")).startswith(
        "Ricordo does not answer (ConnectError)."
    )


def test_the_link_is_the_last_status_and_text_like_an_event_is_shown(
    pipe: Any, school: ServerInThread
) -> None:
    """Open WebUI shows only the last status.

    It treats a piece that begins with `data:` as an event.
    """
    with school.client(api_key="a-long-secret-of-the-operator") as client:
        blocks = [{"label": "music", "value": "", "policy": "propose"}]
        agent = client.agents.create(model=MODEL, memory_blocks=blocks)  # type: ignore[list-item]
    pipe.valves.LINK_URL = "https://memory.example.org/"
    shown: list[str] = []

    async def emitter(event: Any) -> None:
        shown.append(event["data"]["description"])

    school.says(
        call("memory_insert", label="music", new_string="Plays the harp."), 'data: {"event": 1}'
    )
    pieces = chat(pipe, agent.id, "I play the harp.", __chat_id__="l", __event_emitter__=emitter)
    assert "".join(pieces) == 'data: {"event": 1}'
    assert not any(piece.startswith("data:") for piece in pieces)
    assert shown[-1].startswith(
        "Proposed to remember: Plays the harp. (https://memory.example.org/ui/people/"
    )


@pytest.mark.parametrize(
    ("answers", "status", "said_last"),
    [
        ([True], "approved", "Remembered: music"),
        ([False, True], "rejected", "Not remembered: music"),
        ([False, False], "open", "Proposed to remember: *The* harp … – decide at "),
        ([None, None], "open", "Proposed to remember: *The* harp … – decide at "),
        ([TimeoutError()], "open", "Proposed to remember: *The* harp … – decide at "),
    ],
)
def test_a_user_decides_in_the_chat_about_a_completely_shown_proposal(
    pipe: Any, school: ServerInThread, answers: list[Any], status: str, said_last: str
) -> None:
    with school.client(api_key="a-long-secret-of-the-operator") as client:
        blocks = [{"label": "music", "value": "", "policy": "propose"}]
        agent = client.agents.create(model=MODEL, memory_blocks=blocks)  # type: ignore[list-item]
    scopes = ["agents:read", "messages:write", "messages:read", "memory:write", "memory:read"]
    pipe.valves.API_KEY = school.key(
        role="service", scopes=[*scopes, "memory:approve", "users:impersonate"]
    )
    shown: list[str] = []
    questions: list[Any] = []

    async def emitter(event: Any) -> None:
        shown.append(event["data"]["description"])

    async def ask(event: Any) -> Any:
        questions.append(event)
        answer = answers[len(questions) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    school.says(
        call("memory_insert", label="music", new_string="*The* harp\n<b>and</b> the flute."), "Yes."
    )
    user = f"music-{status}-{len(questions)}-{answers[0]}"
    chat(
        pipe,
        agent.id,
        "I play the harp.",
        user=user,
        __chat_id__="d",
        __event_emitter__=emitter,
        __event_call__=ask,
        __session_id__="a-browser",
    )
    assert len(questions) == len(answers)
    assert {question["type"] for question in questions} == {"confirmation"}
    # Markdown shows lines that are indented by four spaces unchanged.
    assert "    + *The* harp\n    + <b>and</b> the flute." in questions[0]["data"]["message"]
    assert shown[-1].startswith(said_last)
    with school.http(headers=bearer(pipe.valves.API_KEY)) as http:
        listed = http.get(f"/users/open-webui:{user}/diffs", params={"status": "all"}).json()
    assert [proposal["status"] for proposal in listed] == [status]


def test_a_link_is_shown_if_a_dialog_cannot_decide(pipe: Any, school: ServerInThread) -> None:
    with school.client(api_key="a-long-secret-of-the-operator") as client:
        blocks = [{"label": "music", "value": "", "policy": "propose"}]
        agent = client.agents.create(model=MODEL, memory_blocks=blocks)  # type: ignore[list-item]
    service = pipe.valves.API_KEY
    approving = school.key(
        role="service",
        scopes=["agents:read", "messages:write", "memory:approve", "users:impersonate"],
    )

    async def ask(event: Any) -> Any:
        raise AssertionError(event)

    for key, text in ((service, "Plays the harp."), (approving, "A long story. " * 200)):
        pipe.valves.API_KEY = key
        shown: list[str] = []

        async def emitter(event: Any, shown: list[str] = shown) -> None:
            shown.append(event["data"]["description"])

        school.says(call("memory_insert", label="music", new_string=text), "Yes.")
        chat(
            pipe,
            agent.id,
            "I play.",
            user=f"long-{len(text)}",
            __chat_id__="d",
            __event_emitter__=emitter,
            __event_call__=ask,
            __session_id__="a-browser",
        )
        assert ("/decide?token=" in shown[-1]) == (key == approving)
        assert ("/ui/people/" in shown[-1]) == (key == service)


def test_a_temporary_chat_is_answered_with_memory_and_not_stored(
    pipe: Any, school: ServerInThread
) -> None:
    with school.client(api_key="a-long-secret-of-the-operator") as client:
        blocks = [{"label": "music", "value": "Everybody sings."}]
        agent = client.agents.create(model=MODEL, memory_blocks=blocks)  # type: ignore[list-item]
    school.says("Sing, kanarien.")
    pieces = chat(
        pipe,
        agent.id,
        "I am kanari.",
        "Earlier kanarifirst.",
        "Answer kanarisecond.",
        user="passing",
        __chat_id__="local:x",
    )
    assert "".join(pieces) == "Sing, kanarien."
    (request,) = school.model.requests
    assert "Everybody sings." in request.messages[0].text
    assert request.tools == ()
    assert [message.text for message in request.messages[1:]] == [
        "Earlier kanarifirst.",
        "Answer kanarisecond.",
        "I am kanari.",
    ]
    with closing(sqlite3.connect(school.settings.data_dir / "ricordo.db")) as database:
        assert not [row for row in database.iterdump() if "kanari" in row]


def test_users_get_their_names_from_open_webui(pipe: Any, school: ServerInThread) -> None:
    with school.client(api_key="a-long-secret-of-the-operator") as client:
        agent = client.agents.create(model=MODEL)

    async def talk(name: str) -> None:
        body = {"model": f"r.{agent.id}", "messages": [{"role": "user", "content": "Hello."}]}
        await pipe.pipe(body, {"id": "7f", "name": name}, __chat_id__="n")

    with school.http(headers={"authorization": "Bearer a-long-secret-of-the-operator"}) as http:
        for sent, kept in (("", "open-webui:7f"), ("Ada\n Love\u200blace", "Ada Lovelace")):
            asyncio.run(talk(sent))
            assert http.get("/v1/users/open-webui:7f").json()["name"] == kept
        asyncio.run(talk("Somebody else"))
        assert http.get("/v1/users/open-webui:7f").json()["name"] == "Ada Lovelace"


def test_a_failed_connection_is_shown_in_the_list_of_models(
    pipe: Any, school: ServerInThread
) -> None:
    pipe.valves.API_KEY = "wrong"
    assert asyncio.run(pipe.pipes()) == [{"id": "none", "name": "Ricordo refuses API_KEY (401)"}]
    pipe.valves.SERVER_URL = "http://127.0.0.1:1"
    (shown,) = asyncio.run(pipe.pipes())
    assert shown["name"] == "Ricordo does not answer at SERVER_URL (ConnectError)"
    assert school.model.requests == []
