"""What a training pod exposes to Prometheus: the table of `common.series`, filled from agent and workers' vitals.

Called by `server` for each scrape. Nothing is kept between two of them: the series of a worker that is gone go, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shardline.components.common.series import (
    AGENT_ROLE,
    RANK_LABEL,
    ROLE_LABEL,
    ROLES,
    RUN_LABEL,
    SERIES,
    Role,
    Series,
)
from shardline.components.common.vitals import Vitals, read_vitals


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How the agent of a pod stands. None is what an agent of that kind does not know.

    Attributes:
        role: in its group; least: the fewest workers that the run is to have.
        generation, world: of the workers, in all pods; 0 while none is at work.
        restarts: that it made as the leader; most_restarts: that the run may make.
        silent: seconds since its loop last came round; ready: whether it takes part.
        memory_used, memory_limit: of the pod, in bytes.
    """

    generation: int
    world: int
    role: Role | None = None
    round: int | None = None
    least: int | None = None
    restarts: int | None = None
    most_restarts: int | None = None
    silent: float = 0.0
    ready: bool = True
    memory_used: int | None = None
    memory_limit: int | None = None


def standing_of(vitals: Sequence[Vitals]) -> Standing:
    """How an agent stands that tells nothing of itself, by its workers."""
    first = vitals[0] if vitals else None
    return Standing(generation=first.generation if first else 0, world=first.world if first else 0)


def families(run: str, standing: Standing, vitals: Sequence[Vitals]) -> Iterator[Metric]:
    """The metrics of `common.series`, as far as they are known. Vitals of another generation are left out. Pure."""
    current = [each for each in vitals if each.generation == standing.generation]
    for series in SERIES:
        if series is AGENT_ROLE:
            family = _family(series, (RUN_LABEL, ROLE_LABEL))
            for role in ROLES if standing.role else ():
                family.add_metric([run, role], float(role == standing.role))
        elif series.source == "agent":
            family = _family(series, (RUN_LABEL,))
            _add(family, [run], getattr(standing, series.field))
        else:
            family = _family(series, (RUN_LABEL, RANK_LABEL))
            for each in current:
                _add(family, [run, str(each.rank)], getattr(each, series.field))
        if family.samples:
            yield family


def _family(series: Series, labels: tuple[str, ...]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    return kind(series.name, series.help, labels=labels)


def _add(family: CounterMetricFamily | GaugeMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, float(value))


class TrainingCollector(Collector):
    """Reads all anew for each scrape.

    Args:
        folder: where the workers write their vitals; None where there is no room for it.
        standing: of the agent; None for one that tells nothing of itself.
    """

    def __init__(self, run: str, *, folder: Path | None, standing: Callable[[], Standing] | None) -> None:
        self._run, self._folder, self._standing = run, folder, standing

    def collect(self) -> Iterator[Metric]:
        vitals = read_vitals(self._folder) if self._folder else []
        yield from families(self._run, self._standing() if self._standing else standing_of(vitals), vitals)


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry with `collector` alone, which is first asked when somebody scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry
