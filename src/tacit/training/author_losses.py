"""What keeps a sequence's last hidden state from telling its author: the losses, without any corpus.

h_x is what enters the head at the last position of a sequence that holds a token; padding never enters it.
With M authors and the discriminator's logits z:

    discriminator   -log softmax(z)_y                      mean over sequences; learns the author
    uniform         -(1/M) sum_c log softmax(z)_c          mean over sequences; the model minimises it. At
                                                           least log M, which uniform predictions alone reach
    triplet         mean over pairs of different authors of r
                    + mean over pairs of one author of max(0, margin - r)
                                                           at least 0; a mean over no pairs is 0
    as printed      sum over pairs of one author of d^2
                    - sum over pairs of different authors of d^2    (Eq. 4; no lower bound)

d^2 is the squared distance of two states, and r = d^2 / (mean d^2 over all pairs of the batch). A margin on
d^2 itself would mean another thing for every model: states share a large common part, and squared distances
per coordinate of 1e-4 to 5e-3 were seen, of which a margin of 1 is never reached. r is 1 on average for any
model, and a margin of 1 reads: an author's texts shall lie no nearer to each other than any two texts do. The
mean is part of the gradient, not a constant: the loss stays the same when all states move, shrink or grow
together, so that it is not lowered by letting the model's states collapse, or grow, as a whole. The price:
pairs of different authors alone, or one pair, have no gradient, and pairs of one author alone are evened out.

Two authors' texts are on average as far from each other as each author's own, plus the distance of the two
mean states (all squared). So the least that the triplet loss can reach is one mean state for all authors;
what tells them apart by other than the mean stays.

The paper's Eq. 4 has the signs the other way round, against its own text and Eq. 3. ``paper_eq4`` is Eq. 4 as
printed, in signs, sums and scale.

Neither loss of the adversarial pair reaches the other's parameters: the discriminator's takes states that are
cut off from the model, and the model's goes through weights that are cut off from the discriminator.
Promised is nothing: what is hidden from this discriminator may be plain to another.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN: Final = 1000
"""Width of the paper's discriminator."""

_NO_DISTANCE: Final = 1e-24  # states that coincide have no scale; far below what single precision tells apart


class Discriminator(nn.Module):
    """Two fully connected layers that guess the author of a hidden state."""

    def __init__(self, width: int, authors: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, authors)

    def forward(self, states_ND: Tensor) -> Tensor:
        """A logit for each author."""
        logits: Tensor = self.second(functional.relu(self.first(states_ND.float())))
        return logits

    def guess(self, states_ND: Tensor) -> Tensor:
        """The same to learn from: no gradient reaches whatever made the states."""
        logits: Tensor = self(states_ND.detach())
        return logits

    @staticmethod
    def loss(logits_NM: Tensor, authors_N: Tensor) -> Tensor:
        """What the discriminator minimises, given its guesses."""
        return functional.cross_entropy(logits_NM, authors_N)

    def uniform_loss(self, states_ND: Tensor) -> Tensor:
        """What the model minimises; no gradient reaches the discriminator."""
        first, second = self.first, self.second
        inner = functional.linear(states_ND.float(), first.weight.detach(), first.bias.detach())
        return uniform_loss(
            functional.linear(functional.relu(inner), second.weight.detach(), second.bias.detach())
        )


def discriminator_parameters(width: int, authors: int, hidden: int = HIDDEN) -> int:
    """How many numbers a discriminator learns: it grows with the authors, which the paper's A.4 regrets."""
    return (width + 1) * hidden + (hidden + 1) * authors


def uniform_loss(logits_NM: Tensor) -> Tensor:
    """Mean over rows of the cross-entropy of the uniform distribution against softmax(logits) (Eq. 2)."""
    return (logits_NM.logsumexp(dim=1) - logits_NM.mean(dim=1)).mean()


def last_positions(pieces_BT: Tensor) -> Tensor:
    """Flat positions [N] of the last token of each sequence, row by row; -1 in ``pieces`` is padding.

    A row may hold several sequences one after the other, each a run of its own number.
    """
    after = torch.full_like(pieces_BT, -1)
    after[:, :-1] = pieces_BT[:, 1:]
    last = (pieces_BT >= 0) & (pieces_BT != after)
    return last.flatten().nonzero().squeeze(1)


def distances(one_ND: Tensor, other_KD: Tensor) -> Tensor:
    """Squared distances [N, K] of all pairs of rows; differentiable, never below 0."""
    # Double precision and a common origin: states may be close to each other and far from zero.
    origin = one_ND.detach().double().mean(dim=0)
    one, other = one_ND.double() - origin, other_KD.double() - origin
    squares = one.square().sum(dim=1)[:, None] + other.square().sum(dim=1) - 2 * one @ other.T
    return functional.relu(squares)


def triplet_loss(states_ND: Tensor, authors_N: Tensor, *, margin: float, paper_eq4: bool = False) -> Tensor:
    """Over all pairs within one batch. One author, or one sequence, is legal: the missing mean is 0."""
    first, second = torch.triu_indices(len(authors_N), len(authors_N), offset=1, device=states_ND.device)
    own = distances(states_ND, states_ND)[first, second]
    return _of_pairs(own, authors_N[first] == authors_N[second], margin, paper_eq4=paper_eq4)


def paired_triplet_loss(
    states_ND: Tensor, others_ND: Tensor, same_N: Tensor, *, margin: float, paper_eq4: bool = False
) -> Tensor:
    """Over corresponding rows of a batch and of an auxiliary one; ``same`` tells where the author is one."""
    difference = states_ND.double() - others_ND.double()
    return _of_pairs(difference.square().sum(dim=1), same_N, margin, paper_eq4=paper_eq4)


def _of_pairs(squares_P: Tensor, same_P: Tensor, margin: float, *, paper_eq4: bool) -> Tensor:
    if paper_eq4:
        return (squares_P[same_P].sum() - squares_P[~same_P].sum()).float()
    relative = squares_P * len(squares_P) / squares_P.sum().clamp(min=_NO_DISTANCE)
    pulled, pushed = relative[~same_P], functional.relu(margin - relative[same_P])
    # Sums over at least one: the mean over no pairs is 0, and still has a gradient, of zeros.
    return (pulled.sum() / max(1, len(pulled)) + pushed.sum() / max(1, len(pushed))).float()
