"""Whether an optimizer step is sound, from its loss and gradient norm. Pure: numbers in, a verdict out.

Called by `session` before the weights are updated. Every rank has the same numbers, so all come to the same verdict
without asking each other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from enum import Enum
from statistics import fmean, pstdev

from shardline.components.common.config.training_schema import Guard

#: A loss that hardly varies is no cause to call the next one a spike: at least this share of the mean is one deviation.
_LEAST_DEVIATION = 0.01


class Verdict(Enum):
    SOUND = "sound"
    NOT_FINITE = "not finite"
    SPIKE = "spike"


class Watch:
    """Judges one step after the other.

    A spike is a loss that lies `factor` standard deviations or more above the mean of the last `window` sound ones,
    once there are that many; the rule and its numbers are those of OLMo-core's SkipStepOptimizer.

    Args:
        recent: the losses of sound steps before, the latest last: with them a run that goes on from a checkpoint
            judges as it would have.
    """

    def __init__(self, settings: Guard, *, recent: Sequence[float] = ()) -> None:
        self._settings = settings
        self._recent = deque(recent, maxlen=settings.window)

    @property
    def recent(self) -> list[float]:
        return list(self._recent)

    @property
    def threshold(self) -> float:
        """The loss from which on a step is a spike; infinite as long as there are too few to compare with."""
        if self._settings.spike == "off" or len(self._recent) < self._settings.window:
            return math.inf
        mean = fmean(self._recent)
        return mean + self._settings.factor * max(pstdev(self._recent), _LEAST_DEVIATION * abs(mean))

    def accepts(self, verdict: Verdict) -> bool:
        """Whether the weights are updated by a step of that verdict."""
        return verdict is Verdict.SOUND or (verdict is Verdict.SPIKE and self._settings.spike == "report")

    def judge(self, loss: float, gradient_norm: float) -> Verdict:
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            return Verdict.NOT_FINITE
        verdict = Verdict.SPIKE if loss >= self.threshold else Verdict.SOUND
        # A reported spike is learned from and compared with: a loss that stays high is the new normal in the end.
        if verdict is Verdict.SOUND or self._settings.spike == "report":
            self._recent.append(loss)
        return verdict
