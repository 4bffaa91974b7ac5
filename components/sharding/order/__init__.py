"""The sample order: which part of which block a run's samples are. Pure.

permutation  keyed permutations of [0, n)
geometry     where blocks lie in shards and row groups
stream       the endless order of one stream's blocks
mixture      which stream each draw comes from
policy       what the order depends on: stages, mixtures, skips
samples      all of it together
"""

from shardline.components.sharding.order.geometry import Geometry
from shardline.components.sharding.order.policy import DataPolicy, Skip, Stage, policy_of
from shardline.components.sharding.order.samples import Places, SampleOrder, StageOrder

__all__ = ["DataPolicy", "Geometry", "Places", "SampleOrder", "Skip", "Stage", "StageOrder", "policy_of"]
