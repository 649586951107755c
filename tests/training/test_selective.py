"""Selective DP-SGD: what a sensitive token may touch, what it costs, and that a policy must be perfect."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tacit.corpus import UserCorpus
from tacit.corpus.screening.binding import report_path
from tacit.errors import CorpusError, ModelError, RecipeError, Tampered
from tacit.evaluation import measure_losses
from tacit.models.loading import load_public_model
from tacit.models.lstm import LSTMForCausalLM
from tacit.models.trained import load_trained
from tacit.models.vocabulary import LSTMShape, create_lstm
from tacit.privacy import DpSgdProcess, Guarantee, dpsgd_curve
from tacit.training import train_selectively
from tacit.training.private_steps.noise import CipherNoise
from tacit.training.selective import SelectiveAccount, _Steps
from tacit.training.selective_lstm import MarkedRows, StateNoise, one_layer, position_losses
from tacit.training.sensitive_tokens import MarkedPiece, mark, sensitive_spans
from tests.tiny import byte_level_tokenizer
from tests.training.private_runs import KillAt, Killed, forge, private_recipe, screened, write_documents

SAID = [(f"u{i % 8}", f"Parcel {i} waits. My number is {1000 + i}, call at night.") for i in range(24)]


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_lstm(
        tmp_path_factory.mktemp("models") / "lstm",
        shape=LSTMShape(layers=1, hidden_size=24, embedding_size=24),
        tokenizer=byte_level_tokenizer(),
        vocabulary="public",
        seed=3,
    )


@pytest.fixture(scope="module")
def model(lstm: Path) -> LSTMForCausalLM:
    found = one_layer(load_public_model(str(lstm)).model)
    found.requires_grad_(True)
    return found


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    raw = write_documents(tmp_path / "raw.jsonl", SAID)
    return raw, screened(tmp_path / "screened.jsonl", SAID, dedup="off")


def selective_recipe(model: Path, files: tuple[Path, Path], output: Path, /, **changes: Any) -> Any:
    changes = {
        "adapter": {"kind": "full"},
        "selective": {"screened": str(files[1])} | changes.pop("selective", {}),
        **changes,
    }
    return private_recipe(model, files[0], output, "selective", **changes)


def rows(sensitive: list[int], seed: int = 0) -> MarkedRows:
    """Two rows of twelve tokens; in the first, tokens 4 to 6 are sensitive and given."""
    draw = np.random.default_rng(5)
    tokens = draw.integers(1, 300, size=(2, 12))
    tokens[0, 4:7] = sensitive
    bits = np.zeros((2, 12), dtype=np.bool_)
    bits[0, 4:7] = True
    return MarkedRows.of([MarkedPiece(t, b) for t, b in zip(tokens, bits, strict=True)], 0)


def gradients(
    model: LSTMForCausalLM, marked: MarkedRows, noise: StateNoise, *, sensitive: bool
) -> list[Tensor]:
    losses = position_losses(model, marked, noise)
    loss = losses.masked_fill(marked.sensitive != sensitive, 0.0).sum()
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_without_noise_and_secrets_it_is_the_model_itself(model: LSTMForCausalLM) -> None:
    marked = rows([7, 8, 9])
    plain = MarkedRows(marked.inputs, marked.labels, torch.zeros_like(marked.sensitive))
    losses = position_losses(model, plain, StateNoise(1.0, 5.0, CipherNoise(1)))
    logits = model(input_ids=marked.inputs).logits
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), marked.labels.flatten(), reduction="none"
    )
    torch.testing.assert_close(losses.flatten(), expected, rtol=1e-4, atol=1e-5)
    # States that are only clipped, and not so much that it shows, change nothing either.
    wide = position_losses(model, marked, StateNoise(1e3, 0.0, CipherNoise(1)))
    torch.testing.assert_close(wide, losses, rtol=1e-4, atol=1e-5)


def test_a_position_is_sensitive_if_it_reads_or_predicts_a_sensitive_token() -> None:
    assert rows([7, 8, 9]).sensitive[0].nonzero().flatten().tolist() == [4, 5, 6, 7]


def test_other_gradients_see_a_secret_through_the_noisy_state_only(model: LSTMForCausalLM) -> None:
    """With a state that says nothing, they are the same to the last bit whatever the secret is."""
    nothing = StateNoise(0.0, 1.0, CipherNoise(1))
    one, other = (
        gradients(model, rows(secret), nothing, sensitive=False) for secret in ([7, 8, 9], [201, 9, 30])
    )
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    telling = StateNoise(1e3, 0.0, CipherNoise(1))
    one, other = (
        gradients(model, rows(secret), telling, sensitive=False) for secret in ([7, 8, 9], [201, 9, 30])
    )
    assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))
    # The gradients of the stretch itself are what the noise of the other part is for.
    one, other = (
        gradients(model, rows(secret), nothing, sensitive=True) for secret in ([7, 8, 9], [201, 9, 30])
    )
    assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_no_gradient_goes_back_through_a_protected_state(model: LSTMForCausalLM) -> None:
    marked = rows([7, 8, 9])
    embedded: list[Tensor] = []
    handle = model.embed_tokens.register_forward_hook(lambda _, __, out: embedded.append(out))
    try:
        losses = position_losses(model, marked, StateNoise(1.0, 1.0, CipherNoise(1)))
    finally:
        handle.remove()
    (grad,) = torch.autograd.grad(losses[0, 8:].sum(), embedded[0])
    assert bool((grad[0, 8:] != 0).any())
    assert not bool(grad[0, :8].any())
    assert not bool(grad[1].any())


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
def test_the_state_is_clipped_and_noised_at_the_scale_that_is_accounted(
    model: LSTMForCausalLM, factor: float, accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tacit.training import selective_lstm

    hidden, cell = torch.full((400, 24), 3.0), torch.full((400, 24), -4.0)
    leaves = torch.ones(400, dtype=torch.bool)
    noise = StateNoise(0.5, 2.0, CipherNoise(3))
    drawn = torch.cat(selective_lstm._protected(hidden, cell, leaves, noise), dim=-1)
    mean = torch.cat([hidden, cell], dim=-1) * (
        0.5 / torch.linalg.vector_norm(torch.cat([hidden[0], cell[0]]))
    )
    spread = float((drawn - mean).std())
    error = 4 / math.sqrt(2 * drawn.numel())
    assert (abs(spread / (2.0 * 0.5 * factor) - 1) < error) == accepted
    assert float(torch.linalg.vector_norm(mean[0])) == pytest.approx(0.5)


def test_the_run_has_no_finite_epsilon_unless_the_policy_is_vouched_for(
    lstm: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "training": {"seed": None},
        "privacy": {"noise_multiplier": None, "epsilon": 5.0},
    }
    run = train_selectively(selective_recipe(lstm, files, tmp_path / "run", **changes))
    assert run.manifest.guarantee["epsilon"] == "inf"
    assert (
        "a secret that the policy misses is trained on without protection"
        in run.manifest.guarantee["statement"]
    )
    assert run.manifest.weights_sha256 is None
    account = json.loads((run.folder / "privacy.json").read_text())["selective"]
    process = DpSgdProcess.from_json(account["process"])
    # Two passes, each of which shows who is in a batch: nothing is gained by sampling.
    assert (process.sampling_rate, process.steps) == (1.0, 2)
    assert 4.9 < account["if_the_policy_misses_nothing"] <= 5.0
    assert account["if_the_policy_misses_nothing"] == dpsgd_curve(process, "replace-one").epsilon_at(1e-4)
    assert account["paper"]["epsilon"] < account["if_the_policy_misses_nothing"]
    assert account["paper"]["label"].startswith("paper: as if sampling amplified")
    vouched = selective_recipe(lstm, files, tmp_path / "vouched", selective={"perfect": True}, **changes)
    told = Guarantee.from_json(train_selectively(vouched).manifest.guarantee)
    assert told.epsilon == account["if_the_policy_misses_nothing"]
    assert "Void as soon as the policy misses one secret" in str(told)


def test_gradient_and_state_together_are_one_mechanism(lstm: Path, files: tuple[Path, Path]) -> None:
    recipe = selective_recipe(lstm, files, Path("run"), privacy={"noise_multiplier": 3.0})
    account = SelectiveAccount.of(recipe, 24)
    # Distances in units of the noise add in squares: two parts of sqrt(2) sigma are one of sigma.
    assert 2 / account.part_multiplier**2 == pytest.approx(1 / 3.0**2)


def test_a_gradient_of_many_equal_values_is_clipped_to_its_norm() -> None:
    """A plain norm in fp32 is too small there: more than the clip would have been added."""
    gradient = torch.full((4_000_000,), 0.7)
    steps = SimpleNamespace(
        _parameters=[torch.zeros_like(gradient)],
        _account=SimpleNamespace(section=SimpleNamespace(clip=1.0)),
        _gradients=lambda loss: [gradient],
    )
    sensitive: Any = SimpleNamespace(sensitive=torch.tensor([[True]]))
    added = torch.zeros_like(gradient)
    _Steps._add_sensitive(cast("_Steps", steps), torch.ones(1), torch.zeros(1).long(), sensitive, [added])
    assert float(added.double().norm()) == pytest.approx(1.0, abs=2e-5)


def test_it_learns_with_little_noise(lstm: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    recipe = selective_recipe(
        lstm,
        files,
        tmp_path / "run",
        privacy={"noise_multiplier": 0.05},
        training={"epochs": 6, "learning_rate": 5e-2},
    )
    trained = load_trained(train_selectively(recipe))
    text = UserCorpus.from_pairs([("a", "Parcel 3 waits."), ("b", "call at night.")])
    before, after = (measure_losses(trained.public, text, model=m).nats.sum() for m in (None, trained.model))
    assert after < 0.8 * before


def test_how_many_rows_are_computed_at_once_changes_nothing_but_rounding(
    lstm: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    weights = []
    for rows_at_once in (None, 2):
        recipe = selective_recipe(
            lstm,
            files,
            tmp_path / f"run-{rows_at_once}",
            privacy={"noise_multiplier": 0.0},
            training={"optimiser": "sgd", "learning_rate": 0.5, "batch_size": 5},
            performance={"microbatch": rows_at_once},
        )
        weights.append(load_trained(train_selectively(recipe)).model.state_dict())
    for name, whole in weights[0].items():
        torch.testing.assert_close(weights[1][name], whole, rtol=1e-4, atol=1e-6)


def test_a_killed_run_resumes_to_the_same_weights(
    lstm: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    whole = train_selectively(selective_recipe(lstm, files, tmp_path / "whole"))
    recipe = selective_recipe(lstm, files, tmp_path / "killed")
    with pytest.raises(Killed):
        train_selectively(recipe, progress=KillAt(5))
    torch.manual_seed(999)
    resumed = train_selectively(recipe, resume=True)
    assert resumed.weights_sha256() == whole.weights_sha256()
    assert resumed.manifest.guarantee == whole.manifest.guarantee


def test_every_token_is_wholly_sensitive_or_wholly_not(lstm: Path, files: tuple[Path, Path]) -> None:
    corpus = UserCorpus.from_pairs(SAID)
    tokenizer = load_public_model(str(lstm)).tokenizer
    marked = mark(corpus, sensitive_spans(files[1], corpus), tokenizer, block_size=8, end_token=0)
    for (_, text), pieces in zip(SAID, marked.pieces, strict=True):
        assert max(len(piece.tokens) for piece in pieces) <= 8
        tokens = np.concatenate([piece.tokens for piece in pieces])
        bits = np.concatenate([piece.sensitive for piece in pieces])
        assert tokenizer.decode(tokens.tolist()) == text
        assert tokenizer.decode(tokens[bits].tolist()) == text.split("is ")[1].split(",")[0]
    # A repeated data point is masked as a whole, and therefore sensitive as a whole.
    twice = screened(files[1].with_name("twice.jsonl"), [*SAID, ("u1", SAID[0][1])])
    again = UserCorpus.from_pairs([*SAID, ("u1", SAID[0][1])])
    marked = mark(again, sensitive_spans(twice, again), tokenizer, block_size=64, end_token=None)
    assert marked.pieces[-1][0].sensitive.mean() > 0.9 > marked.pieces[0][0].sensitive.mean()


def test_what_cannot_be_trained_selectively_is_refused(
    lstm: Path, tiny_lstm: Path, tiny_transformer: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    for other in (tiny_lstm, tiny_transformer):
        with pytest.raises(ModelError, match="protects the state of an LSTM with one layer"):
            train_selectively(selective_recipe(other, files, tmp_path / "run"))
    with pytest.raises(RecipeError, match="learns from the raw text"):
        train_selectively(selective_recipe(lstm, (files[1], files[1]), tmp_path / "run"))
    elsewhere = screened(tmp_path / "other.jsonl", [("nobody", "My number is 9999."), *SAID])
    with pytest.raises(CorpusError, match="does not match document 1 of the corpus"):
        train_selectively(selective_recipe(lstm, (files[0], elsewhere), tmp_path / "run"))


@pytest.mark.parametrize("how", ["fewer documents", "a point left out", "other text", "more documents"])
def test_a_screening_must_cover_the_text_it_is_of(
    lstm: Path, files: tuple[Path, Path], tmp_path: Path, how: str
) -> None:
    """What was not looked at was not marked either, and would be trained on without noise."""
    points = [json.loads(line) for line in files[1].read_text().splitlines()]
    if how == "other text":
        said = [(user, text.replace("night", "eight")) for user, text in SAID]
        other = screened(tmp_path / "other.jsonl", said, dedup="off")
    elif how == "more documents":
        other = screened(tmp_path / "other.jsonl", [*SAID, ("u1", "One more.")], dedup="off")
    else:
        other = files[1]
        last = points[-1]["document"]
        forge(other, [p for p in points if p["document"] != last] if how[0] == "f" else points[:-1])
    sentence = "has more documents than" if how == "more documents" else "does not match document"
    with pytest.raises(CorpusError, match=sentence):
        train_selectively(
            selective_recipe(lstm, (files[0], other), tmp_path / "run", selective={"perfect": True})
        )
    assert not (tmp_path / "run").exists()


def test_repeats_make_one_documents_secret_decide_what_is_sensitive_in_another(
    lstm: Path, tmp_path: Path
) -> None:
    """Why `perfect` needs a screening without deduplication: a counterexample, and its refusal."""
    marks = {}
    for name, secret in (("one", "1234"), ("other", "9876")):
        said = [("u0", f"My pin is {secret} today."), ("u1", "Hello."), ("u2", "My pin is 1234 today.")]
        corpus = UserCorpus.from_pairs(said)
        for dedup in ("exact", "off"):
            found = screened(tmp_path / f"{name}-{dedup}.jsonl", said, dedup=dedup)
            marks[name, dedup] = sensitive_spans(found, corpus)[2]
    assert marks["one", "exact"] != marks["other", "exact"]
    assert marks["one", "off"] == marks["other", "off"]
    files = write_documents(tmp_path / "raw.jsonl", SAID), screened(tmp_path / "screened.jsonl", SAID)
    recipe = selective_recipe(lstm, files, tmp_path / "run", selective={"perfect": True})
    with pytest.raises(CorpusError, match="screen the corpus again with --dedup off"):
        train_selectively(recipe)
    assert not (tmp_path / "run").exists()


def test_an_edited_screening_or_one_without_its_report_is_refused(
    lstm: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    files[1].write_text(files[1].read_text().replace("waits", "stays", 1))
    with pytest.raises(Tampered, match="is not as its screening wrote it"):
        train_selectively(selective_recipe(lstm, files, tmp_path / "run"))
    report_path(files[1]).unlink()
    with pytest.raises(CorpusError, match="is missing, and method 'selective' promises what the screening"):
        train_selectively(selective_recipe(lstm, files, tmp_path / "run"))


def test_the_account_is_that_of_gaussian_mechanisms_without_sampling(
    lstm: Path, files: tuple[Path, Path]
) -> None:
    """A replaced stretch moves both parts by twice their bound: mu = 2 sqrt(T)/sigma in closed form."""
    recipe = selective_recipe(lstm, files, Path("run"), privacy={"noise_multiplier": 3.0})
    curve = SelectiveAccount.of(recipe, 24).curve
    mu = 2 * math.sqrt(2) / 3.0
    for epsilon in (0.5, 1.0, 3.0):
        exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
            -mu / 2 - epsilon / mu
        )
        assert exact <= curve.delta_at(epsilon) <= 1.01 * exact + 1e-9
