"""Hugging Face token classifiers, and taggers made like Flair's, as scorers.

Weights come from safetensors only, from a folder or the hub, and complete: a classifier whose head is
missing would score at random. Words are scored whole, by their most sensitive piece. Texts longer than the
model reads are read in overlapping windows. Scores are rounded to four places, so that the texts beside one
in a batch, whose padding moves the last digits, do not decide what is masked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tacit.corpus.screening.scores import ScoredToken
from tacit.corpus.screening.tagger_rules import OUTSIDE, Rule, kind_of, paper_score
from tacit.errors import DownloadFailed, InputError, ModelError

_PLACES = 4
_LONGEST = 512
_OVERLAP = 64


class TokenClassifier:
    """A Hugging Face model for token classification, by hub id or folder."""

    contextual = True

    def __init__(
        self, model: str, *, revision: str | None = None, rule: Rule = "probability", batch_size: int = 32
    ) -> None:
        self.name = f"huggingface {model}"
        self._rule = rule
        self._batch_size = batch_size
        self._tokenizer, self._model = _loaded(model, revision)
        config = self._model.config
        self._labels = [str(config.id2label[number]) for number in range(config.num_labels)]
        if OUTSIDE not in self._labels:
            raise ModelError(
                f"{model}: none of its {len(self._labels)} labels is '{OUTSIDE}', so nothing tells plain "
                "text apart; use a tagger with that label."
            )
        longest = getattr(config, "max_position_embeddings", _LONGEST) or _LONGEST
        self._longest = min(int(longest), int(self._tokenizer.model_max_length), _LONGEST)
        self.fingerprint = f"huggingface {rule} {_hash(self._model, self._tokenizer)} {self._longest}"

    def score(self, texts: Sequence[str]) -> list[list[ScoredToken]]:
        """The score of every word."""
        found: list[list[ScoredToken]] = []
        for start in range(0, len(texts), self._batch_size):
            found += self._scored(list(texts[start : start + self._batch_size]))
        return found

    def _scored(self, texts: list[str]) -> list[list[ScoredToken]]:
        import torch

        encoded = self._tokenizer(
            texts,
            truncation=True,
            max_length=self._longest,
            stride=min(_OVERLAP, self._longest // 4),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding=True,
            return_tensors="pt",
        )
        owners = encoded.pop("overflow_to_sample_mapping").tolist()
        offsets = encoded.pop("offset_mapping").tolist()
        with torch.inference_mode():
            probabilities = self._model(**encoded).logits.float().softmax(-1).tolist()
        words: list[dict[tuple[int, int], ScoredToken]] = [{} for _ in texts]
        for window, (owner, places) in enumerate(zip(owners, offsets, strict=True)):
            for token, word in enumerate(encoded.word_ids(window)):
                start, end = places[token]
                if word is not None and start < end:
                    span = self._word_span(encoded, window, word, places)
                    scored = self._token(span, probabilities[window][token])
                    before = words[owner].get(span)
                    words[owner][span] = scored if before is None or scored.score > before.score else before
        return [sorted(found.values()) for found in words]

    def _word_span(
        self, encoded: Any, window: int, word: int, places: Sequence[Sequence[int]]
    ) -> tuple[int, int]:
        tokens = encoded.word_to_tokens(window, word)
        return places[tokens.start][0], places[tokens.end - 1][1]

    def _token(self, span: tuple[int, int], probabilities: Sequence[float]) -> ScoredToken:
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        plain = self._labels.index(OUTSIDE)
        kinds = [number for number in range(len(probabilities)) if number != plain]
        kind = kind_of(self._labels[max(kinds, key=probabilities.__getitem__)]) if kinds else OUTSIDE
        if self._rule == "paper":
            score = paper_score(self._labels[best], round(probabilities[best], _PLACES))
        else:
            score = round(1 - probabilities[plain], _PLACES)
        return ScoredToken(*span, kind, min(max(score, 0.0), 1.0))


class FlairScorer:
    """A tagger with Flair's interface: ``predict`` on sentences whose tokens have positions and labels.

    ``sentence`` makes a sentence of a text; it is ``flair.data.Sentence`` for Flair's own taggers, which the
    caller loads: their files are pickles, and tacit opens none. So the caller says what was loaded:
    ``about`` is its name and version, or a hash of its file. A calibration is taken for a screening's if
    these are the same.
    """

    contextual = True

    def __init__(
        self,
        tagger: Any,
        sentence: Callable[[str], Any],
        *,
        about: str,
        name: str = "flair",
        rule: Rule = "paper",
    ) -> None:
        if not about.strip():
            raise InputError(
                "about='' tells no tagger from another; give name and version, or a hash of its file."
            )
        self.name = name
        self.fingerprint = f"{name} {rule} {about}"
        self._tagger = tagger
        self._sentence = sentence
        self._rule = rule

    def score(self, texts: Sequence[str]) -> list[list[ScoredToken]]:
        """The score of every token."""
        sentences = [self._sentence(text) for text in texts]
        self._tagger.predict(sentences, force_token_predictions=True)
        found = []
        for sentence in sentences:
            tokens = []
            for token in sentence:
                label = token.get_label(self._tagger.tag_type)
                score = round(float(label.score), _PLACES)
                if self._rule == "paper":
                    sensitive = paper_score(label.value, score)
                else:
                    sensitive = 1 - score if label.value == OUTSIDE else score
                start, end = int(token.start_position), int(token.end_position)
                tokens.append(ScoredToken(start, end, kind_of(label.value), sensitive))
            found.append(tokens)
        return found


def _loaded(name: str, revision: str | None) -> tuple[Any, Any]:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    with _quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, use_fast=True)
            model, facts = AutoModelForTokenClassification.from_pretrained(
                name, revision=revision, use_safetensors=True, output_loading_info=True
            )
        except (OSError, ValueError, KeyError, ImportError) as problem:
            if Path(name).exists():
                raise ModelError(
                    f"{name}: is not a token classifier in safetensors that can be loaded "
                    f"({type(problem).__name__}); give a folder with config, tokenizer and weights."
                ) from None
            raise DownloadFailed(
                f"{name}: is no folder here, and the hub did not deliver it; give a folder, or a hub id."
            ) from None
    if facts["missing_keys"]:
        raise ModelError(
            f"{name}: {len(facts['missing_keys'])} weights are missing, so it would score at random; give a "
            "model that was trained for token classification."
        )
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(f"{name}: its tokenizer tells no positions; give one with a tokenizer.json.")
    return tokenizer, model.eval()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _hash(model: Any, tokenizer: Any) -> str:
    """Of all that decides a score: labels, how text becomes tokens, and weights."""
    reading = json.loads(tokenizer.backend_tokenizer.to_str())
    reading["padding"] = reading["truncation"] = None  # what the last caller asked for
    labels = [model.config.id2label[number] for number in range(model.config.num_labels)]
    digest = hashlib.sha256(json.dumps([labels, reading], sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:16]
