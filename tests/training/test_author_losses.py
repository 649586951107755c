"""The losses against slow oracles in float64, their signs, their bounds, and what they never touch."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.training.author_losses import (
    Discriminator,
    discriminator_parameters,
    distances,
    last_positions,
    paired_triplet_loss,
    triplet_loss,
    uniform_loss,
)

Array = npt.NDArray[np.float64]
SEEDS = st.integers(0, 10**6)


def drawn(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return np.random.default_rng(seed).normal(scale=scale, size=shape)


def tensor(values: Array) -> torch.Tensor:
    return torch.from_numpy(values).float().requires_grad_()


def oracle_of_pairs(different: list[float], same: list[float], margin: float, *, paper_eq4: bool) -> float:
    """As the module says, of squared distances; ``paper_eq4`` as Eq. 4 is printed."""
    if paper_eq4:
        return sum(same) - sum(different)
    both = different + same
    scale = sum(both) / len(both) if both else 1.0
    pulled = [one / scale for one in different]
    pushed = [max(0.0, margin - one / scale) for one in same]
    return sum(pulled) / max(1, len(pulled)) + sum(pushed) / max(1, len(pushed))


def triplet_oracle(
    states: Array, authors: list[int], margin: float, *, paper_eq4: bool
) -> tuple[float, float]:
    """Pair by pair; and the sum of all squared distances, which Eq. 4 cancels in."""
    different: list[float] = []
    same: list[float] = []
    for i, j in itertools.combinations(range(len(authors)), 2):
        squared = sum((a - b) ** 2 for a, b in zip(states[i], states[j], strict=True))
        (same if authors[i] == authors[j] else different).append(squared)
    return oracle_of_pairs(different, same, margin, paper_eq4=paper_eq4), sum(different) + sum(same)


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.integers(1, 5), st.integers(2, 6), st.sampled_from([0.01, 1.0, 30.0]))
def test_the_uniform_loss_is_the_closed_form_and_never_below_log_m(
    seed: int, rows: int, authors: int, scale: float
) -> None:
    logits = drawn(seed, rows, authors, scale=scale)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    oracle = float(np.mean([-sum(math.log(max(p, 1e-300)) for p in row) / authors for row in shares]))
    found = float(uniform_loss(tensor(logits)).detach())
    assert found == pytest.approx(oracle, rel=1e-5)
    assert found >= math.log(authors) - 1e-5
    uniform = torch.full((rows, authors), float(logits[0, 0]))
    assert float(uniform_loss(uniform)) == pytest.approx(math.log(authors), rel=1e-5)


def test_the_uniform_loss_on_a_batch_by_hand() -> None:
    """Predictions (1/2, 1/4, 1/4) and (8/10, 1/10, 1/10), as in Eq. 2."""
    logits = torch.tensor([[2.0, 1.0, 1.0], [8.0, 1.0, 1.0]]).log()
    first = -(math.log(1 / 2) + 2 * math.log(1 / 4)) / 3
    second = -(math.log(0.8) + 2 * math.log(0.1)) / 3
    assert float(uniform_loss(logits)) == pytest.approx((first + second) / 2, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    SEEDS,
    st.lists(st.integers(0, 2), min_size=1, max_size=7),
    st.sampled_from([0.0, 0.5, 100.0]),
    st.booleans(),
)
def test_the_triplet_loss_equals_the_oracle_and_only_eq4_goes_below_zero(
    seed: int, authors: list[int], margin: float, paper_eq4: bool
) -> None:
    states = drawn(seed, len(authors), 5) + 50.0  # far from zero, where a plain Gram matrix loses digits
    loss = triplet_loss(tensor(states), torch.tensor(authors), margin=margin, paper_eq4=paper_eq4)
    oracle, size = triplet_oracle(
        states.astype(np.float32).astype(float), authors, margin, paper_eq4=paper_eq4
    )
    assert float(loss.detach()) == pytest.approx(oracle, rel=1e-5, abs=1e-6 * max(1.0, size))
    assert paper_eq4 or float(loss.detach()) >= 0
    loss.backward()  # type: ignore[no-untyped-call]


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.lists(st.booleans(), min_size=1, max_size=6), st.booleans())
def test_pairs_with_a_second_batch_equal_the_oracle(seed: int, same: list[bool], paper_eq4: bool) -> None:
    one, other = drawn(seed, len(same), 4), drawn(seed + 1, len(same), 4)
    squared = ((one - other) ** 2).sum(axis=1)
    is_same = np.array(same)
    oracle = oracle_of_pairs(squared[~is_same].tolist(), squared[is_same].tolist(), 1.5, paper_eq4=paper_eq4)
    found = paired_triplet_loss(
        tensor(one), tensor(other), torch.tensor(same), margin=1.5, paper_eq4=paper_eq4
    )
    assert float(found.detach()) == pytest.approx(oracle, rel=1e-5, abs=1e-6 * float(squared.sum()))


@pytest.mark.parametrize("paper_eq4", [False, True])
def test_a_step_downhill_moves_pairs_as_the_text_says_and_eq4_the_other_way(paper_eq4: bool) -> None:
    states = tensor(drawn(3, 6, 8))
    authors = torch.tensor([0, 0, 0, 1, 1, 1])
    same = authors[:, None] == authors
    triplet_loss(states, authors, margin=100.0, paper_eq4=paper_eq4).backward()  # type: ignore[no-untyped-call]
    assert states.grad is not None
    before, after = (distances(one, one).detach() for one in (states, states - 0.01 * states.grad))
    off_diagonal = ~torch.eye(6, dtype=torch.bool)

    def relative(found: torch.Tensor) -> float:
        """How far different authors are from each other, in distances within an author."""
        return float(found[~same].mean() / found[same & off_diagonal].mean())

    assert (relative(after) > relative(before)) == paper_eq4


def test_pairs_of_one_author_are_pushed_to_the_margin_and_no_further() -> None:
    """By hand: squared distances 10 (one author), 4 and 10, whose mean is 8."""
    states, authors = tensor(np.array([[0.0, 0.0], [3.0, 1.0], [0.0, 2.0]])), torch.tensor([0, 0, 1])
    beyond, within = (triplet_loss(states, authors, margin=margin) for margin in (1.25, 2.0))
    pulled = (4 / 8 + 10 / 8) / 2
    assert float(beyond.detach()) == pytest.approx(pulled)
    assert float(within.detach()) == pytest.approx(pulled + (2 - 10 / 8))
    printed = triplet_loss(states, authors, margin=1.25, paper_eq4=True)
    assert float(printed.detach()) == pytest.approx(10 - (4 + 10))


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from([1e-2, 1.0, 1e3]), st.sampled_from([0.5, 1.0, 3.0]))
def test_moving_shrinking_or_growing_all_states_changes_nothing(
    seed: int, scale: float, margin: float
) -> None:
    """Squared distances of 1e-4 or of 1e6: the margin means the same, and a collapse gains nothing."""
    plain = drawn(seed, 7, 5)
    authors = torch.tensor([0, 0, 0, 1, 1, 2, 2])

    def loss_and_gradient(states: torch.Tensor) -> tuple[float, torch.Tensor]:
        found = triplet_loss(states, authors, margin=margin)
        (gradient,) = torch.autograd.grad(found, states)
        return float(found.detach()), gradient

    states = torch.from_numpy(plain).requires_grad_()
    moved = torch.from_numpy(scale * plain + 2 * scale).requires_grad_()
    (loss, gradient), (other, other_gradient) = loss_and_gradient(states), loss_and_gradient(moved)
    assert other == pytest.approx(loss, rel=1e-6)
    assert torch.allclose(other_gradient * scale, gradient, rtol=1e-5, atol=1e-9)
    assert gradient.abs().max() > 1e-3
    assert gradient.sum(dim=0).abs().max() < 1e-6  # along a common move
    assert abs(float((gradient * states.detach()).sum())) < 1e-6  # along a common scale


@pytest.mark.parametrize("authors", [[0, 1, 2, 3], [0], [0, 0]], ids=str)
def test_pairs_of_one_kind_say_nothing(authors: list[int]) -> None:
    states = tensor(drawn(5, len(authors), 4))
    (gradient,) = torch.autograd.grad(triplet_loss(states, torch.tensor(authors), margin=1.0), states)
    assert gradient.abs().max() < 1e-6


@pytest.mark.parametrize("paper_eq4", [False, True])
def test_states_that_coincide_have_a_finite_loss_and_no_gradient(paper_eq4: bool) -> None:
    states = torch.full((4, 3), 0.7, requires_grad=True)
    loss = triplet_loss(states, torch.tensor([0, 0, 1, 1]), margin=1.0, paper_eq4=paper_eq4)
    (gradient,) = torch.autograd.grad(loss, states)
    assert float(loss.detach()) == (0.0 if paper_eq4 else 1.0)
    assert not gradient.any()


def test_padding_never_enters_the_last_state() -> None:
    pieces = torch.tensor([[4, 4, 7, -1], [2, 2, 2, 2], [-1, -1, -1, -1], [5, -1, -1, -1]])
    assert last_positions(pieces).tolist() == [1, 2, 7, 12]
    states = torch.randn(4, 4, 3)
    chosen = states.flatten(0, 1)[last_positions(pieces)]
    spoilt = states.masked_fill((pieces < 0)[..., None], float("nan"))
    assert torch.equal(spoilt.flatten(0, 1)[last_positions(pieces)], chosen)
    assert len(last_positions(torch.full((2, 3), -1))) == 0


def test_neither_loss_reaches_the_others_parameters() -> None:
    torch.manual_seed(0)
    discriminator, maker = Discriminator(4, 3, hidden=7), torch.nn.Linear(2, 4)
    inputs, authors = torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])
    discriminator.uniform_loss(maker(inputs)).backward()  # type: ignore[no-untyped-call]
    assert all(one.grad is None for one in discriminator.parameters())
    assert maker.weight.grad is not None
    assert maker.weight.grad.any()
    maker.zero_grad(set_to_none=True)
    discriminator.loss(discriminator.guess(maker(inputs)), authors).backward()  # type: ignore[no-untyped-call]
    assert all(one.grad is not None and one.grad.any() for one in discriminator.parameters())
    assert all(one.grad is None for one in maker.parameters())


def test_both_losses_are_of_one_and_the_same_prediction() -> None:
    torch.manual_seed(1)
    discriminator, states = Discriminator(4, 3, hidden=7), torch.randn(5, 4)
    shares = discriminator(states).softmax(dim=1).detach()
    assert float(discriminator.uniform_loss(states).detach()) == pytest.approx(
        float(-shares.log().mean()), rel=1e-5
    )
    authors = torch.tensor([0, 1, 2, 0, 1])
    own = -shares[torch.arange(5), authors].log().mean()
    assert float(discriminator.loss(discriminator.guess(states), authors).detach()) == pytest.approx(
        float(own), rel=1e-5
    )


@pytest.mark.parametrize(("authors", "paper"), [(100, 650_000), (10_000, 10_550_000)])
def test_parameters_are_counted_as_in_the_paper_and_with_biases(authors: int, paper: int) -> None:
    """A.4: 550 x 1000 + 1000 x M, without biases."""
    built = sum(one.numel() for one in Discriminator(550, authors).parameters())
    assert discriminator_parameters(550, authors) == built == paper + 1000 + authors
