"""Two transactions that change one folder or its agent at the same time."""

from dataclasses import replace

from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import NotFound
from ricordo.features.files.folders import queries, service
from ricordo.features.files.folders.records import Folder
from ricordo.features.files.folders.service import Upload
from ricordo.storage import agents
from ricordo.storage.engine.store import Store, Transaction
from tests.seams import make
from tests.seams.stores import overlapped

DATABASES = ("postgresql",)
SCOPE = Scope()


def new_folder(tx: Transaction) -> str:
    return service.create_folder(tx, SCOPE, Folder("", LOCAL_ORGANIZATION, "", "Shelf")).id


async def test_two_files_of_one_name_get_two_names(store: Store) -> None:
    folder_id = await store.write(new_folder)
    first, second = await overlapped(
        store,
        lambda tx: service.add_file(tx, SCOPE, folder_id, Upload("a.txt", b"one")),
        lambda tx: service.add_file(tx, SCOPE, folder_id, Upload("a.txt", b"two")),
    )
    assert (first.name, second.name) == ("a.txt", "a_(1).txt")


async def test_a_deleted_folder_gets_no_file(store: Store) -> None:
    folder_id = await store.write(new_folder)
    _, second = await overlapped(
        store,
        lambda tx: service.delete_folder(tx, SCOPE, folder_id),
        lambda tx: service.add_file(tx, SCOPE, folder_id, Upload("a.txt", b"one")),
    )
    assert isinstance(second, NotFound)
    assert await store.read(lambda tx: queries.ids_of_files(tx, folder_id)) == []


async def test_deleting_a_folder_keeps_a_change_of_its_agent(store: Store) -> None:
    agent_id = (await make.stored_agent(store)).agent.id

    def attach(tx: Transaction) -> str:
        folder_id = new_folder(tx)
        service.attach_folders(tx, SCOPE, agent_id, [folder_id])
        return folder_id

    def change(tx: Transaction) -> None:
        agents.lock(tx, SCOPE, agent_id)
        agent = agents.load(tx, SCOPE, agent_id).agent
        settings = {**agent.settings, "max_files_open": 3}
        agents.update(tx, replace(agent, description="Changed.", settings=settings))

    folder_id = await store.write(attach)
    results = await overlapped(
        store, change, lambda tx: service.delete_folder(tx, SCOPE, folder_id)
    )
    assert results == (None, None)
    agent = (await store.read(lambda tx: agents.load(tx, SCOPE, agent_id))).agent
    assert agent.description == "Changed."
    assert agent.settings["max_files_open"] == 3
    assert service.MARK not in agent.settings
