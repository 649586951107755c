"""Sampling with a cached state gives what the model itself says, in both families."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tacit.errors import InputError, ModelError
from tacit.models.generation import generate
from tacit.models.loading import PublicModel, load_public_model


@pytest.fixture
def public(tiny_model: Path) -> PublicModel:
    return load_public_model(str(tiny_model))


def greedy_without_cache(public: PublicModel, prompt: str, n: int) -> str:
    ids = [public.start_token, *public.tokenizer.encode([prompt])[0]]
    prompt_length = len(ids)
    while len(ids) < prompt_length + n:
        token = int(public.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        if token in public.tokenizer.stop_tokens:
            break
        ids.append(token)
    return public.tokenizer.decode(ids[prompt_length:])


def test_greedy_text_equals_the_models_without_a_cache(public: PublicModel) -> None:
    for prompt in ("The baker", ""):
        written = generate(public.model, public.tokenizer, prompt, max_new_tokens=20, temperature=0)
        assert written == greedy_without_cache(public, prompt, 20)
        assert written


def test_a_generator_decides_the_text(public: PublicModel) -> None:
    def sample(seed: int, temperature: float = 1.0) -> str:
        return generate(
            public.model,
            public.tokenizer,
            "A sailor",
            temperature=temperature,
            generator=torch.Generator().manual_seed(seed),
        )

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(5)}) > 1
    almost_greedy = generate(public.model, public.tokenizer, "A sailor", temperature=0)
    assert sample(1, temperature=1e-6) == almost_greedy
    assert len({generate(public.model, public.tokenizer, "A sailor") for _ in range(5)}) > 1


def test_samples_follow_the_models_probabilities(public: PublicModel) -> None:
    ids = torch.tensor([[public.start_token]])
    pmf = public.model(input_ids=ids).logits[0, -1].double().softmax(-1)
    favourite = int(pmf.argmax())
    draws, generator = 300, torch.Generator().manual_seed(3)
    texts = [
        generate(public.model, public.tokenizer, "", max_new_tokens=1, generator=generator, stop_at_eos=False)
        for _ in range(draws)
    ]
    share = texts.count(public.tokenizer.decode([favourite])) / draws
    expected = float(pmf[favourite])
    slack = 4 * (expected * (1 - expected) / draws) ** 0.5
    assert abs(share - expected) < slack


def test_text_ends_where_the_model_ends_it(public: PublicModel) -> None:
    def write(*, stop_at_eos: bool) -> str:
        return generate(
            public.model,
            public.tokenizer,
            "The baker",
            max_new_tokens=60,
            generator=torch.Generator().manual_seed(0),
            stop_at_eos=stop_at_eos,
        )

    ended, endless = write(stop_at_eos=True), write(stop_at_eos=False)
    assert endless.startswith(ended)
    assert len(endless) > len(ended)


def test_the_context_length_bounds_prompt_and_text(public: PublicModel) -> None:
    limit = public.context_length
    word = " the"
    assert len(public.tokenizer.encode([word])[0]) == 1
    written = generate(
        public.model, public.tokenizer, word * (limit - 3), max_new_tokens=9, temperature=0, stop_at_eos=False
    )
    assert len(public.tokenizer.encode([written])[0]) <= 2
    assert generate(public.model, public.tokenizer, word * (limit - 1)) == ""
    with pytest.raises(InputError, match=f"{limit + 1} tokens, more than the model's {limit}"):
        generate(public.model, public.tokenizer, word * limit)


def test_the_models_mode_comes_back(public: PublicModel) -> None:
    public.model.train()
    generate(public.model, public.tokenizer, "The", max_new_tokens=1)
    assert public.model.training
    public.model.eval()


@pytest.mark.parametrize("temperature", [-0.1, -1e-320, float("nan"), float("inf"), float("-inf")])
def test_an_impossible_temperature_is_refused(public: PublicModel, temperature: float) -> None:
    with pytest.raises(InputError, match="temperature >= 0"):
        generate(public.model, public.tokenizer, "The", temperature=temperature)


@pytest.mark.parametrize("temperature", [1e-320, 5e-324, 1e-30])
def test_the_smallest_temperatures_are_greedy(public: PublicModel, temperature: float) -> None:
    greedy = generate(public.model, public.tokenizer, "The", temperature=0)
    assert generate(public.model, public.tokenizer, "The", temperature=temperature) == greedy


def test_the_largest_temperature_is_uniform(public: PublicModel) -> None:
    texts = {
        generate(public.model, public.tokenizer, "", max_new_tokens=1, temperature=1e308) for _ in range(20)
    }
    assert len(texts) > 5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_gives_no_numbers_is_refused(public: PublicModel, temperature: float) -> None:
    public.model.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        generate(public.model, public.tokenizer, "The", temperature=temperature)
    assert not public.model.training


def test_a_prompt_that_is_no_unicode_is_refused(public: PublicModel) -> None:
    with pytest.raises(InputError, match="half a character"):
        generate(public.model, public.tokenizer, "caf\udce9")
