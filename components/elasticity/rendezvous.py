"""A rendezvous for the processes of one machine: there is nobody to wait for, and each round has a store of its own.

Called by `torch_agent`. A fresh store for every generation is what makes a restart sound: with a shared one, gloo finds
the addresses of processes that are gone.
"""

from __future__ import annotations

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

_HOST = "127.0.0.1"


class LocalRendezvous(RendezvousHandler):
    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._closed = False

    def get_backend(self) -> str:
        return "local"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        # Port 0: the system picks one that is free, so that two runs on a machine never clash.
        store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(_HOST, store.port))

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._closed = True
        return True
