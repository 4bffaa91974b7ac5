"""The operator as a process: waits until it is the one that acts, then acts until it no longer is.

Called by `shardline operator`. Of several processes one holds the Lease `shardline-operator`; a process that loses it
ends, so that nothing it knew is acted upon later.

Errors: `EnvironmentLacking` for rights that lack; `Superseded` when another process has the Lease; `Stopped`.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable

from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.refusals import ClusterLost
from shardline.components.elasticity.lock import held
from shardline.components.elasticity.operator import rights
from shardline.components.elasticity.operator.acting import Hands
from shardline.components.elasticity.operator.facts import World
from shardline.components.elasticity.operator.health import Health
from shardline.components.elasticity.operator.pictures import Pictures
from shardline.components.elasticity.operator.settings import Settings
from shardline.components.elasticity.operator.turn import Rounds
from shardline.components.elasticity.operator.watching import Watch

LEASE = "shardline-operator"
#: Seconds for which an API server that does not answer is asked again, in a round.
_PATIENCE = 10.0
#: Rounds, and seconds at least, without a sign of which the process counts as hanging.
_MISSED, _SILENCE = 10, 120.0


def serve(settings: Settings, *, port: int, tell: Callable[[str], None]) -> None:
    """Look after jobs until a signal or the loss of the Lease.

    Args:
        port: of the probes; 0: none.
        tell: shows a line.
    """
    health = Health(port=port, silence=max(_SILENCE, _MISSED * settings.interval))
    client = Client.connect(namespace=settings.namespace, patience=_PATIENCE)
    rights.check(client, namespace=settings.namespace)
    identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    tell(f"waiting for Lease {LEASE} in namespace {client.namespace}, as {identity}")
    with held(client, LEASE, identity=identity) as lock:
        tell(f"looking after the jobs of {settings.namespace or 'all namespaces'}")
        hands = Hands(client, identity, tell, may_act=lambda: lock.is_fresh)
        rounds = Rounds(hands, Pictures(settings), settings)
        with Watch() as watch:
            while True:
                lock.check()
                health.beat()
                _turn(rounds, watch.world(), tell=tell)
                time.sleep(settings.interval)


def _turn(rounds: Rounds, world: World | None, *, tell: Callable[[str], None]) -> None:
    try:
        if world is not None:
            rounds.turn(world)
    except ClusterLost as error:
        tell(f"this round is given up: {error}")
