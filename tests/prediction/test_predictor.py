"""Private answers from real ensembles: what is charged, what leaves, and what happens after STOP."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.errors import InputError
from tacit.mechanisms import Decoding, RandomStopping
from tacit.mechanisms.choice import MechanismChoice
from tacit.mechanisms.pmfs import floored_public
from tacit.models.ensemble import Ensemble
from tacit.prediction import Answering, Budget, PrivatePredictor
from tests.models.ensembles import FAMILIES, ensemble_of

PROMPT = "the parcel"


@pytest.fixture(scope="module", params=FAMILIES)
def ensemble(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ensemble:
    folder = tmp_path_factory.mktemp(request.param)
    return ensemble_of(request.getfixturevalue(request.param), folder, parts=3, halves=2)


@pytest.fixture(scope="module")
def whole_parts(tiny_transformer: Path, tmp_path_factory: pytest.TempPathFactory) -> Ensemble:
    return ensemble_of(tiny_transformer, tmp_path_factory.mktemp("parts"), parts=3, halves=1)


def seeded(seed: int = 0):  # type: ignore[no-untyped-def]
    return random.Random(seed).randrange


NAMES = ("submix", "certified", "individual", "subsample_aggregate", "gnmax", "public", "nonprivate")


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_answers_on_every_family(ensemble: Ensemble, name: str) -> None:
    choice = MechanismChoice(name, target=0.05)  # type: ignore[arg-type]
    predictor = PrivatePredictor(ensemble, choice, Budget(1.0, 20), slots=2)
    answers = predictor.generate_all([PROMPT, "a", "b c"], max_tokens=4, stop_at_end=False)
    assert [len(answer.tokens) for answer in answers] == [4, 4, 4]
    assert predictor.operator_view().answered == 12
    kinds = {"submix": "rop", "gnmax": "rop", "public": "public", "nonprivate": "none"}
    assert predictor.guarantee.kind == kinds.get(name, "rdp")
    assert ("One-directional" in str(predictor.guarantee)) == (name == "gnmax")
    neighbours = {"submix": "removed part", "certified": "null part", "individual": "null part"}
    noisy = name in ("subsample_aggregate", "gnmax")
    assert predictor.guarantee.neighbours == ("changed part" if noisy else neighbours.get(name))


def test_batches_and_single_prompts_draw_from_the_same_distributions(ensemble: Ensemble) -> None:
    """With the same random numbers, one prompt alone and among others gets the same tokens."""
    choice = MechanismChoice("certified", target=0.05)
    alone = PrivatePredictor(ensemble, choice, Budget(10.0, 200), slots=3, randbelow=seeded())
    first = alone.generate(PROMPT, max_tokens=1, stop_at_end=False)
    together = PrivatePredictor(ensemble, choice, Budget(10.0, 200), slots=3, randbelow=seeded())
    batch = together.generate_all([PROMPT, "x"], max_tokens=1, stop_at_end=False)
    assert batch[0].tokens == first.tokens


def test_spending_is_what_the_mechanism_charged_and_stop_is_for_good(ensemble: Ensemble) -> None:
    """Booked before the draw; past the budget every answer is the public model's, with the same work."""
    torch.manual_seed(0)
    pmfs = torch.softmax(torch.randn(7, 50) * 2, -1)
    members, public = pmfs[1:].reshape(3, 2, 50), pmfs[0]
    choice = MechanismChoice("submix", target=0.5)
    one = choice.build(3).mix(members, public).charges
    epsilon = 2.5 * float(one.max())
    drawn: list[int] = []

    def observe(total: int) -> int:
        drawn.append(total)
        return 0

    answering = Answering(choice, parts=3, halves=2, budget=Budget(epsilon, 10), randbelow=observe)
    for _ in range(2):
        answering.draw(members, public)
    view = answering.operator_view()
    assert not view.stopped
    assert view.spent == pytest.approx([2 * float(value) for value in one], abs=1e-8)
    answering.draw(members, public)
    after = answering.operator_view()
    assert after.stopped
    assert after.spent == view.spent  # the answer that would have passed the budget was not charged
    assert torch.equal(answering._charged(members, public), floored_public(public))
    assert len(drawn) == 3


def test_certified_answers_are_counted_in_public(whole_parts: Ensemble) -> None:
    choice = MechanismChoice("certified", target=0.1)
    predictor = PrivatePredictor(whole_parts, choice, Budget(0.3, 3))
    predictor.generate(PROMPT, max_tokens=3, stop_at_end=False)
    assert predictor.operator_view().spent == pytest.approx([0.3] * 3)
    predictor.generate(PROMPT, max_tokens=5, stop_at_end=False)
    assert predictor.operator_view().spent == pytest.approx([0.3] * 3)
    assert predictor.guarantee.epsilon == 0.3
    with pytest.raises(InputError, match="does not pay for one answer"):
        PrivatePredictor(whole_parts, choice, Budget(0.05, 1))


@pytest.mark.parametrize("lazy", [False, True])
def test_exactly_the_paid_answers_are_mixed(lazy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_from: list[float] = []

    def recorded(pmf: torch.Tensor, randbelow: Any) -> int:
        drawn_from.append(float(pmf[0]))
        return 1

    monkeypatch.setattr("tacit.prediction.answering.sample", recorded)
    public, part = torch.tensor([0.1, 0.9]), torch.tensor([0.9, 0.1])
    choice = MechanismChoice("certified", target=0.1)
    answering = Answering(choice, parts=2, halves=1, budget=Budget(0.3, 3))
    for _ in range(6):
        if lazy:
            answering.draw_lazily(part, public, parts=2)
        else:
            answering.draw(part.view(1, 1, 2).expand(2, 1, 2), public)
    assert all(mass > 0.11 for mass in drawn_from[:3])
    assert drawn_from[3:] == pytest.approx([0.1] * 3)


def test_a_random_stop_at_once_is_no_mistake_of_the_budget() -> None:
    members, public = pmfs_of(2)
    stopping = RandomStopping(10, 1.0)
    for first in range(10):
        answering = Answering(
            MechanismChoice("certified", target=0.02),
            parts=2,
            halves=2,
            budget=Budget(2.0, 100, stopping),
            randbelow=lambda total, first=first: min(first, total - 1),  # type: ignore[misc]
        )
        for _ in range(12):
            answering.draw(members, public)
        assert answering.operator_view().spent == pytest.approx([0.02 * first] * 2)


def test_individual_budgets_never_pass_and_never_stop(ensemble: Ensemble) -> None:
    # So small that thirty tokens are sure to use it up, whatever is drawn.
    predictor = PrivatePredictor(ensemble, MechanismChoice("individual", target=0.05), Budget(0.0005, 10))
    predictor.generate(PROMPT, max_tokens=30, stop_at_end=False)
    view = predictor.operator_view()
    assert not view.stopped
    assert max(view.spent) <= 0.0005
    assert max(view.spent) > 0.00025


def test_the_lazy_path_has_the_law_of_the_whole_mixture(whole_parts: Ensemble) -> None:
    """One secret part per token, or all parts at once: the same distribution of answers."""
    choice = MechanismChoice("certified", target=0.3)
    draws = 3000
    budget = Budget(0.3 * draws * 2, draws * 2)
    lazy = PrivatePredictor(whole_parts, choice, budget, lazy=True, slots=50)
    found = Counter(
        answer.tokens[0]
        for _ in range(draws // 50)
        for answer in lazy.generate_all([PROMPT] * 50, max_tokens=1, stop_at_end=False)
    )
    executor = whole_parts.executor(slots=1, context=32)
    tokenizer = whole_parts.public.tokenizer
    logits = executor.prefill(executor.open(), [tokenizer.start_token, *tokenizer.encode([PROMPT])[0]])
    pmfs = Decoding().pmfs(logits).pmfs
    expected = choice.build(3).mix(pmfs[1:], pmfs[0]).pmf
    likely = [token for token in range(len(expected)) if float(expected[token]) * draws >= 5]
    observed = [found[token] for token in likely]
    rest = draws - sum(observed)
    law = [float(expected[token]) * draws for token in likely]
    assert stats.chisquare([*observed, rest], [*law, draws - sum(law)]).pvalue > 1e-4
    wrong = [float(pmfs[0, token]) * draws for token in likely]
    assert stats.chisquare([*observed, rest], [*wrong, draws - sum(wrong)]).pvalue < 1e-4


def test_a_broken_member_is_noticed_by_the_operator_and_hurts_nobody_else() -> None:
    pmfs = torch.softmax(torch.randn(7, 50, generator=torch.Generator().manual_seed(1)), -1)
    members = pmfs[1:].reshape(3, 2, 50).clone()
    members[1, 0, 3] = float("nan")
    answering = Answering(MechanismChoice("submix"), parts=3, halves=2, budget=Budget(2.0, 10))
    answering.draw(members, pmfs[0])
    view = answering.operator_view()
    assert view.alarms == 1
    assert not view.stopped
    lazy = Answering(MechanismChoice("certified"), parts=3, halves=1, budget=Budget(2.0, 10))
    lazy.draw_lazily(members[1, 0], pmfs[0], parts=3)
    assert lazy.operator_view().alarms == 1


def pmfs_of(parts: int, vocabulary: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    """Halves [parts, 2, V] that disagree, and a public pmf."""
    noise = torch.randn(2 * parts + 1, vocabulary, generator=torch.Generator().manual_seed(4))
    pmfs = torch.softmax(2 * noise, -1)
    return pmfs[1:].view(parts, 2, vocabulary), pmfs[0]


def test_a_crash_between_charge_and_draw_leaves_the_charge() -> None:
    """A crash may over-count, never under-count."""
    members, public = pmfs_of(3)

    def crash(total: int) -> int:
        raise RuntimeError("power failure")

    answering = Answering(
        MechanismChoice("submix", target=0.1), parts=3, halves=2, budget=Budget(50.0, 10), randbelow=crash
    )
    with pytest.raises(RuntimeError, match="power failure"):
        answering.draw(members, public)
    assert min(answering.operator_view().spent) > 0


@pytest.mark.parametrize("name", ["submix", "individual", "certified"])
def test_parallel_clients_never_overspend(name: str) -> None:
    members, public = pmfs_of(3)
    choice = MechanismChoice(name, target=0.05)  # type: ignore[arg-type]
    answering = Answering(choice, parts=3, halves=2, budget=Budget(0.5, 10))
    with ThreadPoolExecutor(8) as clients:
        list(clients.map(lambda _: answering.draw(members, public), range(60)))
    view = answering.operator_view()
    assert view.answered == 60
    assert max(view.spent) <= 0.5 + 1e-12
    if name == "certified":
        assert view.spent == pytest.approx([0.5] * 3)


class Operations(TorchDispatchMode):
    """Every tensor operation and the shapes it took, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, tuple[object, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = tuple(tuple(a.shape) for a in args if isinstance(a, torch.Tensor))
        self.seen.append((str(func), shapes))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["submix", "certified", "individual"])
def test_the_same_work_is_done_after_the_budget_is_gone(name: str) -> None:
    members, public = pmfs_of(3)
    choice = MechanismChoice(name, target=0.05)  # type: ignore[arg-type]

    def operations(epsilon: float, asked: torch.Tensor = members) -> list[tuple[str, tuple[object, ...]]]:
        answering = Answering(choice, parts=3, halves=2, budget=Budget(epsilon, 10), randbelow=lambda n: 0)
        for _ in range(30):
            answering.draw(members, public)
        recorded = Operations()
        with recorded:
            answering.draw(asked, public)
        return recorded.seen

    rich, spent = operations(1e6), operations(0.06)
    assert len(rich) > 50
    assert rich == spent
    broken = members.clone()
    broken[1, 0, 3] = float("nan")
    assert operations(1e6, broken) == rich


def test_random_stopping_stops_whatever_the_budget_says() -> None:
    pmfs = torch.softmax(torch.randn(7, 50, generator=torch.Generator().manual_seed(1)), -1)
    members, public = pmfs[1:].reshape(3, 2, 50), pmfs[0]
    budget = Budget(1e6, 10, RandomStopping(10, 1.0))
    answering = Answering(MechanismChoice("submix"), parts=3, halves=2, budget=budget, randbelow=lambda n: 2)
    assert not torch.equal(answering._charged(members, public), floored_public(public))
    assert not torch.equal(answering._charged(members, public), floored_public(public))
    assert torch.equal(answering._charged(members, public), floored_public(public))  # before the third answer
    assert "one-directional" in str(answering.guarantee)


def test_truncation_and_temperature_reach_the_answer(ensemble: Ensemble) -> None:
    predictor = PrivatePredictor(ensemble, MechanismChoice("public"), Budget(1.0, 1))
    tokens = {predictor.next_token(PROMPT, Decoding(top_k=1)) for _ in range(5)}
    assert len(tokens) == 1


def test_predictions_carry_nothing_but_tokens(ensemble: Ensemble) -> None:
    prediction = PrivatePredictor(ensemble, MechanismChoice("submix"), Budget(1.0, 5)).generate(
        PROMPT, max_tokens=2
    )
    assert set(vars(prediction)) == {"text", "tokens", "finish"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_tokens": 10_000}, "do not fit"),
    ],
)
def test_bad_requests(ensemble: Ensemble, arguments: dict[str, int], words: str) -> None:
    predictor = PrivatePredictor(ensemble, MechanismChoice("submix"), Budget(1.0, 5), context=32)
    with pytest.raises(InputError, match=words):
        predictor.generate(PROMPT, **arguments)  # type: ignore[arg-type]


def test_bad_set_ups(ensemble: Ensemble, whole_parts: Ensemble) -> None:
    with pytest.raises(InputError, match="one model per part"):
        PrivatePredictor(whole_parts, MechanismChoice("submix"), Budget(1.0, 5))
    with pytest.raises(InputError, match="Only certified"):
        PrivatePredictor(whole_parts, MechanismChoice("individual"), Budget(1.0, 5), lazy=True)
    with pytest.raises(InputError, match="halves: false"):
        PrivatePredictor(ensemble, MechanismChoice("certified"), Budget(1.0, 5), lazy=True)
    for epsilon in (0, -1, 1e-10, 1e300, float("nan"), float("inf")):
        with pytest.raises(InputError, match=r"epsilon=.* from 1e-9 to"):
            Budget(epsilon, 5)
    for queries in (0, 10**400):
        with pytest.raises(InputError, match=f"queries={queries}"):
            Budget(1.0, queries)
    with pytest.raises(InputError, match="unknown"):
        MechanismChoice("magic")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="do not make"):
        Ensemble(ensemble.public, ensemble.members[:5], 3, 2)
    with pytest.raises(InputError, match="belongs to mechanism submix"):
        MechanismChoice("certified", guard=0.1)


def test_noise_is_chosen_to_cost_the_target() -> None:
    noisy = MechanismChoice("subsample_aggregate", target=0.02).build(8)
    assert noisy.price(8) == pytest.approx(0.02, rel=1e-4)  # type: ignore[union-attr]
    assert noisy.price(8) <= 0.02  # type: ignore[union-attr]
    voted = MechanismChoice("gnmax", target=0.02).build(8)
    assert 2.0 / voted.sigma**2 == pytest.approx(0.02)  # type: ignore[union-attr]
