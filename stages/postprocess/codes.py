"""Owns ``Codes``, what heads get in place of an array of floats when an output is quantised. Does not own scales.

It has the few things of an array that heads use: indexing, ``reshape``, ``T``, ``len``, ``take`` and ``astype``. The
latter two give floats; as does anything in numpy that asks for an array, so that what was not thought of is slow, not
wrong. Comparing codes without making floats of them is ``above`` and ``highest``, for ``candidates`` and ``logits``.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


def as_codes(values: object) -> Codes | None:
    """What a head was given, if it is codes."""
    return values if isinstance(values, Codes) else None


class Codes:
    """uint8 or int8 ``raw`` whose values are ``table`` (256,) float32, rising, from the lowest code to the highest."""

    dtype = np.dtype(np.float32)  # of its values

    def __init__(self, raw: NDArray[Any], table: NDArray[np.float32]) -> None:
        self.raw = raw
        self._table = table
        self._lowest = int(np.iinfo(raw.dtype).min)

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.raw.shape

    @property
    def T(self) -> Codes:  # noqa: N802  an array's name for it
        """As of an array."""
        return self._of(self.raw.T)

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, key: Any) -> Codes:
        return self._of(self.raw[key])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        del copy  # always one
        return self._floats(self.raw).astype(dtype or np.float32, copy=False)

    def reshape(self, *shape: int) -> Codes:
        """As of an array."""
        return self._of(self.raw.reshape(*shape))

    def astype(self, dtype: Any, copy: bool = True) -> NDArray[Any]:
        """All of it as floats."""
        return self.__array__(dtype, copy)

    def take(
        self, indices: NDArray[np.intp], axis: int, mode: Literal["raise", "clip"] = "raise"
    ) -> NDArray[np.float32]:
        """As of an array: float32."""
        return self._floats(self.raw.take(indices, axis=axis, mode=mode))

    def above(self, limit: float) -> NDArray[np.bool_]:
        """Where values exceed the limit, as float32."""
        return self.codes_above(self.raw, limit)

    def codes_above(self, raw: NDArray[Any], limit: float) -> NDArray[np.bool_]:
        """``above`` for other codes of the same scale."""
        highest_below = self.limit(limit)
        if highest_below >= np.iinfo(raw.dtype).max:
            return np.zeros(raw.shape, np.bool_)
        return np.asarray(raw > highest_below)

    def limit(self, limit: float) -> int:
        """The highest code whose value does not exceed the limit, as float32; one less than the lowest if all do."""
        return self._lowest - 1 + int(np.searchsorted(self._table, np.float32(limit), side="right"))

    def _of(self, raw: NDArray[Any]) -> Codes:
        return Codes(raw, self._table)

    def _floats(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        places = raw.astype(np.intp)
        places -= self._lowest
        return self._table[places]
