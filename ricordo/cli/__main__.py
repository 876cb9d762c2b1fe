"""`python -m ricordo.cli` is `ricordo`."""

from ricordo.cli import app

app(prog_name="ricordo")
