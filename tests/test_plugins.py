"""Hooks of plugins that reach the command line, the database and the home page."""

import sys
from pathlib import Path

import httpx2
import pytest
import typer
from sqlalchemy import Column, MetaData, Table, Text, insert, select
from typer.testing import CliRunner

from ricordo import app as composition
from ricordo import cli
from ricordo.app import create_app
from ricordo.features import FEATURES
from ricordo.plugins import Commands, PluginPage, Plugins, load_plugins
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
    """A plugin with what is not tried elsewhere."""

    def __init__(self, group: str = "weather") -> None:
        self.group = group

    def commands(self) -> list[Commands]:
        return [Commands(self.group, "weather_commands")]

    def tables(self) -> list[Table]:
        return [FORECASTS]

    def pages(self) -> list[PluginPage]:
        return [PluginPage("Weather & more", "/weather")]


@pytest.mark.parametrize("group", ["weather", "memory", ""])
def test_a_plugins_commands_become_a_group_or_join_one(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weather_commands.py").write_text(COMMANDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cli, "app", root := typer.Typer())
    monkeypatch.setattr(
        cli, "load_commands", lambda _: (Plugins([("weather", Weather(group))]).commands(), "odd")
    )
    root.add_typer(memory := typer.Typer(), name="memory")
    memory.command("audit")(lambda: None)
    root.command("serve")(lambda: None)

    cli.add_plugin_commands()

    done = CliRunner().invoke(root, [*filter(None, [group]), "forecast", "Turin"])
    assert done.stdout == "It rains in Turin.\n"
    assert CliRunner().invoke(root, ["memory", "audit"]).exit_code == 0
    sys.modules.pop("weather_commands")


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
