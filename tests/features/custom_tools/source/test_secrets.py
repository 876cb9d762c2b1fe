"""Secrets of agents: their tools get the values, and nobody else reads them."""

import itertools
import json
import logging
import random
from typing import Any

import pytest

from ricordo.features.custom_tools.source.vault import SecretMask
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.server import MODEL

TOKEN, OTHER = "tok-9f8e7d6c5b4a", 'p@ss: "wörd"\\n<1>'
TELLS = '''
import os, sys

def tell(fails: bool = False) -> dict:
    """Tell."""
    print("begin", os.environ["TOKEN"])
    print(os.environ["OTHER"], file=sys.stderr)
    if fails:
        raise ValueError("broken: " + os.environ["TOKEN"])
    return {"token": os.environ["TOKEN"], os.environ["OTHER"]: [os.environ["OTHER"], os.environ["SHORT"]]}
'''


def everything(api: Api, agent_id: str, answer: Any) -> str:
    """Return everything that this server shows of the agent and its turns."""
    http = api.http
    paths = [
        f"/v1/agents/{agent_id}",
        f"/v1/agents/{agent_id}/context",
        f"/v1/agents/{agent_id}/messages",
        "/v1/steps/",
        "/v1/runs/",
    ]
    steps = http.get("/v1/steps/").json()
    paths += [
        f"/v1/steps/{step['id']}/{part}"
        for step in steps
        for part in ("trace", "messages", "metrics")
    ]
    paths += [f"/ui/agents/{agent_id}/{part}" for part in ("chat", "settings", "context")]
    shown = [http.get(path).text for path in paths]
    prompts = str([request.messages for request in api.server.model.requests])
    return f"{answer}{shown}{prompts}"


def test_a_tool_gets_its_secrets_and_no_response_shows_them(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tool = api.client.tools.create(source_code=TELLS)
    agent = api.client.agents.create(
        model=MODEL,
        tool_ids=[tool.id],
        secrets={"TOKEN": TOKEN},
        tool_exec_environment_variables={"OTHER": OTHER, "SHORT": "abc"},
    )
    assert [(each.key, each.value) for each in agent.secrets or ()] == [
        ("OTHER", ""),
        ("SHORT", ""),
        ("TOKEN", ""),
    ]
    api.server.says(call("tell"), call("tell", fails=True), "Done.")
    answer = api.client.agents.messages.create(agent.id, input="Go.")
    returns = [each for each in answer.messages if each.message_type == "tool_return_message"]
    assert returns[0].status == "success"
    assert "[secret TOKEN]" in returns[0].tool_return
    assert "abc" in returns[0].tool_return  # too short to distinguish it from other words
    assert returns[0].stdout == ["begin [secret TOKEN]"]
    assert returns[0].stderr == ["[secret OTHER]"]
    assert "ValueError: broken: [secret TOKEN]" in returns[1].tool_return
    logged = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith(("ricordo", "uvicorn"))
    ]
    told = everything(api, agent.id, answer) + str(logged)
    assert TOKEN not in told
    assert OTHER not in told
    assert "wörd" not in told
    tried = api.client.agents.tools.run("tell", agent_id=agent.id, args={})
    assert TOKEN not in str(tried)
    assert "[secret TOKEN]" in str(tried)
    stored = api.server.settings.database_path.read_bytes()
    assert TOKEN.encode() not in stored
    assert "wörd".encode() not in stored
    api.client.tools.delete(tool.id)


def test_updating_secrets_replaces_all_and_empty_values_keep_stored_ones(api: Api) -> None:
    tool = api.client.tools.create(
        source_code=TELLS.replace("tell(", "whisper(").replace('os.environ["SHORT"]', '""')
    )
    agent = api.client.agents.create(
        model=MODEL, tool_ids=[tool.id], secrets={"TOKEN": TOKEN, "OTHER": OTHER, "GONE": "x"}
    )
    changed = api.client.agents.update(agent.id, secrets={"TOKEN": "", "OTHER": "another-secret"})
    assert [each.key for each in changed.secrets or ()] == ["OTHER", "TOKEN"]
    assert [each.key for each in api.client.agents.update(agent.id, name="New").secrets or ()] == [
        "OTHER",
        "TOKEN",
    ]
    tried = api.client.agents.tools.run("whisper", agent_id=agent.id, args={})
    assert (tried.status, tried.stdout, tried.stderr) == (
        "success",
        ["begin [secret TOKEN]"],
        ["[secret OTHER]"],
    )
    assert api.client.agents.update(agent.id, secrets={}).secrets == []
    tried = api.client.agents.tools.run("whisper", agent_id=agent.id, args={})
    assert "KeyError: 'TOKEN'" in str(tried.func_return)
    api.client.tools.delete(tool.id)


@pytest.mark.parametrize(
    "wrong",
    [
        {"A B": "x"},
        {"": "x"},
        {"1A": "x"},
        {"A=B": "x"},
        {"A": "x" * 20_001},
        {f"A{n}": "" for n in range(101)},
    ],
)
def test_invalid_environment_variables_are_refused(api: Api, wrong: dict[str, str]) -> None:
    assert api.http.post("/v1/agents/", json={"model": MODEL, "secrets": wrong}).status_code == 422


PEM = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEAu1SU1L\nVLPHCozMxH2Mo4lgOE\n-----END KEY-----"
SPACED = "correct  horse\tbattery"
PRINTS = """
import os, sys, time

def prints() -> str:
    \"\"\"Print.\"\"\"
    sys.stdout.write("begin " + os.environ["PEM"] + " and " + os.environ["SPACED"] + "\\n")
    sys.stdout.flush()
    time.sleep(0.3)
    for letter in os.environ["SPACED"] + " split":
        sys.stdout.write(letter)
        sys.stdout.flush()
        time.sleep(0.01)
    sys.stdout.write("\\n" + "x" * 19_800 + os.environ["PEM"])
    sys.stderr.write("y" * 19_990 + os.environ["PEM"])
    return "done"
"""


def test_the_stream_of_a_tools_output_has_no_part_of_a_secret(api: Api) -> None:
    tool = api.client.tools.create(source_code=PRINTS)
    agent = api.client.agents.create(
        model=MODEL, tool_ids=[tool.id], secrets={"PEM": PEM, "SPACED": SPACED}
    )
    api.server.says(call("prints"), "Done.")
    body = {
        "messages": [{"role": "user", "content": "Go."}],
        "stream_tokens": True,
        "include_pings": True,
    }
    with api.http.stream("POST", f"/v1/agents/{agent.id}/messages/stream", json=body) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    told = "".join(json.dumps(json.loads(line.removeprefix("data: "))) for line in lines)
    progress = "".join(
        event["progress"] for line in lines if "progress" in (event := json.loads(line[6:]))
    )
    assert "begin [secret PEM] and [secret SPACED]" in progress
    assert progress.count("[secret SPACED]") == 2
    for part in ("MIIE", "VLPH", "BEGIN KEY", "correct", "battery"):
        assert part not in told
    api.client.tools.delete(tool.id)


@pytest.mark.parametrize("seed", range(20))
def test_a_secret_is_masked_if_its_blanks_and_line_breaks_were_changed(seed: int) -> None:
    """Random blanks instead of the secret's, in a text and in JSON, whole and in pieces."""
    rng = random.Random(seed)  # noqa: S311 - a seeded test
    mask = SecretMask({"PEM": PEM, "SPACED": SPACED})
    for secret in (PEM, SPACED):
        first, *words = secret.split()
        gaps = ["", " ", "\n", "  \t", "\r\n"]
        changed = first + "".join(rng.choice(gaps) + word for word in words)
        signs = "".join(secret.split())
        for text in (f"begin {changed} end", json.dumps({"begin": changed, "end": 1})):
            whole = mask.mask(text)
            assert "[secret " in whole
            assert not any(part in "".join(whole.split()) for part in (signs[:6], signs[-6:]))
            assert whole.startswith(text[:6])
            assert whole.endswith(text[-4:])
            pieces = mask.pieces()
            cuts = sorted(rng.randrange(len(text)) for _ in range(5))
            parts = [text[i:j].encode() for i, j in itertools.pairwise([0, *cuts, len(text)])]
            assert "".join(map(pieces.add, parts)) + pieces.rest() == whole


def test_joined_and_wrapped_words_of_a_secret_are_masked() -> None:
    mask = SecretMask({"SPACED": "correct horse battery", "KEY": "abcdef123456"})
    for shown in ("correct  horse battery", "correct horse\nbattery", "correcthorsebattery"):
        assert mask.mask(f"It is {shown}.") == "It is [secret SPACED]."
    for other in ("correct horses battery", "correct horse bat", "abcdef 123456"):
        assert mask.mask(other) == other


@pytest.mark.parametrize("seed", range(40))
def test_masked_pieces_are_the_masked_whole(seed: int) -> None:
    """Random secrets, some inside others, in random text that is cut at random."""
    rng = random.Random(seed)  # noqa: S311 - a seeded test
    letters = 'ab \n\té"\\'

    def letters_of(length: int) -> str:
        return "".join(rng.choice(letters) for _ in range(length))

    secrets = {f"S{number}": letters_of(rng.randrange(6, 14)) for number in range(4)}
    secrets["INNER"] = secrets["S0"][: rng.randrange(6, 8)]
    secrets["SHORT"] = letters_of(3)
    parts = [letters_of(rng.randrange(12)) for _ in range(12)]
    parts += [rng.choice(list(secrets.values())) for _ in range(12)]
    rng.shuffle(parts)
    text = "".join(parts).encode()
    mask = SecretMask(secrets)
    whole = mask.mask(text.decode())
    pieces = mask.pieces()
    shown = ""
    position = 0
    while position < len(text):
        end = position + rng.randrange(1, 9)
        shown += pieces.add(text[position:end])
        position = end
    assert shown + pieces.rest() == whole
    assert not [name for name, secret in secrets.items() if len(secret) > 5 and secret in whole]
