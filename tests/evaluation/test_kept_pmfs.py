"""Distributions that were kept answer as the models themselves do."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.errors import InputError
from tacit.evaluation import Measurement, Setting, Sweep, mechanism_kept
from tacit.evaluation.mechanism_blocks import HeldOutBlocks
from tacit.evaluation.mechanism_kept import KeptPmfs, keep_pmfs
from tacit.evaluation.mechanism_pmfs import trace
from tacit.mechanisms.choice import MechanismChoice
from tacit.models.ensemble import Ensemble
from tacit.models.loading import load_public_model
from tacit.prediction import Budget
from tests.evaluation.test_mechanisms import make_blocks
from tests.models.ensembles import adapter_folder

PARTS, SUPPORT = 3, 60
LENGTHS = [10, 3, 8, 9, 12, 2, 2, 7, 11, 8]


@pytest.fixture(scope="module")
def ensemble(tiny_transformer: Path, tmp_path_factory: pytest.TempPathFactory) -> Ensemble:
    folder = tmp_path_factory.mktemp("members")
    members = [
        adapter_folder(tiny_transformer, folder / f"m{seed}", seed, alpha=3.0) for seed in range(2 * PARTS)
    ]
    return Ensemble(load_public_model(str(tiny_transformer)), tuple(members), PARTS, 2)


@pytest.fixture(scope="module")
def blocks(ensemble: Ensemble) -> HeldOutBlocks:
    return make_blocks(ensemble, LENGTHS)


@pytest.fixture(scope="module")
def kept(
    ensemble: Ensemble, blocks: HeldOutBlocks, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KeptPmfs]:
    with pytest.MonkeyPatch.context() as patch:  # several files, with several blocks each
        patch.setattr(mechanism_kept, "_QUERIES_IN_A_FILE", 36)
        folder = tmp_path_factory.mktemp("kept") / "pmfs"
        keep_pmfs(ensemble, blocks, folder, support=SUPPORT)
        yield KeptPmfs.open(folder)


def settings(*names: str) -> tuple[Setting, ...]:
    sweep = Sweep(names, epsilons=(0.05, 2.0), queries=(24,), orders=(2.0, 4.0))  # type: ignore[arg-type]
    return sweep.settings(PARTS)


def test_mixing_over_what_was_kept_equals_mixing_over_what_the_models_say(
    ensemble: Ensemble, blocks: HeldOutBlocks, kept: KeptPmfs
) -> None:
    chosen = settings("submix", "certified", "individual")
    live = Measurement(ensemble, blocks, support=SUPPORT).rows(chosen)
    again = Measurement(kept, kept.blocks).rows(chosen)
    for one, other in zip(again, live, strict=True):
        assert one.perplexity().value == pytest.approx(other.perplexity().value, rel=1e-6)
        assert one.answered() == other.answered()
        assert one.guarantee == other.guarantee
    read, asked = trace(kept, kept.blocks), trace(ensemble, blocks)
    assert np.array_equal(read.public, asked.public), "of the whole vocabulary, whatever the support is"
    assert np.array_equal(read.members, asked.members)


def test_noise_and_votes_come_near_those_over_the_whole_vocabulary(
    ensemble: Ensemble, blocks: HeldOutBlocks, kept: KeptPmfs
) -> None:
    votes = Setting(MechanismChoice("gnmax", target=0.3), Budget(9.0, 24), PARTS)
    (exact,) = Measurement(ensemble, blocks).rows([votes])
    (near,) = Measurement(kept, kept.blocks).rows([exact.setting])
    assert near.perplexity().value == pytest.approx(exact.perplexity().value, rel=1e-3)
    # Next to no noise: what is left is the mean, whose small probabilities were spread evenly.
    quiet = Setting(MechanismChoice("subsample_aggregate", target=1e4), Budget(1e6, 24), PARTS)
    (exact,) = Measurement(ensemble, blocks).rows([quiet])
    (near,) = Measurement(kept, kept.blocks).rows([quiet])
    assert near.perplexity().value == pytest.approx(exact.perplexity().value, rel=0.05)


def test_the_first_blocks_alone_answer_as_among_all(kept: KeptPmfs) -> None:
    few = kept.blocks.first(6)
    (setting,) = settings("certified")[:1]
    one = trace(kept, few, [setting])
    whole = trace(kept, kept.blocks, [setting])
    (part,), (all_,) = one.probes.values(), whole.probes.values()
    assert len(part.log_probability) == sum(LENGTHS[:6])
    np.testing.assert_allclose(part.log_probability, all_.log_probability[: sum(LENGTHS[:6])], rtol=1e-9)


def test_every_member_can_be_a_part(ensemble: Ensemble, blocks: HeldOutBlocks, kept: KeptPmfs) -> None:
    apart = Ensemble(ensemble.public, ensemble.members, 2 * PARTS, 1)
    setting = Sweep(("certified",), (0.5,), (24,)).settings(2 * PARTS)
    (live,) = Measurement(apart, blocks, support=SUPPORT).rows(setting)
    single = kept.with_each_a_part()
    (again,) = Measurement(single, single.blocks).rows(setting)
    assert again.perplexity().value == pytest.approx(live.perplexity().value, rel=1e-6)


def test_a_killed_pass_goes_on_behind_its_last_file(
    ensemble: Ensemble, blocks: HeldOutBlocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mechanism_kept, "_QUERIES_IN_A_FILE", 36)
    folder = tmp_path / "pmfs"
    write = mechanism_kept._write

    def killed(path: Path, content: Any) -> None:
        if path.name.startswith("00002"):
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(mechanism_kept, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        keep_pmfs(ensemble, blocks, folder, support=SUPPORT)
    with pytest.raises(InputError, match="keep the distributions again"):
        KeptPmfs.open(folder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert sorted(before) == ["00000.safetensors", "00001.safetensors", "blocks.safetensors"]
    monkeypatch.setattr(mechanism_kept, "_write", write)
    with pytest.raises(InputError, match="begun with other text"):
        keep_pmfs(ensemble, blocks.first(4), folder, support=SUPPORT)
    found = keep_pmfs(ensemble, blocks, folder, support=SUPPORT)
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == before
    assert np.array_equal(trace(found, blocks).members, trace(ensemble, blocks).members)
    assert stat.S_IMODE((folder / "00000.safetensors").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
