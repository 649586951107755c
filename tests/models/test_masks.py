"""The mask token: one public row, never written by text, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.corpus.screening import MASK
from tacit.errors import InputError
from tacit.models.generation import generate, generator_from
from tacit.models.loading import load_public_model
from tacit.models.masks import with_mask
from tacit.models.tokenizer import MASK_TEXT, load_tokenizer


@pytest.fixture(params=["tiny_transformer", "tiny_lstm", "tiny_llama"])
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def test_screenings_and_tokenizers_write_the_mask_alike() -> None:
    assert MASK_TEXT == MASK


def test_the_row_is_the_mean_and_nothing_else_changes(folder: Path) -> None:
    public, masked = load_public_model(str(folder)), with_mask(load_public_model(str(folder)))
    mask = masked.tokenizer.mask_token
    assert mask == len(public.tokenizer)
    for get in ("get_input_embeddings", "get_output_embeddings"):
        before, after = (getattr(one.model, get)().weight for one in (public, masked))
        torch.testing.assert_close(after[:mask], before, rtol=0, atol=0)
        torch.testing.assert_close(after[mask], before.double().mean(dim=0).float(), rtol=0, atol=1e-6)
    ids = torch.tensor([[0, 5, 9, 300]])
    with torch.no_grad():
        before, after = public.model(input_ids=ids).logits, masked.model(input_ids=ids).logits
    torch.testing.assert_close(after[..., :mask], before, rtol=0, atol=1e-6)
    torch.testing.assert_close(after[..., mask], before.mean(dim=-1), rtol=0, atol=1e-4)
    assert not any(parameter.requires_grad for parameter in masked.model.parameters())
    assert masked.tokenizer_fingerprint == public.tokenizer_fingerprint
    assert with_mask(masked) is masked


def test_rows_that_no_token_uses_are_used(tiny_llama: Path) -> None:
    public = load_public_model(str(tiny_llama))
    tokens = len(public.tokenizer)
    public.model.resize_token_embeddings(tokens + 8, mean_resizing=False)
    with torch.no_grad():
        public.model.get_input_embeddings().weight[tokens:] = 1e3
    masked = with_mask(public)
    rows = masked.model.get_input_embeddings().weight
    assert (masked.tokenizer.mask_token, len(rows)) == (tokens, tokens + 8)
    torch.testing.assert_close(rows[tokens], rows[:tokens].mean(dim=0))


def test_only_screened_text_becomes_a_mask(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder)).with_mask()
    mask = tokenizer.mask_token
    assert mask is not None
    text = f"the baker {MASK_TEXT}, and {MASK_TEXT}{MASK_TEXT} at home"
    assert mask not in tokenizer.encode([text])[0]
    assert mask not in tokenizer.encode([text], control_tokens=False)[0]
    screened, bare, plain = tokenizer.encode([text, MASK_TEXT, "the baker"], masks=True)
    assert screened.count(mask) == 3
    assert bare == [mask]
    assert plain == tokenizer.encode(["the baker"])[0]
    assert tokenizer.decode(screened, masks=True) == text
    assert MASK_TEXT not in tokenizer.decode(screened)
    # Control tokens stay text in screened text too.
    assert 0 not in tokenizer.encode([f"<|endoftext|> {MASK_TEXT}"], masks=True)[0]
    with pytest.raises(InputError, match="for which this model has no token; give a Run"):
        load_tokenizer(str(folder)).encode([text], masks=True)


def test_masks_are_not_written_unless_asked_for(folder: Path) -> None:
    masked = with_mask(load_public_model(str(folder)))
    mask = masked.tokenizer.mask_token
    assert mask is not None
    with torch.no_grad():  # a head that always wants the mask
        head = masked.model.get_output_embeddings()
        bias = torch.zeros(len(head.weight))
        bias[mask] = 1e3
        head.bias = torch.nn.Parameter(bias, requires_grad=False)
    for temperature in (0.0, 1.0):
        settings: dict[str, Any] = {"max_new_tokens": 4, "temperature": temperature, "stop_at_eos": False}
        text = generate(masked.model, masked.tokenizer, "the", generator=generator_from(1), **settings)
        assert text
        assert MASK_TEXT not in text
        asked = generate(masked.model, masked.tokenizer, "the", masks=True, **settings)
        assert asked == MASK_TEXT * 4
