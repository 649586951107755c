"""Distributions of an ensemble at held-out queries, kept on the disk, so that sweeps only mix.

They are condensed (`mechanism_queries`): the likeliest tokens, and one outcome for all others. What single
models say of the token that came is kept from the whole vocabulary. A folder grows file by file, and a
killed pass goes on behind the last one.

    FOLDER/blocks.safetensors   the held-out blocks, so that nobody need load a model to know them
    FOLDER/00000.safetensors    the distributions of some successive blocks
    FOLDER/pmfs.json            the shape; where it is, the folder is whole

All of it is private text or a function of it: owner-only, and the operator's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from tacit.errors import InputError
from tacit.evaluation.mechanism_blocks import HeldOutBlocks
from tacit.evaluation.mechanism_queries import Asker, Queries, together
from tacit.files import PRIVATE_FOLDER_MODE, make_parent, new_file, read_json, write_json
from tacit.models.ensemble import Ensemble
from tacit.progress import Progress, Silent

FORMAT: Final = 1
_SHAPE: Final = "pmfs.json"
_BLOCKS: Final = "blocks.safetensors"
_QUERIES_IN_A_FILE: Final = 1024
_SMALL_AT_ONCE: Final = 64


@dataclass(frozen=True)
class KeptPmfs:
    """The distributions in a folder; asked as an ensemble is."""

    folder: Path
    blocks: HeldOutBlocks
    parts: int
    halves: int
    vocabulary: int
    support: int
    private_vocabulary: bool
    each_a_part: bool = False

    @classmethod
    def open(cls, folder: Path) -> KeptPmfs:
        """Read the shape; a folder that is not whole is refused."""
        remedy = "keep the distributions again"
        shape = read_json(folder / _SHAPE, remedy)
        if shape.pop("format", None) != FORMAT:
            raise InputError(f"{folder} was kept by another version; {remedy}.")
        return cls(folder, _read_blocks(folder / _BLOCKS), **shape)

    def with_each_a_part(self) -> KeptPmfs:
        """Every member as a part of its own: of k parts of two halves it makes 2k parts, for nothing."""
        return replace(self, parts=self.parts * self.halves, halves=1, each_a_part=True)

    def asked(self, first: int, last: int) -> Iterator[Queries]:
        """The queries of blocks ``first`` to ``last`` (not included), some at a time."""
        starts = self.blocks.starts
        begin, end = int(starts[first]), int(starts[last])
        for number, (low, high) in enumerate(_files(self.blocks)):
            if high <= first or low >= last:
                continue
            found = self._read(number, int(starts[low]))
            for place in range(0, len(found.tokens), _SMALL_AT_ONCE):
                some = found.some(place, place + _SMALL_AT_ONCE)
                least, most = max(0, begin - some.start), min(len(some.tokens), end - some.start)
                if least < most:
                    yield some.some(least, most)

    def _read(self, number: int, start: int) -> Queries:
        content = load_file(_file(self.folder, number))
        members, own = content["members"], content["own_members"]
        if self.each_a_part:
            members, own = (values.flatten(1, 2).unsqueeze(2) for values in (members, own))
        return Queries(
            start,
            members,
            content["public"],
            content["tokens"],
            content["own_public"].numpy(),
            own.numpy(),
            approximate=members.shape[-1] < self.vocabulary,
        )


@torch.inference_mode()
def keep_pmfs(
    ensemble: Ensemble,
    blocks: HeldOutBlocks,
    folder: Path,
    *,
    support: int,
    progress: Progress | None = None,
) -> KeptPmfs:
    """Run all models over all blocks, once, and keep what they say; goes on where it was stopped."""
    if support < 1:
        raise InputError(f"support={support}: at least one token is needed.")
    if (folder / _SHAPE).is_file():
        return KeptPmfs.open(folder)
    progress = progress or Silent()
    make_parent(folder)
    folder.mkdir(mode=PRIVATE_FOLDER_MODE, exist_ok=True)
    _keep_blocks(blocks, folder / _BLOCKS)
    asker = Asker(ensemble, blocks)
    progress.phase("asking all models", len(blocks))
    for number, (first, last) in enumerate(_files(blocks)):
        path = _file(folder, number)
        if not path.exists():
            queries = together([one.condensed(support) for one in asker.asked(first, last)])
            _write(path, _tensors(queries))
        progress.advance(last - first)
    shape = {
        "parts": ensemble.parts,
        "halves": ensemble.halves,
        "vocabulary": asker.vocabulary,
        "support": support,
        "private_vocabulary": ensemble.public.vocabulary == "private",
    }
    write_json(folder / _SHAPE, {"format": FORMAT} | shape, private=True)
    return KeptPmfs.open(folder)


def _tensors(queries: Queries) -> dict[str, Tensor]:
    return {
        "members": queries.members.float().contiguous(),
        "public": queries.public.float().contiguous(),
        "tokens": queries.tokens,
        "own_public": torch.from_numpy(queries.own_public),
        "own_members": torch.from_numpy(queries.own_members),
    }


def _keep_blocks(blocks: HeldOutBlocks, path: Path) -> None:
    """Write the blocks; a folder that was begun with others is refused."""
    content = {
        "tokens": torch.from_numpy(np.concatenate(blocks.tokens)),
        "lengths": torch.from_numpy(blocks.lengths),
        "user": torch.from_numpy(blocks.user),
        "shape": torch.tensor([blocks.block_size, blocks.start_token]),
    }
    if not path.exists():
        _write(path, content)
        return
    begun = load_file(path)
    if any(not torch.equal(begun[name], values) for name, values in content.items()):
        raise InputError(f"{path.parent} was begun with other text; remove it and begin again.")


def _read_blocks(path: Path) -> HeldOutBlocks:
    content = load_file(path)
    tokens = content["tokens"].numpy()
    cuts = np.cumsum(content["lengths"].numpy())[:-1]
    block_size, start_token = content["shape"].tolist()
    return HeldOutBlocks(tuple(np.split(tokens, cuts)), content["user"].numpy(), block_size, start_token)


def _files(blocks: HeldOutBlocks) -> list[tuple[int, int]]:
    """Which blocks each file holds."""
    size = max(1, _QUERIES_IN_A_FILE // blocks.block_size)
    return [(first, min(first + size, len(blocks))) for first in range(0, len(blocks), size)]


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.safetensors"


def _write(path: Path, content: dict[str, Tensor]) -> None:
    with new_file(path, private=True) as handle:
        handle.write(save(content))
