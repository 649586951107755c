"""Whole transcripts, enumerated exactly, in the world with a part and in the world without it.

Toy ensembles over a vocabulary of four tokens: every member has its own distribution after every history.
A transcript's law is the product of what was answered along it, so divergences between worlds are exact.
What is promised for every corpus must hold here; what the papers claim too broadly is shown to fail.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from tacit.mechanisms import Certified, Individual, RandomStopping, SubMix
from tacit.privacy import RenyiFilter, random_stopping, renyi_divergence, symmetric_renyi_divergence
from tests.mechanisms.oracle import Array, floored

V, QUERIES = 4, 3
History = tuple[int, ...]


class World:
    """k parts of two halves; a removed part is `None` in `parts`, or answers as the public model."""

    def __init__(self, seed: int, k: int, spread: float) -> None:
        rng = np.random.default_rng(seed)
        histories = [h for n in range(QUERIES) for h in itertools.product(range(V), repeat=n)]
        self.public = {h: self._soft(rng.normal(size=V)) for h in histories}
        self.halves = {
            h: self._soft(np.log(self.public[h]) + spread * rng.normal(size=(k, 2, V))) for h in histories
        }

    @staticmethod
    def _soft(logits: Array) -> Array:
        e = np.exp(logits)
        return np.asarray(e / e.sum(-1, keepdims=True))

    def nulled(self, part: int) -> World:
        """The neighbour of certified mixing: the part's text replaced by nothing."""
        other = object.__new__(World)
        other.public = self.public
        other.halves = {h: value.copy() for h, value in self.halves.items()}
        for h, value in other.halves.items():
            value[part] = self.public[h]
        return other


Answer = Callable[[World, History], Array]


def transcript_law(answer: Answer, world: World, queries: int = QUERIES) -> Array:
    """Probability of every transcript of length `queries`."""
    pmf = {h: answer(world, h) for n in range(queries) for h in itertools.product(range(V), repeat=n)}
    transcripts = itertools.product(range(V), repeat=queries)
    return np.array([math.prod(float(pmf[y[:t]][y[t]]) for t in range(queries)) for y in transcripts])


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
@pytest.mark.parametrize("spread", [0.3, 2.0, 8.0])
def test_certified_transcripts_stay_within_the_budget(order: float, spread: float) -> None:
    target = 0.05
    mechanism = Certified(order, target, cap=0.8)

    def answer(world: World, history: History) -> Array:
        return mechanism.mix(world.halves[history].mean(1), world.public[history]).pmf.numpy()

    world = World(seed=int(spread * 10), k=3, spread=spread)
    with_part = transcript_law(answer, world)
    largest = 0.0
    for part in range(3):
        without = transcript_law(answer, world.nulled(part))
        loss = float(symmetric_renyi_divergence(with_part, without, order))
        assert loss <= QUERIES * target
        largest = max(largest, loss)
    if spread > 1:
        assert largest > 0.2 * QUERIES * target  # the bound is not met by answering publicly
    assert mechanism.queries(QUERIES * target) == QUERIES


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
@pytest.mark.parametrize("spread", [0.3, 2.0, 8.0])
def test_individual_transcripts_stay_within_the_budget_with_secret_adaptive_budgets(
    order: float, spread: float
) -> None:
    epsilon = 0.08  # less than three tokens' targets: parts do run out
    mechanism = Individual(order, target=0.05, cap=0.8)

    def answer(world: World, history: History) -> Array:
        budgets = RenyiFilter(parts=3, epsilon=epsilon)
        for t in range(len(history) + 1):
            past = history[:t]
            mixture = mechanism.mix(world.halves[past].mean(1), world.public[past], budgets.remaining)
            budgets.debit(mixture.charges.numpy())
        return mixture.pmf.numpy()

    world = World(seed=int(spread * 10), k=3, spread=spread)
    with_part = transcript_law(answer, world)
    losses = [
        float(symmetric_renyi_divergence(with_part, transcript_law(answer, world.nulled(part)), order))
        for part in range(3)
    ]
    assert max(losses) <= epsilon
    if spread > 1:
        assert max(losses) > 0.2 * epsilon


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_submix_transcripts_to_a_common_stop_stay_within_the_budget(order: float) -> None:
    """What ROP does promise: both worlds cut where the real one stops."""
    epsilon = 0.012 * order
    mechanism = SubMix(order, target=0.02 * order)
    world = World(seed=3, k=3, spread=0.5)

    def stops_before(history: History) -> bool:
        budgets = RenyiFilter(parts=3, epsilon=epsilon)
        return not all(
            budgets.spend(mechanism.mix(world.halves[history[:t]], world.public[history[:t]]).charges.numpy())
            for t in range(len(history) + 1)
        )

    def answer_without(part: int | None) -> Answer:
        kept = [i for i in range(3) if i != part]

        def answer(world: World, history: History) -> Array:
            if stops_before(history):  # the common stopping time: decided in the real world
                return floored(world.public[history])
            return mechanism.mix(world.halves[history][kept], world.public[history]).pmf.numpy()

        return answer

    real = transcript_law(answer_without(None), world)
    losses = [
        float(symmetric_renyi_divergence(real, transcript_law(answer_without(part), world), order))
        for part in range(3)
    ]
    assert max(losses) <= epsilon
    assert max(losses) > 0.1 * epsilon
    stops = [stops_before(h) for h in itertools.product(range(V), repeat=2)]
    assert any(stops)  # some transcripts are cut,
    assert not all(stops)  # some are not


def shared_secret(k: int = 8) -> tuple[Array, Array]:
    """Two parts hold the same rare token; the public model all but rules it out."""
    rare = 4.7e-9
    public = np.array([rare, *[(1 - rare) / 3] * 3])
    halves = np.repeat(np.repeat(public[None, None], 2, axis=1), k, axis=0)
    halves[:2] = 0.98 * np.eye(V)[0] + 0.02 * public
    return halves, public


def test_the_literal_claim_of_proposition_3_1_is_false() -> None:
    """Each world stopping by itself: charged 0.08, true divergence 16."""
    halves, public = shared_secret()
    mechanism = SubMix(order=2.0, target=0.5, cap=0.9)
    epsilon = 2.0
    both = mechanism.mix(halves, public)
    assert RenyiFilter(parts=8, epsilon=epsilon).spend(both.charges.numpy())
    assert float(both.charges.max()) < 0.1
    one = mechanism.mix(halves[1:], public)
    assert not RenyiFilter(parts=7, epsilon=epsilon).spend(one.charges.numpy())  # that world answers publicly
    true = float(symmetric_renyi_divergence(both.pmf.numpy(), floored(public), 2.0))
    assert true > 15 > epsilon


def test_the_same_secret_is_within_bounds_when_certified() -> None:
    halves, public = shared_secret()
    mechanism = Certified(order=2.0, target=0.05)
    both = mechanism.mix(halves.mean(1), public).pmf.numpy()
    parts = halves.mean(1)
    parts[0] = public
    assert float(symmetric_renyi_divergence(both, mechanism.mix(parts, public).pmf.numpy(), 2.0)) <= 0.05


def test_the_guard_bounds_every_charge_and_the_loss_to_a_silent_part() -> None:
    """Without it one query can ask for nearly everything; with it, none costs more than the guard."""
    halves, public = shared_secret(k=4)
    halves[1] = public  # now one part alone holds the secret, and its halves agree
    assert float(SubMix(2.0, 0.5).mix(halves, public).charges.max()) > 2
    guarded = SubMix(2.0, 0.5, guard=0.02, cap=0.9).mix(halves, public)
    assert float(guarded.charges.max()) <= 0.02
    silent = halves.copy()
    silent[0] = public
    other = SubMix(2.0, 0.5, guard=0.02, cap=0.9).mix(silent, public)
    true = float(symmetric_renyi_divergence(guarded.pmf.numpy(), other.pmf.numpy(), 2.0))
    assert true == pytest.approx(float(guarded.charges[0]), rel=1e-6)


@pytest.mark.parametrize("guard", [1e-6, 0.01, 1.0])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_no_query_passes_the_guard_where_it_is_tight(guard: float, k: int) -> None:
    """Halves that agree and know what the public model does not: nothing but the guard limits them."""
    public = np.array([0.97, 0.01, 0.01, 0.01])
    halves = np.tile([0.01, 0.97, 0.01, 0.01], (k, 2, 1))
    mechanism = SubMix(2.0, 5.0, guard=guard)
    whole = mechanism.mix(halves, public)
    assert float(whole.charges.max()) <= guard
    if k == 1:
        assert float(whole.charges[0]) > 0.99 * guard  # where its bound is attained
    # A silent part changes the answer; with one part less, equal parts would answer as before, for nothing.
    silent = halves.copy()
    silent[0] = public
    true = float(
        symmetric_renyi_divergence(whole.pmf.numpy(), mechanism.mix(silent, public).pmf.numpy(), 2.0)
    )
    assert float(whole.charges[0]) >= true > 1e-3 * guard


def test_a_ball_around_the_public_model_at_one_order_bounds_no_pair_of_slots() -> None:
    """The step of PMixED's proof: slots within beta of the public model would be within 4 beta of each other.

    That inequality holds for bounds at all orders; slots are kept within a ball of one. Two slots that are
    both 0.1 away can be 9 nats apart, and leaving one of them out costs nearly as much. Certified mixing
    compares a slot with the public model only, which every other slot contains: its price holds here.
    """
    rare, beta = 1e-6, 0.1
    public = np.array([rare, 1 - rare])
    more = math.sqrt(rare * math.expm1(beta)) * 0.99
    less = rare * rare / math.expm1(beta) * 1.01
    slots = np.array([[more, 1 - more], [less, 1 - less]])
    assert all(float(symmetric_renyi_divergence(slot, public, 2.0)) <= beta for slot in slots)
    assert float(renyi_divergence(slots[0], slots[1], 2.0)) > 9
    assert float(renyi_divergence(slots.mean(0), slots[1], 2.0)) > 7
    mechanism = Certified(order=2.0, target=beta)
    whole = mechanism.mix(slots, public).pmf.numpy()
    for part in range(2):
        without = slots.copy()
        without[part] = public
        other = mechanism.mix(without, public).pmf.numpy()
        assert float(symmetric_renyi_divergence(whole, other, 2.0)) <= beta


def test_random_stopping_hides_the_stop_in_one_direction_only() -> None:
    """Proposition C.3: early against late is bounded, late against early is not."""
    queries, expansion, order, epsilon = 3, 2.0, 2.0, 0.0
    public, private = np.array([1e-9, 1 - 1e-9]), np.array([0.5, 0.5])
    horizon = int(queries * expansion)

    def law(own_stop: int) -> Array:
        """Transcripts of a world that stops by itself at `own_stop`, mixed over the random stop."""
        total = np.zeros(2**queries)
        for tau in range(1, horizon + 1):
            stop = min(own_stop, tau)
            answers = [private if t < stop else public for t in range(1, queries + 1)]
            total += np.array(
                [math.prod(a[b] for a, b in zip(answers, bits, strict=True)) for bits in bit_strings]
            )
        return total / horizon

    bit_strings = list(itertools.product(range(2), repeat=queries))
    early, late = law(own_stop=1), law(own_stop=queries + 1)
    bound = random_stopping(order=order, epsilon=epsilon, queries=queries, expansion=expansion).epsilon
    assert float(renyi_divergence(early, late, order)) <= bound
    assert float(renyi_divergence(late, early, order)) > 10 * bound
    draws = {RandomStopping(queries, expansion).draw() for _ in range(400)}
    assert draws == set(range(1, horizon + 1))


def test_a_target_tuned_on_the_private_ensemble_voids_the_charge() -> None:
    """If this ensemble's own spending sets the target, removing a part moves every weight."""
    rng = np.random.default_rng(5)
    k = 4
    public = World._soft(rng.normal(size=V))
    calm = np.repeat(World._soft(np.log(public) + 1.5 * rng.normal(size=V))[None, None], k, axis=0)
    halves = np.concatenate([calm, calm], axis=1)
    halves[:, 1] = World._soft(np.log(halves[:, 1]) + 0.3 * rng.normal(size=V))
    halves[0, 1] = floored(np.eye(V)[0])  # one part whose halves disagree keeps the tuned target low
    halves[0, 0] = floored(np.eye(V)[1])

    def tuned(ensemble: Array) -> SubMix:
        for target in np.geomspace(1e-6, 1.0, 60)[::-1]:
            mechanism = SubMix(2.0, float(target))
            if float(mechanism.mix(ensemble, public).charges.max()) <= 0.01:
                return mechanism
        raise AssertionError("no target fits")

    here, there = tuned(halves), tuned(halves[1:])
    charged = float(here.mix(halves, public).charges[0])
    true = float(
        symmetric_renyi_divergence(
            here.mix(halves, public).pmf.numpy(), there.mix(halves[1:], public).pmf.numpy(), 2.0
        )
    )
    assert charged <= 0.01
    assert true > 5 * charged
