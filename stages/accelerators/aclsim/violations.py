"""Owns the names of what the sanitizer reports, one class per kind. Does not own how they are found (``checker``).

Every violation is an exception: raised at the offending call, or only collected (``CheckOptions.raise_``). Those that
are ``warning`` are always only collected. Where Python itself would raise (wrong arguments, unknown names), the class
is also a TypeError or AttributeError.
"""

from __future__ import annotations


class Violation(Exception):
    """One use of the module that is wrong on hardware, whether or not it would have shown there.

    ``call``: name of the function, as ``rt.memcpy_async``. ``where``: file:line of the offending call. ``other_where``:
    file:line of the other call that is part of it, or "". ``remedy``: what to do instead.
    """

    warning = False

    def __init__(self, call: str, message: str, where: str = "", other_where: str = "", remedy: str = "") -> None:
        super().__init__(call, message, where, other_where, remedy)
        self.call = call
        self.message = message
        self.where = where
        self.other_where = other_where
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [f"{type(self).__name__}: {self.call}: {self.message}"]
        if self.where:
            lines.append(f"  at    {self.where}")
        if self.other_where:
            lines.append(f"  other {self.other_where}")
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(lines)


# ---- life of the process -------------------------------------------------------------------------------------------


class NotInitialised(Violation):
    """A call before ``init`` or after ``finalize``; most calls of the runtime do not check it."""


class RepeatedInit(Violation):
    """A second ``init`` (100002), or a second ``finalize`` (100037)."""


class AliveAtFinalize(Violation):
    """``finalize``, or the last ``reset_device``, while something still lives; the message lists it."""


class UnpairedSetDevice(Violation):
    """``reset_device`` without ``set_device``, or ``finalize`` with devices that were set and never reset."""


class UsedAfterFork(Violation):
    """A call in a child that was forked after ``init``."""


class Leak(Violation):
    """Something was never released: at the end of the program, or a thousand handles alive from one line."""


class ErrorReturned(Violation):
    """A call returned this code: recorded, raised only with ``CheckOptions.raise_on_error``."""


# ---- names, arguments, handles -------------------------------------------------------------------------------------


class UnknownName(Violation, AttributeError):
    """The vendor's module has no such name."""


class WrongArguments(Violation, TypeError):
    """Number or type of arguments: keyword arguments, None, numpy scalars, tuples instead of handles."""


class WrongHandle(Violation):
    """A number that is no living handle of the kind that is wanted: destroyed, of another kind, an address, unknown."""


# ---- contexts and streams ------------------------------------------------------------------------------------------


class NoContext(Violation):
    """The thread has no context (107002)."""


class ForeignContext(Violation):
    """A context that can't be made current or destroyed: its device was reset, or it is a device's default context."""


class ForeignStream(Violation):
    """A stream of another context than the current one (107003)."""


class UnorderedStreamUse(Violation):
    """One stream from two living threads: the first one's work is not known to be over, and no common lock is held."""


# ---- order of work -------------------------------------------------------------------------------------------------


class ReadBeforeSync(Violation):
    """The host reads what queued work writes, before an event or a stream was synchronised."""


class DataRace(Violation):
    """Two accesses to the same bytes, one a write, with no event or synchronisation between them."""


class HostBufferChanged(Violation):
    """Pinned host memory was written while a queued copy had still to read it."""


class HostBufferGone(Violation):
    """The Python object behind an address was dropped before the address was used."""


class FreedInUse(Violation):
    """Memory was freed, or a data buffer re-pointed, while queued work or a loaded model uses it."""


class DestroyedInUse(Violation):
    """A dataset, data buffer, stream or event was destroyed while queued work or a waiting call uses it."""


class CallInCallback(Violation):
    """A callback allocated, freed, synchronised or submitted: it may dead-lock."""


# ---- memory and copies ---------------------------------------------------------------------------------------------


class UseAfterFree(Violation):
    """An address in memory that was freed."""


class DoubleFree(Violation):
    """Memory was freed twice."""


class NotABaseAddress(Violation):
    """``free`` of an inner address, of 0, or of memory that another allocator gave."""


class NotPinned(Violation):
    """Pinned host memory is wanted (``free_host``), and this is not what ``malloc_host`` gave."""


class PageableCopy(NotPinned):
    """An asynchronous copy from or to host memory that ``malloc_host`` did not give."""


class OutOfBounds(Violation):
    """A range beyond the end of its block, or in no known block of the device."""


class WrongDirection(Violation):
    """The kind of a copy contradicts its addresses; a host address where a device address is wanted, or the reverse."""


class WrongSize(Violation):
    """``count`` beyond ``dest_max``; a data buffer smaller than the model wants; a wrong number of data buffers."""


class Misaligned(Violation):
    """An address of an asynchronous copy or of a model's buffer that is no multiple of 64."""


class SynchronousCopyInLoop(Violation):
    """The same line copies or executes synchronously again and again while asynchronous work exists."""

    warning = True


# ---- models --------------------------------------------------------------------------------------------------------


class ModelOnTwoStreams(Violation):
    """One model is pending on two streams, or is in ``execute`` in two threads at once."""


class ModelLoadedTwice(Violation):
    """The same model was loaded twice on one device without sharing its weights."""

    warning = True


class ModelContext(Violation):
    """A model is executed or unloaded in another context than it was loaded in."""


class UnloadedInUse(Violation):
    """A model was unloaded while queued work uses it."""


class GearChanged(Violation):
    """The batch of a dataset was set anew while a run with that dataset is pending."""


class GearNotSet(Violation):
    """A dynamic-batch model was executed with a dataset whose batch was never set: the largest gear runs."""

    warning = True


# ---- events --------------------------------------------------------------------------------------------------------


class EventReused(Violation):
    """An event was recorded or reset again while an earlier use of it is pending, or recorded without a reset."""


class EventNeverRecorded(Violation):
    """A wait for an event that nobody has recorded: it may never end."""


class EventNotResettable(Violation):
    """``reset_event`` on an event that was not made by ``create_event_with_flag`` with the SYNC flag."""


KINDS: tuple[type[Violation], ...] = tuple(
    kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Violation) and kind != Violation
)
