"""The plugin in `examples/plugin`.

The tests install it like any package, use it in a server, and compare it with its page.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "examples" / "plugin"
PAGE = (ROOT / "docs" / "develop" / "plugins.md").read_text("utf-8")
PROGRAM = """
import ricordo
from ricordo.cli.settings_list import show_settings
from ricordo.llm.scripted import ScriptedModel, call

model = ScriptedModel([call("count_days_until", day="2000-01-01"), "It is over."])
with ricordo.open("data", models=[model], model="scripted/model", find_local_models=False) as client:
    print(client.get("/v1/countdown/2000-01-01", cast_to=object)["days"] < 0)
    agent = client.agents.create(tools=["count_days_until"], include_base_tools=False)
    (tool,) = agent.tools
    print(tool.description, tool.json_schema["parameters"]["properties"]["day"]["description"])
    answer = client.agents.messages.create(agent.id, input="How long until the year 2000?")
    print([m.tool_return for m in answer.messages if m.message_type == "tool_return_message"])
    for day in ("soon", "2000-13-01"):
        try:
            client.get(f"/v1/countdown/{day}", cast_to=object)
        except Exception as error:
            print(error)
    print("/v1/countdown/{day}" in client.get("/openapi.json", cast_to=object)["paths"])
show_settings()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install a copy of the plugin without the network, into a separate folder."""
    folder = tmp_path_factory.mktemp("plugin")
    source, target = folder / "source", folder / "installed"
    shutil.copytree(PLUGIN, source)
    options = "--quiet --no-deps --no-build-isolation --no-index --disable-pip-version-check"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options.split(), "--target", target, source],
        check=True,
    )
    return target


def run(installed: Path, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    given = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(installed),
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_plugin_adds_its_tool_its_route_and_its_setting(
    installed: Path, tmp_path: Path
) -> None:
    done = run(installed, tmp_path, RICORDO_COUNTDOWN_TIMEZONE="Europe/Rome")
    assert done.returncode == 0, done.stderr
    is_over, described, result, no_date, no_month, is_listed, settings = done.stdout.split("\n", 6)
    assert is_over == "True"
    assert described == "Count the days until a day, such as an exam. The day, like 2027-06-30."
    assert re.search(r"-\d+ days remain until 2000-01-01\.", result)
    assert '"soon" is no date. Write it like 2027-06-30.' in no_date.replace("\\", "")
    assert '"2000-13-01" is no date.' in no_month.replace("\\", "")
    assert is_listed == "True"
    assert "RICORDO_COUNTDOWN_TIMEZONE = Europe/Rome (default: UTC)" in settings
    assert "not a setting of Ricordo" not in done.stderr


def test_an_unknown_setting_of_a_plugin_is_refused_by_its_name(
    installed: Path, tmp_path: Path
) -> None:
    done = run(installed, tmp_path, RICORDO_COUNTDOWN_TIMEZON="Europe/Rome")
    assert "RICORDO_COUNTDOWN_TIMEZON is not a setting of Ricordo" in done.stderr


def test_the_page_shows_the_complete_plugin() -> None:
    shown = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    files = {
        path.relative_to(PLUGIN).as_posix(): path.read_text("utf-8").strip()
        for path in PLUGIN.rglob("*")
        if path.suffix in (".py", ".toml")
    }
    assert {name: text.strip() for name, text in shown} == files
