"""A folder is deleted while another transaction changes its agent."""

from dataclasses import replace

from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.features.files.folders import service
from ricordo.features.files.folders.records import Folder
from ricordo.storage import agents
from ricordo.storage.engine.store import Store, Transaction
from tests.seams import make
from tests.seams.stores import overlapped

DATABASES = ("postgresql",)
SCOPE = Scope()


async def test_deleting_a_folder_keeps_a_change_of_its_agent(store: Store) -> None:
    agent_id = (await make.stored_agent(store)).agent.id

    def attach(tx: Transaction) -> str:
        folder = service.create_folder(tx, SCOPE, Folder("", LOCAL_ORGANIZATION, "", "Shelf"))
        service.attach_folders(tx, SCOPE, agent_id, [folder.id])
        return folder.id

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
