"""Private steps as a whole: what one example can do, what noise does, what public steps and resuming do."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit.errors import InputError, ModelError
from tacit.privacy import DpSgdProcess, dpsgd_curve
from tacit.training.encoding import Batch, IntArray
from tacit.training.private_steps import (
    Examples,
    NextTokenObjective,
    PrivateAccount,
    PrivateTrainer,
    StepPerformance,
    StepPrivacy,
    token_batch,
)
from tests.training.private_steps.small import (
    Capture,
    Text,
    assert_close,
    clipped_sum,
    gpt2,
    norm,
    oracle_gradients,
    privacy,
)

ENGINES = ("loop", "book-keeping")
CLIPPED = 1e-4  # what norms that are never too small may clip too much


def trainer_for(
    model: nn.Module,
    text: Text,
    settings: StepPrivacy,
    engine: str = "loop",
    *,
    owners: list[int] | None = None,
    microbatch: int = 16,
    seed: int | None = 0,
) -> tuple[PrivateTrainer, Capture]:
    capture = Capture(model)
    trainer = PrivateTrainer(
        model,
        NextTokenObjective(model),
        capture,
        text.examples(owners),
        settings,
        StepPerformance(engine, microbatch),  # type: ignore[arg-type]
        seed=seed,
    )
    return trainer, capture


def times(gradients: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
    return {name: gradient * factor for name, gradient in gradients.items()}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_divisor_is_the_expected_number_whoever_was_sampled(engine: str) -> None:
    model, text = gpt2(), Text([5, 9, 3, 12])
    trainer, capture = trainer_for(model, text, privacy(4, sampling_rate=0.25), engine)
    expected = clipped_sum([oracle_gradients(model, text, [row]) for row in (0, 1, 2)], 1.0)
    trainer.step_on(np.array([0, 1, 2]))
    assert_close(
        capture.gradients, expected, CLIPPED
    )  # 0.25 * 4 examples are expected: divided by 1, not by 3


@pytest.mark.parametrize("engine", ENGINES)
def test_the_largest_gradient_there_is_moves_the_sum_by_no_more_than_the_bound(engine: str) -> None:
    model, text = gpt2(), Text([5, 9])
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(1e4)  # losses in the thousands, gradients to match
    assert norm(oracle_gradients(model, text, [1])) > 1e4
    trainer, capture = trainer_for(model, text, privacy(2, clip=0.5, sampling_rate=0.5), engine)
    trainer.step_on(np.array([1]))
    assert 0.5 * (1 - 1e-4) < norm(capture.gradients) <= 0.5 * (1 + 1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_example_of_several_rows_is_clipped_as_one(engine: str) -> None:
    model, text = gpt2(), Text([5, 9, 3, 12, 4])
    trainer, capture = trainer_for(model, text, privacy(2), engine, owners=[0, 1, 0, 1, 1], microbatch=2)
    trainer.step()
    users = [oracle_gradients(model, text, [0, 2]), oracle_gradients(model, text, [1, 3, 4])]
    assert_close(times(capture.gradients, 2), clipped_sum(users, 1.0), CLIPPED)


@pytest.mark.parametrize("engine", ENGINES)
def test_automatic_clipping_weighs_every_example_alike_and_stays_below_the_bound(engine: str) -> None:
    model, text = gpt2(), Text([5, 9, 3])
    trainer, capture = trainer_for(model, text, privacy(3, clipping="automatic"), engine)
    trainer.step()
    every = [oracle_gradients(model, text, [row]) for row in range(3)]
    wanted = clipped_sum(every, 1.0, lambda size, bound: bound / (size + 0.01))
    assert_close(times(capture.gradients, 3), wanted, CLIPPED)


@pytest.mark.parametrize("engine", ENGINES)
def test_sums_per_example_are_offered_beside_means(engine: str) -> None:
    model, text = gpt2(), Text([5, 9, 3])
    trainer, capture = trainer_for(model, text, privacy(3, loss="sum", clip=10.0), engine)
    trainer.step()
    every = [oracle_gradients(model, text, [row], "sum") for row in range(3)]
    assert_close(times(capture.gradients, 3), clipped_sum(every, 10.0), CLIPPED)


@pytest.mark.parametrize("engine", ENGINES)
def test_microbatches_change_nothing_and_noise_is_added_once(engine: str) -> None:
    text = Text([5, 9, 3, 12, 7])
    results = []
    for microbatch in (1, 2, 5):
        trainer, capture = trainer_for(
            gpt2(), text, privacy(5, noise_multiplier=0.7), engine, microbatch=microbatch
        )
        trainer.step()
        results.append(capture.gradients)
    assert_close(results[1], results[0])
    assert_close(results[2], results[0])


def _spread(multiplier: float) -> Callable[[Tensor], bool]:
    """Whether values are as wide as noise of this multiplier makes them, to within six standard errors."""

    def fits(values: Tensor) -> bool:
        error = 6 * multiplier / (2 * len(values)) ** 0.5
        return bool(abs(float(values.double().std()) - multiplier) < error)

    return fits


def test_noise_has_the_stated_width_and_no_other() -> None:
    model, text = gpt2(), Text([4, 4])
    sigma, clip = 1.5, 2.0
    capture = Capture(model)
    trainer = PrivateTrainer(
        model,
        NextTokenObjective(model),
        capture,
        text.examples(),
        privacy(2, noise_multiplier=sigma, clip=clip, sampling_rate=0.5),
    )
    trainer.step_on(np.array([], dtype=np.int64))
    values = torch.cat([gradient.flatten() for gradient in capture.gradients.values()]) / clip
    assert _spread(sigma)(values)
    assert not _spread(sigma * 2 / 3)(values)
    assert not _spread(sigma * 3 / 2)(values)
    assert abs(float(values.mean())) < 6 * sigma / len(values) ** 0.5
    for gradient in capture.gradients.values():  # no parameter is left out
        assert float(gradient.abs().min()) > 0


def test_an_empty_sample_still_takes_a_step_of_noise() -> None:
    model, text = gpt2(), Text([4, 4])
    before = copy.deepcopy(model.state_dict())
    trainer = PrivateTrainer(
        model,
        NextTokenObjective(model),
        torch.optim.SGD(model.parameters(), lr=0.1),
        text.examples(),
        privacy(2, noise_multiplier=1.0, sampling_rate=1e-9),
    )
    assert trainer.step().examples == 0
    assert trainer.account.steps == 1
    for name, value in model.state_dict().items():
        if value.dtype.is_floating_point:
            assert not torch.equal(value, before[name])


def test_noise_is_fresh_in_every_step_and_every_process() -> None:
    draws = []
    for _ in range(2):
        trainer, capture = trainer_for(gpt2(), Text([4]), privacy(1, noise_multiplier=1.0), seed=None)
        for _ in range(2):
            trainer.step_on(np.array([], dtype=np.int64))
            draws.append(capture.gradients["transformer.ln_f.bias"])
    for one in range(4):
        for other in range(one):
            assert not bool((draws[one] == draws[other]).any())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_that_is_no_number_counts_as_zero_and_is_told(engine: str) -> None:
    model, text = gpt2(), Text([5, 9, 3])
    text.ids[1][:] = 7
    for row in (0, 2):
        text.ids[row][text.ids[row] == 7] = 8
    expected = clipped_sum([oracle_gradients(model, text, [row]) for row in (0, 2)], 1.0)
    hook = model.transformer.wte.register_forward_hook(
        lambda _, args, output: torch.where((args[0] == 7)[..., None], float("nan"), output)
    )
    trainer, capture = trainer_for(model, text, privacy(3), engine)
    tally = trainer.step()
    hook.remove()
    assert (tally.examples, tally.alarms) == (3, 1)
    assert_close(times(capture.gradients, 3), expected, 1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_examples_text_leaves_the_others_gradients_alone(engine: str) -> None:
    text = Text([6, 6, 6])
    everything = [0, 1, 2]
    sums = []
    for labels in (6, 2):

        def make_batch(rows: IntArray, labels: int = labels) -> Batch:
            batch = text.make_batch(rows)
            batch.labels[rows == 0, labels:] = -100
            return batch

        capture = Capture(model := gpt2())
        examples = text.examples()
        object.__setattr__(examples, "make_batch", make_batch)
        trainer = PrivateTrainer(
            model,
            NextTokenObjective(model),
            capture,
            examples,
            privacy(3),
            StepPerformance(engine),  # type: ignore[arg-type]
            seed=0,
        )
        trainer.step_on(np.array(everything))
        whole = capture.gradients
        trainer.step_on(np.array([0]))
        sums.append({name: whole[name] - capture.gradients[name] for name in whole})
    assert_close(sums[1], sums[0])


def test_micro_batching_clips_means_and_pays_for_it() -> None:
    model, text = gpt2(), Text([5, 9, 3, 12])
    settings = privacy(4, group=4, noise_multiplier=1.0)
    assert (settings.slots, settings.divisor, settings.sensitivity, settings.noise_deviation) == (1, 1, 2, 2)
    trainer, capture = trainer_for(model, text, privacy(4, group=4))
    trainer.step()
    every = [oracle_gradients(model, text, [row]) for row in range(4)]
    mean = {name: torch.stack([own[name] for own in every]).mean(dim=0) for name in every[0]}
    assert_close(capture.gradients, clipped_sum([mean], 1.0), CLIPPED)


def test_public_steps_are_ordinary_steps_and_count_nothing() -> None:
    model, text = gpt2(), Text([5, 9, 3])
    plain = copy.deepcopy(model)
    trainer = PrivateTrainer(
        model,
        NextTokenObjective(model),
        torch.optim.SGD(model.parameters(), lr=0.1),
        text.examples(),
        privacy(3, noise_multiplier=1.0),
        public_optimiser=torch.optim.SGD(model.parameters(), lr=0.5),
    )
    batch = text.make_batch(np.arange(3))
    with trainer.public() as public:
        public.step([batch])
        with pytest.raises(InputError, match="inside public"):
            trainer.step()
    assert trainer.account.steps == 0
    loss = nn.functional.cross_entropy(plain(**batch.inputs).logits.flatten(0, 1), batch.labels.flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is None
        assert theirs.grad is not None
        torch.testing.assert_close(ours.detach(), (theirs - 0.5 * theirs.grad).detach())


def test_token_ids_are_all_that_a_switch_between_public_and_private_steps_needs() -> None:
    """Rows of ids, padded on the right: losses are the model's own, and padding teaches nothing."""
    model = gpt2()
    tokens = torch.tensor([[3, 7, 1, 9, 2], [5, 4, 8, 0, 0]])
    batch = token_batch(tokens, padding=0)
    labels = tokens.masked_fill(tokens == 0, -100)
    objective = NextTokenObjective(model)
    for row, count in enumerate((4, 2)):
        share = torch.zeros(2)
        share[row] = 1 / count
        own = model(input_ids=tokens[row : row + 1], labels=labels[row : row + 1]).loss
        torch.testing.assert_close(objective.weighted(batch, share), own)
    assert batch.label_count == 6
    examples = Examples.of_tokens(tokens, padding=0)
    assert (len(examples), examples.lengths.tolist()) == (2, [4, 2])
    picked = examples.make_batch(np.array([1]))
    assert torch.equal(picked.labels[0], batch.labels[1])
    trainer = PrivateTrainer(
        model, objective, torch.optim.RMSprop(model.parameters()), examples, privacy(2, noise_multiplier=1.0)
    )
    assert trainer.step().examples == 2
    with pytest.raises(InputError, match=r"tokens.*rows"):
        Examples.of_tokens(tokens[0])


def test_the_guides_switch_runs(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "private_training.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    found: dict[str, Any] = {}
    exec(snippet, found)  # noqa: S102 - the guide's own code
    assert found["trainer"].account.steps == 10
    said = float(capsys.readouterr().out)
    process = DpSgdProcess(found["privacy"].sampling_rate, found["privacy"].noise_multiplier, 10)
    assert said == dpsgd_curve(process, "add-remove").epsilon_at(1e-5)


def test_the_account_goes_on_after_resuming_and_noise_does_not_come_twice() -> None:
    settings = privacy(3, noise_multiplier=1.1, sampling_rate=0.5)
    trainer, capture = trainer_for(gpt2(), Text([5, 9, 3]), settings)
    trainer.step()
    trainer.step_on(np.array([], dtype=np.int64))
    resumed, again = trainer_for(gpt2(), Text([5, 9, 3]), settings)
    resumed.load_state_dict(trainer.state_dict())
    resumed.step_on(np.array([], dtype=np.int64))
    assert resumed.account == PrivateAccount(3, 0.5, 1.1)
    for name, gradient in again.gradients.items():
        assert not bool((gradient == capture.gradients[name]).any())
    other, _ = trainer_for(gpt2(), Text([5, 9, 3]), privacy(3, noise_multiplier=0.9, sampling_rate=0.5))
    with pytest.raises(InputError, match=r"noise_multiplier=1\.1"):
        other.load_state_dict(trainer.state_dict())
    with pytest.raises(InputError, match="account of private steps is damaged"):
        other.load_state_dict({"account": {"steps": -1, "sampling_rate": 0.5, "noise_multiplier": 0.9}})


def test_what_mixes_examples_is_refused() -> None:
    model = gpt2()
    objective = NextTokenObjective(model)
    model.transformer.ln_f = nn.Sequential(model.transformer.ln_f, nn.BatchNorm1d(16))
    with pytest.raises(ModelError, match="normalises over the batch"):
        PrivateTrainer(model, objective, Capture(model), Text([4]).examples(), privacy(1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clip": 0.0}, "clip=0.0 > 0"),
        ({"clip": float("nan")}, "clip=nan"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0 >= 0"),
        ({"noise_multiplier": float("inf")}, "noise_multiplier=inf"),
        ({"sampling_rate": 0.0}, "sampling_rate=0.0"),
        ({"sampling_rate": 1.5}, "sampling_rate=1.5"),
        ({"population": 0}, "population=0"),
        ({"group": 9}, "group=9"),
    ],
)
def test_settings_that_protect_nobody_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        privacy(4, **changes) if "population" not in changes else privacy(0)


class Prompted(nn.Module):
    """A soft prompt outside of the model that it is added to."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.zeros(16))
        self._inner = [model]  # in a list: the model is none of its modules

    def logits(self, batch: Batch) -> Tensor:
        (model,) = self._inner
        embedded = model.transformer.wte(batch.inputs["input_ids"]) + self.prompt  # type: ignore[union-attr, operator]
        logits: Tensor = model(inputs_embeds=embedded, use_cache=False).logits
        return logits


def weights_of(*parameters: nn.Parameter) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


class PromptedObjective(Prompted):
    """A loss that is a module itself."""

    def weighted(self, batch: Batch, row_weights: Tensor) -> Tensor:
        (model,) = self._inner
        return NextTokenObjective(model, self.logits).weighted(batch, row_weights)


@pytest.mark.parametrize("how", ["method", "module"])
def test_what_only_the_objective_holds_never_sees_a_private_gradient(how: str) -> None:
    """No optimiser of the trainer has it; one of the caller's would step what it left."""
    model, text = gpt2(), Text([5, 9, 3])
    prompted = PromptedObjective(model)
    objective = NextTokenObjective(model, prompted.logits) if how == "method" else prompted
    with pytest.raises(ModelError, match=r"'prompt' requires a gradient.*neither clipped nor noised"):
        PrivateTrainer(
            model,
            objective,
            torch.optim.AdamW(model.parameters()),
            text.examples(),
            privacy(3, noise_multiplier=1.0),
            StepPerformance("loop"),
        )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shared", [True, False], ids=["one optimiser", "in the public one"])
def test_a_parameter_outside_of_the_model_never_sees_a_private_gradient(engine: str, shared: bool) -> None:
    """What is not clipped and noised would learn from private text as it stands."""
    model, text = gpt2(), Text([5, 9, 3])
    prompted = Prompted(model)
    both = [*model.parameters(), prompted.prompt]
    private = torch.optim.AdamW(both if shared else model.parameters(), lr=0.1)
    public = None if shared else torch.optim.AdamW(both, lr=0.1)

    def build() -> PrivateTrainer:
        return PrivateTrainer(
            model,
            NextTokenObjective(model, prompted.logits),
            private,
            text.examples(),
            privacy(3, noise_multiplier=1.0),
            StepPerformance(engine),  # type: ignore[arg-type]
            public_optimiser=public,
        )

    with pytest.raises(
        ModelError, match=r"'prompt' requires a gradient.*neither clipped nor noised.*requires_grad"
    ):
        build()
    prompted.prompt.requires_grad_(False)
    trainer = build()
    prompted.prompt.requires_grad_(True)
    before = weights_of(*both)
    with pytest.raises(ModelError, match="neither clipped nor noised"):
        trainer.step()
    assert trainer.account.steps == 0
    assert all(torch.equal(one, two) for one, two in zip(before, both, strict=True))
    with trainer.public() as ordinary:  # public text may train it
        ordinary.step([text.make_batch(np.arange(3))])
    assert prompted.prompt.grad is None
    assert bool(prompted.prompt.any())
    prompted.prompt.requires_grad_(False)
    before = weights_of(prompted.prompt)
    trainer.step()
    assert torch.equal(before[0], prompted.prompt)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_became_trainable_later_is_refused(engine: str) -> None:
    model, text = gpt2(), Text([5, 9, 3])
    model.transformer.h[0].requires_grad_(False)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = PrivateTrainer(
        model,
        NextTokenObjective(model),
        optimiser,
        text.examples(),
        privacy(3, noise_multiplier=1.0),
        StepPerformance(engine),  # type: ignore[arg-type]
    )
    trainer.step()
    model.transformer.h[0].requires_grad_(True)
    before = weights_of(*model.parameters())
    with pytest.raises(ModelError, match=r"'transformer\.h\.0\.ln_1\.weight'.*neither clipped nor noised"):
        trainer.step()
    assert trainer.account.steps == 1
    assert all(torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_becomes_trainable_during_a_step_is_refused_before_anything_changes() -> None:
    model, text = gpt2(), Text([5, 9, 3])
    model.transformer.h[0].requires_grad_(False)
    trainer = PrivateTrainer(
        model,
        NextTokenObjective(model),
        torch.optim.SGD(model.parameters(), lr=0.1),
        text.examples(),
        privacy(3, noise_multiplier=1.0),
        StepPerformance("loop"),
    )
    model.register_forward_pre_hook(lambda *_: model.transformer.h[0].requires_grad_(True) and None)
    before = weights_of(*model.parameters())
    with pytest.raises(ModelError, match="neither clipped nor noised"):
        trainer.step()
    assert all(torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_part_of_a_model_is_trained_where_the_rest_is_frozen() -> None:
    model, text = gpt2(), Text([5, 9, 3])
    part = model.transformer.h[1]

    def build(optimiser: torch.optim.Optimizer) -> PrivateTrainer:
        objective = NextTokenObjective(model)
        return PrivateTrainer(
            part, objective, optimiser, text.examples(), privacy(3), StepPerformance("loop")
        )

    for parameters in (model.parameters(), part.parameters()):  # of the model, and of what the loss reads
        with pytest.raises(ModelError, match=r"'transformer\.wte\.weight'.*neither clipped nor noised"):
            build(torch.optim.SGD(parameters, lr=0.1))
    model.requires_grad_(False)
    part.requires_grad_(True)
    whole = torch.optim.SGD(model.parameters(), lr=0.1)
    before = weights_of(model.transformer.wte.weight)
    trainer = build(whole)
    trainer.step()
    assert torch.equal(before[0], model.transformer.wte.weight)
    model.transformer.wte.weight.grad = torch.ones_like(model.transformer.wte.weight)
    with pytest.raises(ModelError, match=r"'transformer\.wte\.weight'.*gradient.*None"):
        trainer.step()
    assert torch.equal(before[0], model.transformer.wte.weight)


@pytest.mark.parametrize("public", [False, True])
def test_an_optimiser_that_a_step_cannot_use_is_refused_at_once(public: bool) -> None:
    model = gpt2()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    for kind, words in ((torch.optim.LBFGS, "closure"), (torch.optim.SparseAdam, "sparse")):
        other = kind(list(model.parameters()))
        with pytest.raises(InputError, match=f"{kind.__name__}.*{words}.*AdamW"):
            PrivateTrainer(
                model,
                NextTokenObjective(model),
                plain if public else other,
                Text([4]).examples(),
                privacy(1),
                public_optimiser=other if public else None,
            )


def test_a_public_block_within_another_is_refused_for_what_it_is() -> None:
    trainer, _ = trainer_for(gpt2(), Text([5]), privacy(1))
    with trainer.public(), pytest.raises(InputError, match=r"public\(\) is open already"), trainer.public():
        pass
