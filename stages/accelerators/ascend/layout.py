"""Owns where the parts of a batch lie in a block of memory. Pure: knows sizes, holds no memory.

A batch larger than the model's largest run is cut into several runs (chunks), each with inputs and outputs of its own.
Rules for pieces of a block, from the runtime's documents: starts at multiples of 64 bytes, lengths rounded up to 32
with 32 more behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.accelerators.ascend.constants import MEMORY_ALIGN_BYTES, PIECE_ALIGN_BYTES, PIECE_PAD_BYTES


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a block."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """The pieces of one run."""

    picture: Piece
    shape: Piece | None  # what carries the gear of a model with several batches
    outputs: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where a batch lies: on the device, and in two blocks of the host for what goes in and what comes out."""

    chunks: tuple[ChunkLayout, ...]
    device_bytes: int
    pictures: tuple[Piece, ...]  # on the host, one per chunk
    pictures_bytes: int
    results: tuple[tuple[Piece, ...], ...]  # on the host, per chunk and output
    results_bytes: int


def padded(size_bytes: int) -> int:
    """What a piece of so many bytes takes of a block."""
    length = -(-size_bytes // PIECE_ALIGN_BYTES) * PIECE_ALIGN_BYTES + PIECE_PAD_BYTES
    return -(-length // MEMORY_ALIGN_BYTES) * MEMORY_ALIGN_BYTES


class _Cutter:
    def __init__(self) -> None:
        self.used = 0

    def piece(self, size_bytes: int) -> Piece:
        piece = Piece(self.used, size_bytes)
        self.used += padded(size_bytes)
        return piece


def lay_out(chunks: int, picture_bytes: int, shape_bytes: int, output_bytes: Sequence[int]) -> BatchLayout:
    """Lay out ``chunks`` runs; sizes are those of one run of the largest batch, ``shape_bytes`` 0 for none."""
    device, pictures, results = _Cutter(), _Cutter(), _Cutter()
    laid = tuple(
        ChunkLayout(
            device.piece(picture_bytes),
            device.piece(shape_bytes) if shape_bytes else None,
            tuple(device.piece(size) for size in output_bytes),
        )
        for _ in range(chunks)
    )
    staged = tuple(pictures.piece(picture_bytes) for _ in range(chunks))
    fetched = tuple(tuple(results.piece(size) for size in output_bytes) for _ in range(chunks))
    return BatchLayout(laid, device.used, staged, pictures.used, fetched, results.used)
