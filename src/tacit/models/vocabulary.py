"""Word-level vocabularies, and new LSTM models over them.

A vocabulary is a release: every word in it is visible to whoever holds the model. Built from public text
it costs nothing; built from private text it is outside every guarantee, and the model folder says so for
as long as it exists (``vocabulary: "private"`` in ``tacit_model.json``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.trainers import WordLevelTrainer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tacit.errors import ModelError
from tacit.files import new_folder
from tacit.models.description import ModelDescription, Vocabulary, weight_hashes, write_description
from tacit.models.lstm import LSTMConfig, LSTMForCausalLM
from tacit.models.quiet import quiet
from tacit.models.tokenizer import PublicTokenizer

VOCABULARY_SIZE: Final = 40_000
# Far beyond any use; what is larger is a slip of the finger that would take all memory.
_MOST_TOKENS, _MOST_LAYERS, _MOST_PARAMETERS = 10_000_000, 64, 1_000_000_000
UNKNOWN, PADDING, END = "<unk>", "<pad>", "<eos>"
_SPECIALS = (UNKNOWN, PADDING, END)

# A space belongs to the token after it, so that joining the tokens gives the text back, letter by letter.
_PIECES = Regex(
    r" ?\p{L}[\p{L}\p{M}]*(?:['’-]\p{L}[\p{L}\p{M}]*)*"  # a word, with inner apostrophes and hyphens
    r"| ?\p{N}"  # digits one by one: numbers are the rare words that matter, and none may be unknown
    r"| ?[^\s\p{L}\p{N}]"  # a punctuation mark or symbol
    r"|\s"  # newline, tab, or a space before another space
)


@dataclass(frozen=True)
class LSTMShape:
    """Sizes of an LSTM language model, without its vocabulary."""

    layers: int
    hidden_size: int
    embedding_size: int
    tied: bool = False
    dropout: float = 0.0
    context_length: int = 1024

    def parameters(self, vocabulary_size: int) -> int:
        """How many weights a model of this shape has."""
        inputs = [self.embedding_size, *[self.hidden_size] * (self.layers - 1)]
        gates = sum(4 * self.hidden_size * (size + self.hidden_size + 2) for size in inputs)
        head = vocabulary_size * (1 if self.tied else 1 + self.hidden_size)
        return vocabulary_size * self.embedding_size + gates + head


PRESETS: Final = {
    "lstm-1x200": LSTMShape(layers=1, hidden_size=200, embedding_size=200),
    "lstm-2x550": LSTMShape(layers=2, hidden_size=550, embedding_size=550),
}


def build_word_tokenizer(
    texts: Iterable[str], size: int = VOCABULARY_SIZE, *, lowercase: bool = False
) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the most frequent words, digits and marks of ``texts``.

    Decoding gives back exactly the text that was encoded, except that words outside the vocabulary are
    lost (they become ``<unk>``) and that ``lowercase`` folds case.
    """
    if not len(_SPECIALS) < size <= _MOST_TOKENS:
        raise ModelError(
            f"Expected a vocabulary size (--vocabulary-size) between {len(_SPECIALS) + 1} and "
            f"{_MOST_TOKENS:,}, not {size:,}; 40,000 is usual."
        )
    words = Tokenizer(WordLevel(unk_token=UNKNOWN))
    if lowercase:
        words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Split(_PIECES, behavior="isolated")
    words.decoder = decoders.Fuse()
    trainer = WordLevelTrainer(vocab_size=size, special_tokens=list(_SPECIALS), show_progress=False)
    words.train_from_iterator(texts, trainer)
    if not any(token.strip() for token in words.get_vocab() if token not in _SPECIALS):
        raise ModelError("A vocabulary cannot be built from text without a word; give at least one.")
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token=UNKNOWN, pad_token=PADDING, eos_token=END, padding_side="right"
    )


def create_lstm(
    folder: Path,
    *,
    shape: LSTMShape | str,
    tokenizer: PublicTokenizer | PreTrainedTokenizerBase,
    vocabulary: Vocabulary,
    seed: int,
) -> Path:
    """Write a new, untrained LSTM model folder; the start token is the tokenizer's, or its end token."""
    sizes = _shape(shape)
    wrapped = _wrap(tokenizer, vocabulary)
    _refuse_out_of_bounds(sizes, len(wrapped), seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LSTMForCausalLM(
            LSTMConfig(
                vocab_size=len(wrapped),
                embedding_size=sizes.embedding_size,
                hidden_size=sizes.hidden_size,
                num_hidden_layers=sizes.layers,
                dropout=sizes.dropout,
                max_position_embeddings=sizes.context_length,
                tie_word_embeddings=sizes.tied,
                bos_token_id=wrapped.start_token,
                eos_token_id=wrapped.tokenizer.eos_token_id,
                pad_token_id=wrapped.tokenizer.pad_token_id,
            )
        )
    with new_folder(folder) as building:
        with quiet():
            model.save_pretrained(building)
            wrapped.tokenizer.save_pretrained(building)
        write_description(
            building,
            ModelDescription(
                name=folder.name,
                source=f"created untrained with seed {seed}",
                licence=None,
                parameters=model.num_parameters(),
                start_token_id=wrapped.start_token,
                vocabulary=vocabulary,
                weights_sha256=weight_hashes(building),
            ),
        )
    return folder


def _shape(shape: LSTMShape | str) -> LSTMShape:
    if isinstance(shape, LSTMShape):
        return shape
    if shape not in PRESETS:
        raise ModelError(f"There is no LSTM preset {shape!r}; choose from {', '.join(PRESETS)}.")
    return PRESETS[shape]


def _refuse_out_of_bounds(shape: LSTMShape, vocabulary_size: int, seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise ModelError(f"Expected a seed (--seed) from 0 to 2**63 - 1, not {seed}.")
    if not 1 <= shape.layers <= _MOST_LAYERS:
        raise ModelError(f"Expected between 1 and {_MOST_LAYERS} layers (--layers), not {shape.layers:,}.")
    if shape.hidden_size < 1:
        raise ModelError(f"Expected a hidden_size (--hidden) of at least 1, not {shape.hidden_size:,}.")
    if shape.embedding_size < 1:
        raise ModelError(
            f"Expected an embedding_size (--embedding) of at least 1, not {shape.embedding_size:,}."
        )
    if (parameters := shape.parameters(vocabulary_size)) > _MOST_PARAMETERS:
        raise ModelError(
            f"Expected at most {_MOST_PARAMETERS:,} parameters, not {parameters:,}; choose a smaller "
            "hidden or embedding size."
        )


def _wrap(tokenizer: PublicTokenizer | PreTrainedTokenizerBase, vocabulary: Vocabulary) -> PublicTokenizer:
    if isinstance(tokenizer, PublicTokenizer):
        if tokenizer.vocabulary == "private" and vocabulary == "public":
            raise ModelError(
                "The tokenizer's vocabulary was built from private text; a model over it must say "
                "vocabulary='private'."
            )
        return tokenizer
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise ModelError("The tokenizer has neither a bos nor an eos token to start texts with; add one.")
    return PublicTokenizer.wrap(tokenizer, start_token=int(start), vocabulary=vocabulary)
