"""`ricordo chat` and `ricordo agent model`."""

import typer

from ricordo.cli.chat import chat, set_model

app = typer.Typer()
agent = typer.Typer(help="Agents and their models.", no_args_is_help=True)


@app.command("chat")
def run_chat(
    agent: str | None = typer.Option(
        None, help="Name or id of the agent.  [ricordo, created at first use]"
    ),
    model: str | None = typer.Option(None, help="Handle of the model to give the agent."),
    server: str | None = typer.Option(
        None, help="Address of the server.  [from RICORDO_HOST and RICORDO_PORT]"
    ),
) -> None:
    """Talk with an agent. If no server is running, one is started for this chat."""
    all_answered = chat(agent=agent, model=model, server=server)
    raise typer.Exit(0 if all_answered else 1)


@agent.command("model")
def run_agent_model(
    name: str = typer.Argument(help="Name or id of the agent."),
    handle: str | None = typer.Argument(
        None, help="Handle of the model to give it.  [shows the one it has]"
    ),
    server: str | None = typer.Option(
        None, help="Address of the server.  [from RICORDO_HOST and RICORDO_PORT]"
    ),
) -> None:
    """Show the model of an agent, or change it. Its memory and messages stay."""
    set_model(name, handle, server)
