"""Long runs of private answers: budgets hold under parallel clients, slots come back, memory stays."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tacit.errors import ModelError
from tacit.mechanisms.choice import MechanismChoice, MechanismName
from tacit.prediction import Answering, Budget, PrivatePredictor
from tests.models.ensembles import ensemble_of

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", ["submix", "certified", "individual"])
def test_twenty_thousand_parallel_answers_stay_within_the_budget(name: MechanismName) -> None:
    generator = torch.Generator().manual_seed(3)
    public = torch.softmax(2 * torch.randn(200, generator=generator), -1)
    budget = Budget(1.0, 5000)
    # SubMix's charges are far below its target where halves differ: a larger one, so that STOP comes midway.
    target = budget.target * (30 if name == "submix" else 1)
    answering = Answering(MechanismChoice(name, target=target), parts=4, halves=2, budget=budget)

    def client(seed: int) -> None:
        own = torch.Generator().manual_seed(seed)
        for _ in range(2500):
            members = torch.softmax(2 * torch.randn(4, 2, 200, generator=own), -1)
            if torch.rand((), generator=own) < 0.01:
                members[0, 0, 0] = float("nan")
            answering.draw(members, public)
            assert max(answering.operator_view().spent) <= budget.epsilon + 1e-9

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(client, range(8)))
    view = answering.operator_view()
    assert view.answered == 20_000
    assert view.alarms > 100
    assert max(view.spent) > 0.9 * budget.epsilon
    assert view.stopped is (name != "individual")


@pytest.mark.parametrize("lazy", [False, True])
def test_a_thousand_texts_leave_no_slot_and_no_memory_behind(
    tiny_transformer: Path, tmp_path: Path, lazy: bool
) -> None:
    ensemble = ensemble_of(tiny_transformer, tmp_path, parts=3, halves=1)
    choice = MechanismChoice("certified", target=0.01)
    predictor = PrivatePredictor(ensemble, choice, Budget(1e6, 10**6), slots=8, lazy=lazy)
    executor = predictor._lazy or predictor._whole
    assert executor is not None
    used = 0
    for batch in range(125):
        prompts = [f"the parcel {batch} {i}" for i in range(8)]
        predictor.generate_all(prompts, max_tokens=12, stop_at_end=False)
        if batch == 25:
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if batch % 10 == 0:  # a fault in the middle of a batch gives its slots back
            with pytest.raises(RuntimeError, match="fault"), pytest.MonkeyPatch.context() as patch:
                patch.setattr(executor, "step", _fault)
                predictor.generate_all(prompts, max_tokens=3, stop_at_end=False)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 20_000  # kilobytes
    slots = [executor.open() for _ in range(8)]
    with pytest.raises(ModelError, match="slots are taken"):
        executor.open()
    for slot in slots:
        executor.close(slot)


def _fault(*_: object) -> None:
    raise RuntimeError("fault")
