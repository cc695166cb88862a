"""Owns that what the forkserver has loaded stays shared with its workers. Preloaded last; to import it is to do it.

A full garbage collection writes into each object that it looks at. In a forked worker that made copies of all pages
with the modules' objects, some 10 MB a process, a while after its start: it looked like a leak. Objects that are frozen
are not looked at, and a collection takes no time worth mention instead of 30 ms.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
