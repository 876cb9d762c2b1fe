"""Features can be removed.

If a feature's folder and its name in the list are missing, the server still starts and answers.
"""

import os
import re
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import ricordo
from ricordo.errors import Invalid
from ricordo.features import FEATURES
from ricordo.plugins import load_commands, load_plugins, missing_requirements
from tests.support.ready import Helper

PACKAGE = Path(ricordo.__file__).parent
# The program starts the server in this process on an empty folder, makes an agent, talks with it
# and imports all routes. It runs in a fork of a process that has already imported all other
# packages.
TALK = """
import asyncio, sys
from pathlib import Path
import httpx2
import ricordo.app, ricordo.cli

for name in [name for name in sys.modules if name.partition(".")[0] in ("ricordo", "tests")]:
    del sys.modules[name]

async def talk(folder):
    import ricordo
    assert Path(ricordo.__file__).parent == folder / "ricordo", ricordo.__file__
    from ricordo.app import create_app
    from ricordo.llm.scripted import ScriptedModel
    from ricordo.settings import ProviderSettings, Settings
    settings = Settings(data_dir=folder / "data", find_local_models=False, embedding="none")
    app = create_app(settings, ProviderSettings.model_construct(), extra_models=[ScriptedModel(["It rains."])])
    async with app.router.lifespan_context(app):
        transport = httpx2.ASGITransport(app, client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            made = await client.post("/v1/agents/", json={"model": "scripted/model", "memory_blocks": []})
            assert made.status_code == 200, made.text
            said = {"messages": [{"role": "user", "content": "How is the weather?"}]}
            answer = await client.post(f"/v1/agents/{made.json()['id']}/messages", json=said)
            assert answer.status_code == 200 and "It rains." in answer.text, answer.text
            put = await client.put("/users/ada/blocks/human", json={"body": "Her name is Ada."})
            assert put.status_code in (200, 201), put.text
            assert (await client.get("/")).status_code in (200, 404)

folder = Path(sys.argv[3])
sys.path.insert(0, str(folder))
import ricordo.cli
from ricordo.errors import Invalid
try:
    asyncio.run(talk(folder))
except Invalid as error:
    print(f"refused without {folder.name}: {error}", flush=True)
else:
    print("talked without", folder.name, flush=True)
"""


def without(features: Sequence[str], folder: Path) -> None:
    """Copy the package without these features and those that require them."""
    package = folder / "ricordo"
    shutil.copytree(PACKAGE, package)  # the copy includes the bytecode
    sources = {
        other: (package / "features" / other / "__init__.py").read_text() for other in FEATURES
    }
    required = {
        other: {
            name
            for line in source.splitlines()
            if line.startswith("    requires=(")
            for name in line.split('"')[1::2]
        }
        for other, source in sources.items()
    }
    gone, size = set(features), 0
    while size < len(gone):
        size = len(gone)
        gone |= {other for other, names in required.items() if names & gone}
    for name in gone:
        shutil.rmtree(package / "features" / name)
    listed = package / "features" / "__init__.py"
    listed.write_text(
        f'"""Features."""\n\nFEATURES = {tuple(name for name in FEATURES if name not in gone)!r}\n'
    )


def test_the_list_names_exactly_the_folders_of_features() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("features/*/__init__.py")}
    assert folders == set(FEATURES)


# The suite starts two servers, each without half of the features. The long form starts one server
# for each missing feature.
@pytest.mark.parametrize("servers", [2, pytest.param(len(FEATURES), marks=pytest.mark.soak)])
def test_the_server_starts_and_answers_without_features(
    tmp_path: Path, servers: int, helper: Helper
) -> None:
    groups = ["+".join(FEATURES[start::servers]) for start in range(servers)]
    for group in groups:
        folder = tmp_path / group
        without(group.split("+"), folder)
        # Each group runs as a separate command. On a busy machine the time limit of one command is
        # too short for all groups.
        done = helper.run(["-c", TALK, str(folder)], tmp_path, {"PATH": os.defpath})
        assert done.stdout.splitlines() == [f"talked without {group}"], done.stderr
        shutil.rmtree(folder)


def alone(feature: str, folder: Path) -> None:
    """Link all of the package except this feature, and leave it out of the list."""
    package = folder / "ricordo"
    (package / "features").mkdir(parents=True)
    for path in PACKAGE.iterdir():
        if path.name not in ("features", "__pycache__"):
            (package / path.name).symlink_to(path)
    for name in FEATURES:
        if name != feature:
            (package / "features" / name).symlink_to(PACKAGE / "features" / name)
    (package / "features" / "__init__.py").write_text(
        f'"""Features."""\n\nFEATURES = {tuple(name for name in FEATURES if name != feature)!r}\n'
    )


def needing(feature: str) -> list[str]:
    packages = {name: import_module(f"ricordo.features.{name}") for name in FEATURES}
    return [name for name in FEATURES if feature in packages[name].feature.requires]


# Each feature takes a process, so the suite removes only a few.
@pytest.mark.parametrize(
    "features",
    [
        ("knowledge", "memory_care", "tutor"),
        pytest.param(FEATURES, marks=pytest.mark.soak, id="all"),
    ],
)
def test_without_one_feature_the_server_starts_or_names_its_dependents(
    tmp_path: Path, features: Sequence[str], helper: Helper
) -> None:
    for feature in features:
        folder = tmp_path / feature
        alone(feature, folder)
        done = helper.run(["-c", TALK, str(folder)], tmp_path, {"PATH": os.defpath})
        if names := needing(feature):
            assert done.stdout.startswith(f"refused without {feature}: Feature"), done.stderr
            assert done.stdout.endswith(f" {feature}, which is not installed.\n"), done.stdout
            assert set(names) <= set(re.findall(r"\w+", done.stdout)), done.stdout
        else:
            assert done.stdout == f"talked without {feature}\n", done.stderr


def test_a_missing_required_feature_is_reported_before_any_hook_is_called() -> None:
    for feature in FEATURES:
        rest = [name for name in FEATURES if name != feature]
        names = needing(feature)
        if not names:
            load_plugins(rest)
            continue
        with pytest.raises(Invalid, match=f"needs? {feature}, which is not installed") as refused:
            load_plugins(rest)
        assert set(names) <= set(re.findall(r"\w+", str(refused.value)))
        commands, fault = load_commands(rest)
        assert fault == str(refused.value)
        assert not {command.module.split(".")[2] for command in commands} & set(names)


def test_a_listed_feature_without_its_package_is_named() -> None:
    with pytest.raises(Invalid, match="Feature nowhere is in the list of features"):
        load_plugins(["nowhere"])


def test_missing_requirements_are_described_in_one_sentence_per_feature() -> None:
    plugins = [
        ("a", SimpleNamespace(requires=("x",))),
        ("b", SimpleNamespace(requires=("x",))),
        ("c", SimpleNamespace(requires=("a", "y", "z"))),
    ]

    assert missing_requirements(plugins) == (
        "Features a and b need x, which is not installed. "
        "Feature c needs y and z, which are not installed."
    )
    assert (
        missing_requirements([("a", SimpleNamespace()), ("b", SimpleNamespace(requires=("a",)))])
        is None
    )
