"""The tool by which an agent speaks."""

from ricordo.storage.sqlite import SqliteStore
from tests.tools.builtin.desk import desk


async def test_speaking_is_confirmed_in_the_words_that_clients_know(store: SqliteStore) -> None:
    assert await (await desk(store)).said("send_message", message="Ciao!") == "Sent message successfully."
