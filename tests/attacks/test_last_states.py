"""h_x: equal to training's, untouched by padding and by how texts are batched, of both families."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.attacks.last_states import last_states
from tacit.errors import InputError
from tacit.models.loading import PublicModel, load_public_model
from tacit.progress import Silent
from tacit.training.finetune import task_for
from tacit.training.preparation import prepare
from tacit.training.regularised import authors_for
from tacit.training.regularisers import Sequences
from tests.tiny import public_sentences
from tests.training.private_runs import write_documents
from tests.training.test_regularised import DOCUMENTS, recipe_for


def sequences(public: PublicModel, count: int = 9) -> list[list[int]]:
    texts = [sentence[: 8 + 5 * at] for at, sentence in enumerate(public_sentences(count))]
    return [[public.start_token, *ids] for ids in public.tokenizer.encode(texts)]


def test_a_state_is_that_of_the_text_alone_however_texts_are_batched(tiny_model: Path) -> None:
    public = load_public_model(str(tiny_model), dtype=torch.float32, device="cpu")
    read = sequences(public)
    assert len({len(one) for one in read}) > 3
    alone = []
    with torch.no_grad():
        for ids in read:
            seen: list[torch.Tensor] = []
            head = public.model.get_output_embeddings()
            hook = head.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
            public.model(input_ids=torch.tensor([ids]), use_cache=False)
            hook.remove()
            alone.append(seen[0][0, -1].double().numpy())
    for positions in (1, 40, 10_000):
        found = last_states(read, public, positions=positions)
        assert np.allclose(found, np.stack(alone), rtol=0, atol=2e-5)
    # Another pad token beside it, and other neighbours: nothing changes.
    order = np.random.default_rng(0).permutation(len(read))
    mixed = last_states([read[at] for at in order] + [[public.start_token] * 60], public)
    assert np.allclose(mixed[:-1], np.stack(alone)[order], rtol=0, atol=2e-5)


def test_padding_of_any_kind_never_enters(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public = load_public_model(str(tiny_model), dtype=torch.float32, device="cpu")
    read = sequences(public)
    usual = last_states(read, public)
    monkeypatch.setattr(type(public), "start_token", property(lambda self: 77), raising=False)
    assert np.allclose(last_states(read, public), usual, rtol=0, atol=2e-5)


def test_it_is_the_state_that_regularised_training_has(tiny_model: Path, tmp_path: Path) -> None:
    corpus = write_documents(tmp_path / "private.jsonl", DOCUMENTS)
    recipe = recipe_for(tiny_model, corpus, tmp_path / "run", "adversarial")
    prepared = prepare(recipe, tmp_path, Silent())
    task, authors = task_for(prepared), authors_for(prepared)
    task.model.eval()
    batch = task.make_batch(np.arange(len(prepared.rows)))
    with torch.no_grad():
        own = Sequences(batch, task.states_of(batch), authors)
    encoded = prepared.encoded
    read = [[encoded.start_token, *encoded.piece(piece)[:-1].tolist()] for piece in own.pieces]
    public = load_public_model(str(tiny_model), dtype=torch.float32, device="cpu")  # as a new adapter has it
    assert np.allclose(last_states(read, public), own.states.numpy(), rtol=0, atol=1e-4)


def test_nothing_to_read_is_refused(tiny_lstm: Path) -> None:
    public = load_public_model(str(tiny_lstm), dtype=torch.float32, device="cpu")
    for nothing in ([], [[1], []]):
        with pytest.raises(InputError, match="at least one text"):
            last_states(nothing, public)
    with pytest.raises(InputError, match="positions=0"):
        last_states([[1]], public, positions=0)
