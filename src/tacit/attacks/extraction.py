"""Random-code extraction: how often one generation gives a secret code away, sampled and computed.

Two numbers for one event. :func:`sample_hits` does what the paper does: it generates and counts.
:func:`analytic_hit_rate` adds up the probability of every token sequence that hits, which has no sampling
error. Mechanisms come in as functions of a place, so that nothing here knows about budgets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from torch import Tensor

from tacit.attacks.code_tree import CodeTree
from tacit.attacks.places import Place, Places
from tacit.errors import InputError
from tacit.mechanisms import GNMax, SubsampleAggregate
from tacit.mechanisms.choice import Mechanism, needs_halves

Draw = Callable[[Place], int]
Pmf = Callable[[Place], Tensor]

# Sequences whose beginning is this much rarer than a blind guess of one code are not followed to their end.
_NEGLIGIBLE: Final = 1e-3


@dataclass(frozen=True)
class AnalyticRate:
    """The probability that one generation hits.

    value      of all sequences that were followed to their end: the rate is at least this
    high       with all that was not followed, as if each hit: the rate is at most this
    canonical  of the codes as the tokenizer encodes the training text alone; never above ``value``
    largest    of the code that is given away most often
    places     at how many places the models were asked
    """

    value: float
    high: float
    canonical: float
    largest: float
    places: int

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class SampledHits:
    """What generating found: hits of generations, distinct codes among them, and answers asked for."""

    hits: int
    generations: int
    distinct: int
    answers: int


@dataclass(frozen=True)
class _Beginning:
    tokens: tuple[int, ...]
    text: str
    probability: float


def analytic_hit_rate(tree: CodeTree, places: Places, pmf: Pmf) -> AnalyticRate:
    """Walk the tree of codes level by level; ``pmf`` [V] is what the answer at a place is drawn from.

    Exact up to ``high - value`` for mechanisms whose pmf depends on the place alone. For one with a budget it
    is the rate while the budget lasts.
    """
    negligible = _NEGLIGIBLE / tree.codes.space
    rates = dict.fromkeys(tree.codes.values, 0.0)
    canonical = unfollowed = 0.0
    asked = 0
    level = [_Beginning((), "", 1.0)]
    beginnings = {ids[:depth] for ids in tree.canonical.values() for depth in range(len(ids))}
    for depth in range(tree.tokens_per_generation):
        following: list[_Beginning] = []
        asked += len(level)
        found = places.together([beginning.tokens for beginning in level])
        for beginning, place in zip(level, found, strict=True):
            answer = pmf(place)
            branches = tree.branches(beginning.text)
            for code, tokens in branches.hits.items():
                rates[code] += beginning.probability * float(answer[tokens].sum())
                own = tree.canonical[code]
                if own[:-1] == beginning.tokens:
                    canonical += beginning.probability * float(answer[own[-1]])
            for token, text in branches.open.items():
                longer = _Beginning(
                    (*beginning.tokens, token), text, beginning.probability * float(answer[token])
                )
                if longer.tokens in beginnings or longer.probability >= negligible:
                    following.append(longer)
                elif depth + 1 < tree.tokens_per_generation:
                    unfollowed += longer.probability
        level = following
    value = sum(rates.values())
    return AnalyticRate(value, value + unfollowed, min(canonical, value), max(rates.values()), asked)


def sample_hits(
    tree: CodeTree,
    places: Places,
    draw: Draw,
    *,
    generations: int,
    finish: bool = False,
    each: Callable[[int], None] = lambda hits: None,
) -> SampledHits:
    """Generate after the prompt, one after the other, and count the generations that hit.

    ``draw`` answers one query. A generation that can no longer hit is given up, since its other tokens could
    only spend budget: against mechanisms that stop, this attacker is stronger than one who does not know the
    secrets. With ``finish`` every generation has all its tokens, as in the paper. ``each`` is told the hits
    after every generation.
    """
    if generations < 1:
        raise InputError(f"Expected generations={generations} >= 1, e.g. 100.")
    hits = answers = 0
    codes: set[str] = set()
    for _ in range(generations):
        text: str | None = ""
        written: tuple[int, ...] = ()
        found: str | None = None
        while len(written) < tree.tokens_per_generation:
            token = draw(places.at(written))
            answers += 1
            written = (*written, token)
            text = tree.after(text, token) if text is not None and found is None else None
            if text is not None and found is None:
                found = tree.read(text)
            over = text is None or found is not None or not tree.leads_to_a_secret(text)
            if over and not finish:
                break
        if found is not None and tree.is_hit(found):
            hits += 1
            codes.add(found)
        each(hits)
    return SampledHits(hits, generations, len(codes), answers)


def pmf_of(mechanism: Mechanism) -> Pmf | None:
    """What a mechanism draws from at a place; None for those that add noise to every answer."""
    if isinstance(mechanism, SubsampleAggregate | GNMax):
        return None
    halves = needs_halves(mechanism)

    def pmf(place: Place) -> Tensor:
        given = place.members if halves else place.members.mean(1)
        return mechanism.mix(given, place.public).pmf

    return pmf
