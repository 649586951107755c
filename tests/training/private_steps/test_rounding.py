"""What cancels does not slip under the clip, and what is ordinary is hardly clipped more: against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from tacit.training.encoding import Batch, IntArray
from tacit.training.private_steps.book_keeping import books as books_module
from tacit.training.private_steps.book_keeping.books import Books
from tacit.training.private_steps.book_keeping.engine import BookKeepingEngine
from tacit.training.private_steps.book_keeping.ghost import Gram, Grams, lookup_bound, outer_bound, rounding
from tacit.training.private_steps.book_keeping.head import HeadEntry, _bound
from tacit.training.private_steps.book_keeping.products import Inner, onednn_inner
from tacit.training.private_steps.clipping import GradientSum, clip_factors, norms_of_rows
from tacit.training.private_steps.engine import StepTally
from tacit.training.private_steps.loop_engine import LoopEngine
from tacit.training.private_steps.objective import NextTokenObjective
from tests.training.private_steps.small import privacy

LIBRARIES = pytest.mark.parametrize("inner", [None, onednn_inner], ids=["torch", "onednn"])
Cancelling = Callable[[int, int, int], tuple[Tensor, Tensor]]


def equal_values(time: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """As a reviewer found it: rounding always goes the same way."""
    sizes = torch.randn(time, 1)
    rows = torch.ones(time, height) * (sizes - sizes.mean())
    rows[0] += 0.02
    return rows, torch.full((time, width), 3.3)


def alternating_signs(time: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    signs = torch.ones(time, 1)
    signs[1::2] = -1
    rows, columns = torch.rand(1, height) + 0.5, torch.rand(1, width) + 0.5
    return signs * rows, columns * (1 + 1e-3 * torch.rand(time, 1))


def pairs_that_undo_each_other(time: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    rows, columns = torch.randn(time, height), torch.randn(time, width)
    rows[1::2], columns[1::2] = -rows[: time // 2 * 2 : 2], columns[: time // 2 * 2 : 2]
    rows[0] += 1e-3 * torch.randn(height)
    return rows, columns


def nothing_left(time: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Halves that cancel exactly: whatever fp32 leaves of them is rounding."""
    rows, columns = torch.randn(time, height), torch.randn(time, width)
    half = time // 2
    rows[half : 2 * half], columns[half : 2 * half] = -rows[:half], columns[:half]
    rows[2 * half :] = 0
    order = torch.randperm(time)
    return rows[order], columns[order]


KINDS: list[Cancelling] = [equal_values, alternating_signs, pairs_that_undo_each_other, nothing_left]
SCALES = [(1, 1), (1e15, 1e-15), (1e-15, 1e15), (1e15, 1), (1e15, 1e15), (1e-15, 1e-15), (1e-22, 1e17)]


@dataclass
class Matrix:
    """The books of one matrix."""

    height: int
    width: int
    inner: Inner | None
    longest: int = 128

    def __post_init__(self) -> None:
        self.weight = nn.Parameter(torch.zeros(self.height, self.width))
        # Shared, so that positions are kept where the gradient would be smaller.
        self.books = Books({self.weight: "weight"}, {self.weight}, Grams(self.inner, self.longest))
        self.exact = torch.zeros(self.height, self.width, dtype=torch.float64)
        self.books.open(1)

    def outer(self, rows: Tensor, columns: Tensor) -> None:
        self.books.outer(self.weight, rows[None], columns[None])
        self.exact += rows.double().T @ columns.double()

    def head(self, rows: Tensor, columns: Tensor) -> None:
        bound = _bound([rows], [columns], self.books.how)
        self.books.dense(self.weight, HeadEntry(rows, columns, [(0, len(rows))], bound))
        self.exact += rows.double().T @ columns.double()

    def lookup(self, ids: Tensor, gradients: Tensor) -> None:
        self.books.lookup(self.weight, ids[None], gradients[None])
        self.exact.index_add_(0, ids, gradients.double())

    def assert_clipped(self) -> None:
        """Both as it should be and as fp32 adds it up."""
        norms = self.books.norms()
        factors = clip_factors(norms, privacy(1))
        assert float(factors[0] * self.exact.norm()) <= 1 + 1e-4
        if float(factors[0]):
            total = GradientSum([self.weight])
            self.books.add_to(total, factors)
            assert float(total[self.weight].total().double().norm()) <= 1 + 1e-4


@LIBRARIES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(128, 2000, 256), (64, 700, 3000), (200, 600, 512), (3, 50, 60)])
def test_terms_that_cancel_do_not_slip_under_the_clip(
    kind: Cancelling, shape: tuple[int, int, int], inner: Inner | None
) -> None:
    torch.manual_seed(0)
    for scale in SCALES:
        rows, columns = kind(*shape)
        rows, columns = rows * scale[0], columns * scale[1]
        for use in (Matrix.outer, Matrix.head):
            matrix = Matrix(*shape[1:], inner)
            use(matrix, rows, columns)
            matrix.assert_clipped()


@LIBRARIES
def test_nor_time_first(inner: Inner | None) -> None:
    """As recurrent layers lay them out."""
    torch.manual_seed(1)
    for kind in KINDS:
        every = [kind(64, 800, 200) for _ in range(3)]
        rows, columns = (torch.stack(side, dim=1).transpose(0, 1) for side in zip(*every, strict=True))
        weight = nn.Parameter(torch.zeros(800, 200))
        books = Books({weight: "weight"}, {weight}, Grams(inner))
        books.open(3)
        books.outer(weight, rows, columns)
        exact = torch.bmm(rows.double().transpose(1, 2), columns.double()).flatten(1).norm(dim=1)
        assert bool((books.norms() >= exact).all())


@pytest.mark.parametrize("scale", [1e-22, 1e-15, 1, 1e15])
def test_nor_of_an_embedding(scale: float) -> None:
    torch.manual_seed(2)
    for kind in KINDS:
        sizes, columns = kind(128, 1, 256)
        matrix = Matrix(500, 256, None)
        matrix.lookup(torch.randint(3, (128,)), scale * sizes * columns)
        matrix.assert_clipped()


@LIBRARIES
@pytest.mark.parametrize("use", [Matrix.outer, Matrix.head])
@pytest.mark.parametrize("scale", SCALES)
def test_nor_of_a_head_that_cancels_with_its_embedding(
    use: Callable[[Matrix, Tensor, Tensor], None], scale: tuple[float, float], inner: Inner | None
) -> None:
    torch.manual_seed(3)
    for columns in (torch.full((128, 256), 3.3), torch.randn(128, 256)):
        ids = torch.randint(40, (128,))
        matrix = Matrix(2000, 256, inner)
        use(matrix, scale[0] * nn.functional.one_hot(ids, 2000).float(), scale[1] * columns)
        order = torch.randperm(128)
        gradients = -(scale[0] * (scale[1] * columns))
        gradients[0] += 1e-3 * scale[0] * scale[1]
        matrix.lookup(ids[order], gradients[order])
        matrix.assert_clipped()


@pytest.mark.parametrize("engine", ["loop", "torch", "onednn"])
def test_an_engine_adds_no_more_than_the_clip(engine: str) -> None:
    torch.manual_seed(4)
    layer = nn.Linear(256, 2000, bias=False)
    rows, columns = equal_values(128, 2000, 256)

    class Cancels:
        def weighted(self, batch: Batch, row_weights: Tensor) -> Tensor:
            loss: Tensor = (layer(columns.expand(len(batch.rows), -1, -1)) * rows).sum()
            return loss

    def batch(rows: IntArray) -> Batch:
        return Batch({}, torch.zeros(len(rows), 128, dtype=torch.int64), torch.zeros(0), rows)

    (weight,) = layer.parameters()
    settings, total = privacy(1, loss="sum"), GradientSum([weight])
    if engine == "loop":
        LoopEngine([weight], Cancels(), batch, settings).add_rows(np.array([0]), total, StepTally())
    else:
        inner = onednn_inner if engine == "onednn" else None
        booked = BookKeepingEngine(layer, Cancels(), batch, settings, Grams(inner))
        booked.add_rows(np.array([0]), total, StepTally())
    # What cancels is clipped more than it need be: the margin is for as many positions as may be added.
    assert 0.5 < float(total[weight].total().double().norm()) <= 1 + 1e-4


@pytest.mark.parametrize("value", [3.3, 1.7, 1e-3])
@pytest.mark.parametrize("size", [1, 255, 256, 1_000_001])
def test_norms_of_equal_values(value: float, size: int) -> None:
    rows = torch.full((2, size), value)
    torch.testing.assert_close(norms_of_rows(rows), rows.double().norm(dim=1), rtol=1e-5, atol=0)


ORDINARY = [(8, 300, 200), (128, 8000, 256), (128, 768, 3072), (512, 768, 768), (1024, 2000, 256)]


@LIBRARIES
@pytest.mark.parametrize("shape", ORDINARY)
def test_ordinary_squares_are_right_and_hardly_enlarged(
    shape: tuple[int, int, int], inner: Inner | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(books_module, "in_float64", unwanted)
    torch.manual_seed(5)
    time, height, width = shape
    rows, columns = torch.randn(time, height), torch.randn(time, width)
    exact = (rows.double().T @ columns.double()).square().sum()
    how = Grams(inner, time)
    bound = outer_bound(Gram(rows[None], how), Gram(columns[None], how))
    torch.testing.assert_close(bound.squares[0], exact, rtol=1e-4, atol=0)
    assert exact <= float(bound.squares + bound.margins) <= 1.01 * exact
    for use in (Matrix.outer, Matrix.head):
        matrix = Matrix(height, width, inner, time)
        use(matrix, rows, columns)
        assert exact.sqrt() <= float(matrix.books.norms()) <= 1.01 * exact.sqrt()
    # Positions that point the same way on one side, as hidden states do.
    matrix = Matrix(height, width, inner, time)
    matrix.outer(rows, columns + 2)
    assert matrix.exact.norm() <= float(matrix.books.norms()) <= 1.02 * matrix.exact.norm()
    # A tied embedding beside it.
    matrix.lookup(torch.randint(height, (time,)), 30 * torch.randn(time, width))
    assert matrix.exact.norm() <= float(matrix.books.norms()) <= 1.02 * matrix.exact.norm()


@pytest.mark.parametrize("value", [3.3, 1.7, 1e-3])
def test_a_token_that_fills_a_microbatch_is_added_up_as_precisely_as_the_margin_says(value: float) -> None:
    """One by one, 16,384 equal gradients were off by 4.5e-5 of their sum."""
    weight, count = nn.Parameter(torch.zeros(5, 3)), 16_384
    total = GradientSum([weight])
    total[weight].add_at(torch.full((count,), 2), torch.full((count, 3), value))
    exact = torch.zeros(5, 3, dtype=torch.float64)
    exact[2] = count * float(torch.tensor(value))
    torch.testing.assert_close(total[weight].total().double(), exact, rtol=rounding(514) / 2, atol=0)


def test_ordinary_embeddings() -> None:
    torch.manual_seed(6)
    ids, gradients = torch.randint(400, (1, 1024)), torch.randn(1, 1024, 256)
    exact = torch.zeros(400, 256, dtype=torch.float64).index_add_(0, ids[0], gradients[0].double())
    bound = lookup_bound(ids, gradients)
    torch.testing.assert_close(bound.squares[0], exact.square().sum(), rtol=1e-4, atol=0)
    assert float(bound.margins) <= 1e-3 * float(bound.squares)


def test_an_example_without_a_gradient_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books_module, "in_float64", None)
    matrix = Matrix(300, 200, None)
    matrix.outer(torch.zeros(40, 300), torch.randn(40, 200))
    assert float(matrix.books.norms()) <= 1e-10


class CancellingHead:
    """A model that is its head: states alternate, so that a row's gradient is far smaller than its terms.

    The last row is long and does not cancel. ``left`` is what the others leave.
    """

    def __init__(self, lengths: list[int], *, vocabulary: int = 64, width: int = 64, left: float) -> None:
        config = GPT2Config(
            vocab_size=vocabulary,
            n_positions=max(lengths),
            n_embd=width,
            n_layer=0,
            n_head=2,
            embd_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.model = GPT2LMHeadModel(config).requires_grad_(False)
        state = torch.ones(width)
        state[::2] = -1
        body = self.model.transformer
        body.wpe.weight.zero_()
        body.wte.weight[0], body.wte.weight[1] = state, -state
        body.ln_f.bias.fill_(left)
        self.head = self.model.lm_head.weight
        self.head.zero_().requires_grad_(True)
        self._lengths = lengths

    def batch(self, rows: IntArray) -> Batch:
        longest = max(self._lengths[row] for row in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.int64)
        labels = torch.full((len(rows), longest), -100)
        for place, row in enumerate(rows):
            length = self._lengths[row]
            ids[place, :length] = 0 if row == len(self._lengths) - 1 else torch.arange(length) % 2
            labels[place, :length] = 5
        return Batch({"input_ids": ids, "use_cache": False}, labels, torch.zeros_like(labels), rows)

    def clipped(self, rows: range, clip: float, *, autocast: bool = False) -> Tensor:
        """What book-keeping adds up for these rows."""
        objective = NextTokenObjective(self.model, autocast=autocast)
        engine = BookKeepingEngine(self.model, objective, self.batch, privacy(len(rows), clip=clip))
        total = GradientSum([self.head])
        engine.add_rows(np.array(rows), total, StepTally())
        return total[self.head].total().double().clone()


def test_no_example_changes_how_far_others_are_clipped() -> None:
    """Margins that grew with the microbatch, or with its longest row, moved the sum by 7 times the clip."""
    clip = 1e-6
    made = CancellingHead([8] * 15 + [1024], left=2.4e-5)
    difference = made.clipped(range(16), clip) - made.clipped(range(15), clip)
    assert float(difference.norm()) <= clip * (1 + 1e-3)


@pytest.mark.parametrize("vocabulary", [64, 3000])
def test_norms_are_computed_in_fp32_where_the_loss_is_in_bf16(vocabulary: int) -> None:
    """In bf16 they had come out too small by a third, and long vectors had not been added up at all."""
    clip, found = 1e-3, []
    for left in np.linspace(0.002, 0.12, 20):
        made = CancellingHead([64, 64], vocabulary=vocabulary, left=float(left))
        found.append(float(made.clipped(range(1), clip, autocast=True).norm()) / clip)
    assert 0.5 < max(found) <= 1 + 1e-3


def test_norms_of_low_precision_are_taken_in_fp32() -> None:
    rows = torch.full((2, 300), 0.1, dtype=torch.bfloat16)
    exact = torch.linalg.vector_norm(rows.double(), dim=1)
    torch.testing.assert_close(norms_of_rows(rows), exact, rtol=1e-5, atol=0)
