"""Owns telling the parent of what a forked child did wrong. Does not own what is wrong."""

from __future__ import annotations

import mmap

_PAGE = 4096


class ForkNotice:
    """A page shared with forked children: the last one's report, read by the parent."""

    def __init__(self) -> None:
        self._page: mmap.mmap | None = None

    def open(self) -> None:
        """Take the page; children forked from now on share it."""
        if self._page is None:
            self._page = mmap.mmap(-1, _PAGE)

    def write(self, text: str) -> None:
        """By the child."""
        if self._page is not None and not self._page[0]:
            content = text.encode()[: _PAGE - 2]
            self._page[1 : 1 + len(content)] = content
            self._page[0] = 1

    def read(self) -> str:
        """By the parent: what a child wrote, "" when none did; told once."""
        if self._page is None or not self._page[0]:
            return ""
        content = bytes(self._page[1:]).rstrip(b"\0").decode(errors="replace")
        self._page[:] = bytes(_PAGE)
        return content

    def close(self) -> None:
        """Give the page back."""
        if self._page is not None:
            self._page.close()
            self._page = None
