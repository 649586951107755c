"""What an engine is: it turns examples into a sum of clipped gradients. There are two.

`LoopEngine` takes one example at a time through ordinary autograd; `BookKeepingEngine` takes many and never
forms anybody's gradient alone. They give the same sum but for rounding.

What rounding may do is not the same. In the loop an example's arithmetic knows no other example. In
book-keeping, how many are computed together can change the last bits of each one's gradient before it is
clipped. Each contribution is within the clip all the same, but one example's presence can turn another's, and
the sum then moves by more than one clip. Seen with weights blown up from their start: 2 to 2.4 clips too
much for a recurrent model in fp32 (15 and 30 times), 2e-4 for a transformer in bf16 (8 times); below 1e-4
for weights as they start, and up to 8 times them in fp32. Whoever must exclude it chooses `engine: loop`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.training.encoding import IntArray
from tacit.training.private_steps.clipping import GradientSum


@dataclass
class StepTally:
    """What happened in a step, for the operator alone: every figure is a function of private text."""

    examples: int = 0
    clipped: int = 0
    alarms: int = 0  # examples whose gradient was not finite and counted as zero
    loss: float = 0.0  # sum over examples

    def note(self, norms: Tensor, factors: Tensor, loss: float) -> None:
        """Count examples, given their norms and the factors that these led to."""
        finite = torch.isfinite(norms)
        self.examples += len(norms)
        self.alarms += int((~finite).sum())
        self.clipped += int(((factors < 1) & finite).sum())
        self.loss += loss


class Engine(Protocol):
    """Adds clipped gradients of examples to a sum."""

    @property
    def name(self) -> str:
        """As recipes and reports call it."""
        ...

    def add_rows(self, rows: IntArray, into: GradientSum, tally: StepTally) -> None:
        """Every row is an example of its own."""
        ...
