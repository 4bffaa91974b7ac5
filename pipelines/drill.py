"""`shardline drill`: a run of its own that is disturbed, undisturbed ones to compare it with, and the verdict.

Called by the command. Errors: those of training, and of the sites.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardline.components.common import config as configs
from shardline.components.common.config import Loaded, RunConfig
from shardline.components.common.config.data_schema import MOST_STEPS
from shardline.components.common.errors import PeerLost, UserError
from shardline.components.common.kubernetes.client import Client
from shardline.components.common.kubernetes.names import Names
from shardline.components.common.kubernetes.render import render
from shardline.components.common.machine import processes
from shardline.components.common.runfolder import find_run, read_config, run_storage
from shardline.components.common.storage import Storage
from shardline.components.common.streams import read_all
from shardline.components.elasticity.drill import judging
from shardline.components.elasticity.drill.conduct import Conductor, Site
from shardline.components.elasticity.drill.plan import CLUSTER, LOCAL, TAKES_AGENTS, plan
from shardline.components.elasticity.drill.pods import Pods
from shardline.components.elasticity.drill.processes import Agents, Bystander
from shardline.components.planning.choose import fits
from shardline.components.sharding import step as sharding
from shardline.components.sharding.decisions import decided, policy_of_run
from shardline.components.sharding.step import find_dataset
from shardline.components.training.checkpoint import catalog

_WORKER = (sys.executable, "-m", "shardline.pipelines.cli.main", "worker")
#: Of the names of runs, which have room for 50 letters: what a drill's own run keeps of the config's.
_NAME_LETTERS = 24
#: Seconds between two records, see `judging`; each is a request where storage is elsewhere.
_FLUSH_LOCAL, _FLUSH_REMOTE = 0.2, 1.0
#: A drill asks whether a run goes on, not how often it is allowed to.
_RESTARTS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The drill that is asked for.

    Attributes:
        kinds: of faults; all that there are when empty.
        every, seconds: between faults on average, and altogether; `count`: of faults.
        early: the part of the faults, from 0 to 1, that does not wait for the recovery from the one before.
        agents: that train together, on this machine.
        baseline: train undisturbed runs as well, and compare the losses.
        attach: a run to disturb that others have started, instead of one of the drill's own.
        cluster: disturb the pods of a cluster instead of processes of this machine.
        tell: shows a line.
    """

    kinds: Sequence[str]
    every: float
    seconds: float | None
    count: int | None
    seed: int
    early: float
    agents: int
    baseline: bool
    attach: str | None
    cluster: bool
    tell: Callable[[str], None]

    def chosen(self) -> list[str]:
        """The kinds of faults.

        Raises:
            UserError: there is no such kind.
        """
        known = CLUSTER if self.cluster else LOCAL
        alone = self.attach is not None or self.agents < 2
        possible = [kind for kind in known if not (alone and kind in TAKES_AGENTS and not self.cluster)]
        for kind in self.kinds:
            if kind not in possible:
                raise UserError(f"{kind!r} is not one of {', '.join(possible)}", where="--kill")
        return list(dict.fromkeys(self.kinds)) or possible


def drill(loaded: Loaded, wanted: Wanted) -> dict[str, Any]:
    """Disturb a run; what each fault cost, and whether the samples and losses are those of an undisturbed one.

    Raises:
        UserError: something of what is asked for does not go together, the run ended by itself, or saved nothing.
        ShardlineError: the error that ended the run.
    """
    kinds = wanted.chosen()
    if wanted.attach is not None and wanted.baseline:
        hint = "leave one of them out"
        raise UserError("the steps of a run that goes on cannot be trained beside it", where="--baseline", hint=hint)
    stem = f"{loaded.config.run[:_NAME_LETTERS].rstrip('-')}-drill-{datetime.now(UTC):%m%d%H%M%S}"
    target = _attached(loaded, wanted.attach) if wanted.attach else _own(loaded, run=stem)
    run = run_storage(target.config)
    if not wanted.attach:
        sharding.run(target.config, sources=target.sources)
    wanted.tell(f"disturbing {run.url}, seed {wanted.seed}")
    lost = None
    with _site(target, wanted) as site:
        conductor = Conductor(site, run=run, timeout=target.config.elastic.timeout, tell=wanted.tell)
        faults = plan(kinds, seed=wanted.seed, every=wanted.every, early=wanted.early)
        try:
            conductor.drill(faults, count=wanted.count, seconds=wanted.seconds)
            site.finish()
        except PeerLost as error:
            lost = str(error)
    if lost is None and catalog.current(run) is None:
        hint = "lower training.checkpoint.every, or drill for longer"
        raise UserError("nothing can be judged: no checkpoint was saved", where=run.url, hint=hint)
    result = _judged(target.config, conductor.struck, wanted=wanted) | {"lost": lost}
    if wanted.baseline and lost is None:
        result["losses"] = _compared(target, stem=stem, steps=result["steps"], wanted=wanted)
    result["problems"] = [*result["samples"], *(result["losses"] or {}).get("problems", ())]
    result["held"] = not result["problems"] and lost is None
    return result


def _judged(config: RunConfig, faults: Sequence[judging.Struck], *, wanted: Wanted) -> dict[str, Any]:
    run = run_storage(config)
    newest = catalog.current(run)
    # All that was recorded of the steps before a checkpoint was put out before it was committed.
    steps = newest.step if newest else 0
    found = judging.recoveries(faults, _metrics(run))
    kinds = dict.fromkeys(each.kind for each in faults)
    return {
        "run": run.url,
        "seed": wanted.seed,
        "every": wanted.every,
        "steps": steps,
        "faults": [{**asdict(each.fault), **_without_fault(each)} for each in found],
        "seconds": judging.figures(found),
        "kinds": {kind: judging.figures([each for each in found if each.fault.kind == kind]) for kind in kinds},
        "anew": sum(each.anew for each in found),
        "samples": _sample_problems(config, steps=steps),
        "losses": None,
    }


def _without_fault(each: judging.Recovery) -> dict[str, Any]:
    return {"seconds": each.seconds, "anew": each.anew, "generations": each.generations, "shared": each.shared}


def _sample_problems(config: RunConfig, *, steps: int) -> list[str]:
    """What is wrong with the samples of a run, beside the order that its data set and its policy lay down."""
    run, microbatch = run_storage(config), config.training.microbatch
    order = find_dataset(config).split("train").order(policy_of_run(run, config))

    def expected(step: int) -> dict[int, list[int]]:
        _, places = order.samples_of(step)
        return dict(enumerate(places.blocks.reshape(-1, microbatch).tolist()))

    records = read_all(run.at("samples"))
    return judging.sample_problems(records, expected=expected, steps=steps, all_generations=not decided(run))


def _compared(target: Loaded, *, stem: str, steps: int, wanted: Wanted) -> dict[str, Any]:
    """The losses beside those of undisturbed runs, of one layout and where there is one of another."""
    disturbed = judging.losses(_metrics(run_storage(target.config)), steps=steps)
    curves, problems = [], []
    for number, world in enumerate(_worlds(target.config, wanted=wanted), start=1):
        calm = _own(target, run=f"{stem}-calm-{number}", steps=steps)
        wanted.tell(f"training {steps:,} steps undisturbed: {run_storage(calm.config).url}")
        sharding.run(calm.config, sources=calm.sources)
        with _undisturbed(calm, world, wanted) as site:
            site.wait()
        curves.append(judging.losses(_metrics(run_storage(calm.config)), steps=steps))
        found = _sample_problems(calm.config, steps=steps)
        problems += [f"undisturbed run {number}: {problem}" for problem in found]
    between = judging.difference(*curves) if len(curves) > 1 else None
    difference = judging.difference(disturbed, curves[0])
    bound = judging.loss_bound(between, precision=target.config.training.precision)
    if difference > bound:
        problems.append(f"the losses differ by {difference:.3g} from an undisturbed run's; {bound:.3g} is allowed")
    return {"difference": difference, "undisturbed": between, "bound": bound, "problems": problems}


def _worlds(config: RunConfig, *, wanted: Wanted) -> list[int]:
    """World sizes of undisturbed runs: that of the disturbed one, and the smallest other one that has a layout."""
    workers = config.kubernetes.workers
    full = (
        workers.replicas * workers.processes_a_pod
        if wanted.cluster
        else wanted.agents * _processes(config, wanted=wanted)
    )
    vocab = find_dataset(config).manifest.vocab
    one = workers.processes_a_pod if wanted.cluster else 1
    other = next((world for world in range(one, full, one) if fits(config, world=world, vocab=vocab)), None)
    return [full] if other is None else [full, other]


def _own(loaded: Loaded, *, run: str, steps: int = MOST_STEPS) -> Loaded:
    """The config of a run of the drill's own: as `loaded`, it has the same samples and losses."""
    training, local = loaded.config.training, Storage(loaded.config.storage).is_local
    overrides = [
        f"run={run}",
        f"training.steps={steps}",
        f"training.schedule.decay_steps={training.schedule.decay_steps or training.steps}",
        f"elastic.max_restarts={_RESTARTS}",
        f"elastic.restarts_in_window={_RESTARTS}",
        "elastic.set_aside_after=0",
        "monitoring.log_every=1",
        f"monitoring.flush_seconds={_FLUSH_LOCAL if local else _FLUSH_REMOTE}",
        f"kubernetes.patch={json.dumps(_renamed_patches(loaded.config, run=run))}",
    ]
    return _changed(loaded, overrides)


def _renamed_patches(config: RunConfig, *, run: str) -> list[dict[str, Any]]:
    """The patches of objects, whose names begin with the run's, for another run."""
    patches = [each.model_dump(mode="json") for each in config.kubernetes.patch]
    for each in patches:
        name = each["name"]
        if name is not None and (name == config.run or name.startswith(f"{config.run}-")):
            each["name"] = run + name.removeprefix(config.run)
    return patches


def _changed(loaded: Loaded, overrides: Iterable[str]) -> Loaded:
    text = configs.dump(loaded.config)
    return configs.parse(text, source=loaded.source, overrides=overrides, ignore_environment=True)


def _attached(loaded: Loaded, name: str) -> Loaded:
    run = find_run(name, root=loaded.config.storage)
    return Loaded(read_config(run), {}, run.url)


@contextmanager
def _site(target: Loaded, wanted: Wanted) -> Iterator[Site]:
    """Where the disturbed run is."""
    config, run = target.config, run_storage(target.config)
    if wanted.cluster:
        with _pods(target, create=wanted.attach is None) as pods:
            yield pods
    elif wanted.attach is not None:
        with Bystander(run) as bystander:
            yield bystander
    else:
        with _agents(config, count=wanted.agents, processes=_processes(config, wanted=wanted)) as agents:
            yield agents


@contextmanager
def _undisturbed(calm: Loaded, world: int, wanted: Wanted) -> Iterator[Agents | Pods]:
    """Where a run of `world` workers is that nobody disturbs."""
    if wanted.cluster:
        pods = world // calm.config.kubernetes.workers.processes_a_pod
        sizes = [f"kubernetes.workers.{key}={pods}" for key in ("replicas", "min", "max")]
        with _pods(_changed(calm, sizes), create=True) as site:
            yield site
    else:
        with _agents(calm.config, count=1, processes=world) as agents:
            yield agents


def _pods(loaded: Loaded, *, create: bool) -> Pods:
    config = loaded.config
    return Pods(
        Client.connect(namespace=config.kubernetes.namespace),
        run=run_storage(config),
        name=Names(config.run).train,
        manifests=render(loaded, only=("train",)) if create else (),
    )


@contextmanager
def _agents(config: RunConfig, *, count: int, processes: int) -> Iterator[Agents]:
    with tempfile.TemporaryDirectory(prefix="shardline-drill-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(configs.dump(config), encoding="utf-8")
        command = (*_WORKER, str(path), "--root", config.storage)
        site = Agents(command, run=run_storage(config), count=count, processes=processes, logs=Path(folder))
        with site as agents:
            yield agents


def _processes(config: RunConfig, *, wanted: Wanted) -> int:
    """Workers of each agent on this machine."""
    return max(1, processes(config) // wanted.agents)


def _metrics(run: Storage) -> list[dict[str, Any]]:
    return [record for record in read_all(run.at("metrics")) if record["name"] == "train"]
