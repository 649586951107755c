"""The Renyi filter: charges are added up per part, and nothing is released that would pass a budget.

Money is counted in integers (billionths of a nat, rounded up), so that a million small charges neither
drift nor vanish. The same arithmetic serves the in-memory filter here and a durable ledger.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tacit.errors import InputError
from tacit.privacy.conversions import check_number

NANO = 1_000_000_000
# Above any budget, far below what integers lose; an infinite charge has no integer form.
_LARGEST = 2**62
MOST_BUDGET = _LARGEST / NANO


def nano(epsilon: float) -> int:
    """A charge in billionths, rounded up: rounding may overstate a loss, never understate it."""
    if math.isnan(epsilon) or epsilon < 0:
        raise InputError(f"epsilon={epsilon}: a charge is a number of at least 0.")
    # The product is right to 1e-16 of itself, and charges are padded by far more (`mechanisms.mixture`).
    return _LARGEST if epsilon * NANO >= _LARGEST else math.ceil(epsilon * NANO)


def check_budget(epsilon: float) -> None:
    """Refuse a budget that cannot be counted: below a billionth it could pay for nothing, ever."""
    check_number("epsilon", epsilon)
    if not 1 / NANO <= epsilon <= MOST_BUDGET:
        raise InputError(
            f"epsilon={epsilon}: a budget is counted in billionths; give a number from 1e-9 to "
            f"{MOST_BUDGET:.3g}, e.g. 2."
        )


def nano_budget(epsilon: float) -> int:
    """A budget in billionths, rounded down."""
    check_budget(epsilon)
    return min(_LARGEST - 1, math.floor(epsilon * NANO))  # so that the largest charge is never paid


class RenyiFilter:
    """Budgets of k parts against charges that may depend on everything so far.

    Formal guarantee (pairwise filter). For a fixed corpus and part i, let charge t bound the order-a
    divergence between the laws of answer t with and without part i, and be fixed before the answer is drawn.
    Then the transcripts, both cut when this filter stops, diverge by at most the budget. Nothing is promised
    about the moment of stopping itself, nor about budgets and charges: they are functions of private text
    and must not leave.
    """

    def __init__(self, *, parts: int, epsilon: float) -> None:
        if parts < 1:
            raise InputError(f"parts={parts}: at least one part is needed.")
        self._budget = nano_budget(epsilon)
        self._spent = [0] * parts
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether the filter has stopped, which is for good."""
        return self._stopped

    @property
    def spent(self) -> npt.NDArray[np.float64]:
        """Nats spent per part. Sensitive."""
        return np.array(self._spent, dtype=np.float64) / NANO

    @property
    def remaining(self) -> npt.NDArray[np.float64]:
        """Nats left per part, rounded down. Sensitive."""
        left = [self._budget - spent for spent in self._spent]
        return np.nextafter(np.array(left, dtype=np.float64) / NANO, 0)

    def spend(self, charges: npt.ArrayLike) -> bool:
        """Book one answer's charges; ``False``, and stopped for good, if a part would have nothing left.

        As in SubMix's Algorithm 2, a budget must stay above zero: a charge that just reaches it stops.
        A charge that is not a number stops as well.
        """
        wanted = self._checked(charges)
        if self._stopped:
            return False
        if np.any(np.isnan(wanted)) or np.any(wanted < 0):
            self._stopped = True
            return False
        after = [spent + nano(float(charge)) for spent, charge in zip(self._spent, wanted, strict=True)]
        if any(spent >= self._budget for spent in after):
            self._stopped = True
            return False
        self._spent = after
        return True

    def debit(self, charges: npt.ArrayLike) -> None:
        """Book charges that were already kept within what is left (`individual`): this never stops."""
        wanted = self._checked(charges)
        after = [spent + nano(float(charge)) for spent, charge in zip(self._spent, wanted, strict=True)]
        if any(spent > self._budget for spent in after):
            raise InputError("a charge passes what is left of a part's budget; nothing was booked.")
        self._spent = after

    def _checked(self, charges: npt.ArrayLike) -> npt.NDArray[np.float64]:
        wanted = np.asarray(charges, dtype=np.float64)
        if wanted.shape != (len(self._spent),):
            raise InputError(
                f"{wanted.shape} charges for {len(self._spent)} parts: one charge per part is needed."
            )
        return wanted
