"""Hooks of plugins that reach the command line, the database and the home page."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import Column, MetaData, Table, Text, insert, select
from typer.testing import CliRunner

from ricordo import app as composition
from ricordo import cli
from ricordo.app import create_app, open_runtime
from ricordo.cli.lazy_commands import LazyCommand, command_tree
from ricordo.features import FEATURES
from ricordo.plugins import Commands, Feature, PluginPage, Plugins, load_plugins
from ricordo.runtime import Runtime
from ricordo.settings import ProviderSettings, Settings

FORECASTS = Table(
    "forecasts", MetaData(), Column("city", Text, primary_key=True, info={"erasure": "keep"})
)
COMMANDS = """
import typer

app = typer.Typer()


@app.command("forecast")
def forecast(city: str) -> None:
    typer.echo(f"It rains in {city}.")
"""


class Weather:
    """A plugin with the hooks that no other test uses."""

    def __init__(self, group: str = "weather") -> None:
        self.group = group

    def commands(self) -> list[Commands]:
        return [Commands(self.group, "weather_commands")]

    def tables(self) -> list[Table]:
        return [FORECASTS]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Weather & more", "/weather")]


def lazy_commands(tree: dict[str, Any]) -> Iterator[LazyCommand]:
    for command in tree.values():
        if isinstance(command, LazyCommand):
            yield command
        else:
            yield from lazy_commands(command.commands)


@pytest.mark.parametrize("group", ["weather", "memory", ""])
@pytest.mark.parametrize("is_declared", [True, False])
def test_a_plugins_commands_form_a_group_or_extend_one(
    group: str, is_declared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weather_commands.py").write_text(COMMANDS)
    monkeypatch.syspath_prepend(tmp_path)
    names = {"forecast": "Foretell the weather."} if is_declared else {}
    commands = Commands(group, "weather_commands", commands=names)
    others = (
        Commands("memory", "nowhere", commands={"audit": "Audit."}),
        Commands("", "nowhere", commands={"serve": "Serve."}),
    )
    tree = command_tree([*others, commands])
    monkeypatch.setattr(cli, "all_commands", lambda: tree)

    def run(*arguments: str) -> str:
        return CliRunner().invoke(cli.app, arguments).stdout

    assert ("weather_commands" in sys.modules) is (not is_declared and group != "weather")
    assert "forecast" in run(*filter(None, [group]), "--help")
    assert "Serve." in run("--help")
    assert "Audit." in run("memory", "--help")
    assert run(*filter(None, [group]), "forecast", "Turin") == "It rains in Turin.\n"
    sys.modules.pop("weather_commands")


def test_the_declared_help_is_the_help_of_the_command() -> None:
    commands = list(lazy_commands(cli.all_commands()))
    assert len(commands) > 20
    for command in commands:
        assert command.load().get_short_help_str(200) == command.get_short_help_str(200)


async def test_a_plugins_tables_are_created_once_and_its_pages_are_linked_from_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = Plugins([*load_plugins(FEATURES)._plugins, ("weather", Weather())])
    monkeypatch.setattr(composition, "load_plugins", lambda _: plugins)
    for _ in range(2):
        app = create_app(
            Settings(data_dir=tmp_path, find_local_models=False), ProviderSettings.model_construct()
        )
        async with app.router.lifespan_context(app):
            transport = httpx2.ASGITransport(app, client=("127.0.0.1", 1))
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://127.0.0.1"
            ) as client:
                home = (await client.get("/")).text
            store = app.state.runtime.store
            cities = await store.read(lambda tx: tx.all(select(FORECASTS.c.city)))
            if not cities:
                await store.write(lambda tx: tx.run(insert(FORECASTS), {"city": "Turin"}))
    assert [city for (city,) in cities] == ["Turin"]
    assert 'href="/weather"' in home
    assert "Weather &amp; more" in home


PARTS = """
from contextlib import asynccontextmanager

TURNS = []


@asynccontextmanager
async def open_station(runtime):
    yield ["open"]
    TURNS.append(f"closed {runtime.features['weather']}")


async def note(runtime, run):
    TURNS.append(run)


async def note_twice(runtime, run):
    TURNS.append(run)


NOTES = (note, note_twice)


def findings(settings):
    return ["reachable"]
"""


async def test_parts_of_a_feature_are_imported_on_use_and_closed_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weather_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    feature = Feature(
        after_turn=("weather_parts:NOTES", print),
        findings=("weather_parts:findings",),
        open="weather_parts:open_station",
    )
    plugins = Plugins([("weather", feature)])
    assert "weather_parts" not in sys.modules
    settings = Settings(data_dir=tmp_path / "data", find_local_models=False)

    assert plugins.findings(settings) == [("weather", "reachable")]
    assert [hook.call.__name__ for hook in plugins.after_turn()] == ["note", "note_twice", "print"]
    parts = sys.modules.pop("weather_parts")
    providers = ProviderSettings.model_construct()
    async with open_runtime(settings, providers, plugins=plugins) as runtime:
        assert runtime.features == {"weather": ["open"]}
        parts = sys.modules["weather_parts"]
    assert parts.TURNS == ["closed ['open']"]
    sys.modules.pop("weather_parts")


class OlderWeather:
    """A plugin in the older form: its parts are methods, which get the hook's arguments."""

    def __init__(self) -> None:
        self.ended: list[Settings] = []

    def complete_agent(self, _tx: Any, state: str) -> str:
        return f"{state}, complete"

    def findings(self, settings: Settings) -> list[str]:
        return [str(settings.port)]

    async def after_turn(self, _runtime: Runtime, _run: Any) -> None: ...

    async def at_end(self, settings: Settings) -> None:
        self.ended.append(settings)


async def test_an_object_with_methods_works_as_a_plugin(tmp_path: Path) -> None:
    weather = OlderWeather()
    plugins = Plugins([("weather", weather)])
    settings = Settings(data_dir=tmp_path, find_local_models=False, port=1234)
    (complete,) = plugins.complete_agents()

    assert complete.complete(None, ["a", "b"]) == ["a, complete", "b, complete"]  # type: ignore[arg-type, list-item]
    assert plugins.findings(settings) == [("weather", "1234")]
    assert [hook.call for hook in plugins.after_turn()] == [weather.after_turn]
    providers = ProviderSettings.model_construct()
    async with open_runtime(settings, providers, plugins=plugins) as runtime:
        assert runtime.settings is settings
        assert weather.ended == []
    assert weather.ended == [settings]
