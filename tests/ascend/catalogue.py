"""Owns reading and running the programs of the pages in ``misuse/``. Does not own what they must give: the tests do."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent / "misuse"
HERE, OTHER = "# <- here", "# <- other"
_FENCE = re.compile(r"```python ?(bad|good)?")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its text and the line of the page at which it begins."""

    text: str
    line: int

    def marked(self, mark: str) -> list[int]:
        """Lines of the page that bear this mark."""
        return [self.line + i for i, text in enumerate(self.text.splitlines()) if mark in text]


@dataclass(frozen=True, slots=True)
class Misuse:
    """A wrong program and its corrected twin. ``expected``: name of the violation, ``code``: of ErrorReturned."""

    page: Path
    title: str
    expected: str
    code: int
    needs_codes: bool
    in_child: bool  # the wrong line runs in a child process
    bad: tuple[Block, ...]
    good: tuple[Block, ...]

    @property
    def name(self) -> str:
        """For the id of a test."""
        return f"{self.page.stem}-{re.sub('[^a-z0-9]+', '-', self.title.lower()).strip('-')}"

    def marked(self, mark: str) -> list[str]:
        """``file:line`` of each line of the wrong program that bears this mark."""
        return [f"{self.page}:{line}" for block in self.bad for line in block.marked(mark)]

    def script(self, which: str) -> str:
        """The whole program as one text."""
        return "".join(block.text for block in getattr(self, which))


def read_pages() -> list[Misuse]:
    """All programs of all pages, in the order of the pages' names."""
    return [misuse for page in sorted(PAGES.glob("*.md")) if page.stem != "README" for misuse in read_page(page)]


def read_page(page: Path) -> list[Misuse]:
    """The programs of one page."""
    sections = list(_sections(page.read_text(encoding="utf-8").splitlines()))
    shared = {title: blocks.get("", Block("", 1)) for title, _, blocks in sections if title in ("Prologue", "Epilogue")}
    before = tuple(shared[title] for title in ("Prologue",) if title in shared)
    after = tuple(shared[title] for title in ("Epilogue",) if title in shared)
    return [
        Misuse(
            page,
            title,
            *_expected(page, title, words),
            needs_codes="Needs: codes" in words,
            in_child="Where: child" in words,
            bad=(*before, blocks["bad"], *after),
            good=(*before, blocks["good"], *after),
        )
        for title, words, blocks in sections
        if title not in ("Prologue", "Epilogue")
    ]


def _expected(page: Path, title: str, words: str) -> tuple[str, int]:
    match = re.search(r"^Expected: `(\w+)`(?: (\d+))?$", words, re.MULTILINE)
    assert match, f"{page.name}: {title} says no Expected"
    return match[1], int(match[2] or 0)


def _sections(lines: Sequence[str]) -> Iterator[tuple[str, str, dict[str, Block]]]:
    title, words, blocks = "", [], {}
    number = 0
    while number < len(lines):
        line = lines[number]
        fence = _FENCE.fullmatch(line)
        if line.startswith("## "):
            if title:
                yield title, "\n".join(words), blocks
            title, words, blocks = line[3:], [], {}
        elif fence:
            end = lines.index("```", number)
            blocks[fence[1] or ""] = Block("".join(f"{text}\n" for text in lines[number + 1 : end]), number + 2)
            number = end
        else:
            words.append(line)
        number += 1
    if title:
        yield title, "\n".join(words), blocks


def run(blocks: Sequence[Block], page: Path, acl: Any, arguments: Sequence[str]) -> list[BaseException]:
    """Run a program with ``acl`` as the module of that name; what it and its threads raised, in that order of time."""
    raised: list[BaseException] = []
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(page)}
    saved = sys.modules.get("acl"), sys.argv, threading.excepthook
    running = set(threading.enumerate())
    sys.modules["acl"], sys.argv = acl, [str(page), *arguments]
    threading.excepthook = lambda failed: raised.append(failed.exc_value)  # type: ignore[arg-type]
    try:
        for block in blocks:
            # line numbers of the page, so that a report points into it
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
    except BaseException as error:
        raised.append(error)
    finally:
        if "stopping" in names:  # a page's own thread outlives a program that was refused
            names["stopping"].set()
        for thread in set(threading.enumerate()) - running:
            if not thread.daemon:
                thread.join(5)
        module, sys.argv, threading.excepthook = saved
        if module is None:
            sys.modules.pop("acl", None)
        else:
            sys.modules["acl"] = module
    return raised
