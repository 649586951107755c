"""A mechanism over an ensemble as a scorer: what is scored is the mixture that answers are drawn from.

Every place at which the mixture is asked for is a query that a real attacker would have to pay. They are
counted, and the charges of their answers summed for each part, so that a report can say what the attack
would have spent. Nothing is booked: this is the operator's own audit, with the ensemble in hand.

Mechanisms that draw noise for every answer have no mixture of their own and are refused; extraction by
sampling is the attack on those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from tacit.attacks.exposure.states import Root, Scored
from tacit.errors import InputError, ModelError
from tacit.mechanisms import GNMax, Mixture, SubsampleAggregate, softmax_pmfs
from tacit.mechanisms.choice import MechanismChoice, needs_halves
from tacit.models.ensemble import Ensemble

_TEXTS: Final = 16  # branches that are read together


class MechanismScorer:
    """The mixture of a mechanism after every text.

    The prefix is read once and kept; a step reads the tokens behind it again for every branch, which needs
    no memory per branch. A state is therefore the tokens [rows, depth] themselves.
    """

    tolerance: float = 1e-4

    def __init__(
        self, ensemble: Ensemble, choice: MechanismChoice, *, context: int, texts: int = _TEXTS
    ) -> None:
        """``context`` is the longest text that will be asked for: prefix and candidate."""
        mechanism = choice.build(ensemble.parts)
        if isinstance(mechanism, GNMax | SubsampleAggregate):
            raise InputError(
                f"Mechanism {choice.name} draws noise for every answer, so that a text has no probability of "
                "its own; measure extraction by sampling instead."
            )
        if needs_halves(mechanism) and ensemble.halves != 2:
            raise InputError("SubMix compares two models for each part; train with ensemble.halves: true.")
        self._ensemble, self._mechanism = ensemble, mechanism
        self._executor = ensemble.executor(slots=texts + 1, context=context)
        self._prefix_slot = self._executor.open()
        self._slots = [self._executor.open() for _ in range(texts)]
        self.queries = 0
        self._spent = torch.zeros(ensemble.parts, dtype=torch.float64)

    @property
    def spent(self) -> tuple[float, ...]:
        """Nats that the answers so far would have cost each part."""
        return tuple(self._spent.tolist())

    @torch.inference_mode()
    def root(self, prefix: Sequence[int], *, whole: bool = False) -> Root:
        """Read the prefix into its slot; with ``whole`` every place in it is a query too."""
        own = 0.0
        if whole and len(prefix) > 1:
            # Positions one after the other: the logits of all of them for all models would fill the memory.
            blocks = self._executor.score(torch.tensor([list(prefix[:-1])]), block=1)
            for block, token in zip(blocks, prefix[1:], strict=True):
                own += float(self._mixed(block.logits[:, :, 0])[0, token])
        self._executor.close(self._prefix_slot)
        self._prefix_slot = self._executor.open()
        logits = self._executor.prefill(self._prefix_slot, prefix)
        scored = Scored(self._mixed(logits[:, None]), torch.empty(1, 0, dtype=torch.int64))
        return Root(scored, own, len(prefix) - 1)

    @torch.inference_mode()
    def step(self, state: Any, tokens: Tensor) -> Scored:
        """Read every branch behind the prefix, some at a time."""
        paths = torch.cat([state, tokens[:, None]], dim=1)
        return Scored(torch.cat(list(self._answers(paths))), paths)

    def select(self, state: Any, rows: Tensor) -> Any:
        """The tokens of some branches."""
        return state[rows]

    def rows_at_once(self, root: Root, longest: int) -> int:
        """As many as are read together."""
        return len(self._slots)

    def _answers(self, paths: Tensor) -> Iterator[Tensor]:
        for first in range(0, len(paths), len(self._slots)):
            some = paths[first : first + len(self._slots)].tolist()
            yield self._mixed(self._executor.extend(self._prefix_slot, self._slots[: len(some)], some))

    def _mixed(self, logits: Tensor) -> Tensor:
        """Log-probabilities [texts, V] of the mixtures of logits [models, texts, V]; counts the queries."""
        logits = logits.cpu()
        if not bool(torch.isfinite(logits[0]).all()):
            raise ModelError("The public model's predictions are not finite numbers; it is damaged.")
        pmfs = softmax_pmfs(logits)
        members_BPHV = self._ensemble.members_of(pmfs).movedim(2, 0)
        given = members_BPHV if needs_halves(self._mechanism) else members_BPHV.mean(2)
        mixture: Mixture = self._mechanism.mix(given, pmfs[0])
        self.queries += logits.shape[1]
        self._spent += mixture.charges.sum(0)
        return mixture.pmf.log()
