"""Owns the named errors that the vendor's return codes become. Does not own the codes' meanings (``codes``).

::

    DeviceFailed
    └── AclError                 any code: call, code, name, meaning, recent error text, remedy
        ├── ContextMissing       a thread without context
        ├── RepeatedInit         the runtime belongs to somebody else in this process
        ├── OutOfMemory          the device's memory, or the host's pinned memory
        ├── NothingLeft          streams, events or other handles are used up
        ├── WrongDevice          no such device, or none that is visible or permitted
        ├── WrongModel           the OM is damaged, or of another chip or a newer CANN
        ├── VersionMismatch      driver, firmware and CANN do not belong together
        ├── DeviceLost           a fault after which the context can't be used: the process must end
        └── DeviceHung           something did not end in time: the process must end

What a user can mend is told as a UserError where devices are opened and models loaded.
"""

from __future__ import annotations

from typing import Final

from stages.accelerators.ascend.codes import code_facts
from stages.errors import DeviceFailed, UserError

# After these the documents advise to treat the context as lost; resetting the device within the process is not
# reliable (507007 may follow). So the process ends and another one starts; its frames are sent again.
LOST_CODES: Final = frozenset(
    {507000, 507001, 507007, 507010, *range(507013, 507019), *range(507033, 507037), *range(507042, 507046)}
    | {507053, 507054, 507055, 507899, 507900, 507901, 107022}
)
# of these, what befalls a device or its connection whatever it is given; operators fail by their input, too
_BEFALLING: Final = frozenset(
    {507000, 507001, 507007, 507010, 507013, 507033, 507053, 507054, 507055, 507899, 507900, 507901, 107022}
)
HUNG_CODES: Final = frozenset({507046, 507047, 107019, 107020, 545601})


class AclError(DeviceFailed):
    """A call returned a code other than 0. ``call`` is its name without ``acl.``, ``text`` the recent error text."""

    users = False  # whether a user can mend it

    def __init__(self, code: int, call: str, text: str = "") -> None:
        facts = code_facts(code)
        text = " ".join(text.split())
        shown = f" ({text[:400]})" if text else ""
        remedy = f"; {facts.remedy}" if facts.remedy else ""
        super().__init__(f"acl.{call} returned {code} {facts.name}: {facts.meaning}{shown}{remedy}")
        self.code = code
        self.name = facts.name
        self.meaning = facts.meaning
        self.remedy = facts.remedy
        self.call = call
        self.text = text

    @property
    def by_work(self) -> bool:  # type: ignore[override]
        """See DeviceFailed."""
        return self.code not in _BEFALLING

    def __reduce__(self) -> tuple[type[AclError], tuple[int, str, str]]:
        return type(self), (self.code, self.call, self.text)

    @property
    def needs_new_process(self) -> bool:
        """Whether nothing in this process can mend it."""
        return self.code in LOST_CODES or self.code in HUNG_CODES


class ContextMissing(AclError):
    """The thread has no context, or its device was reset."""


class RepeatedInit(AclError):
    """The runtime was initialised, or finalised, before."""


class OutOfMemory(AclError):
    """Memory is used up."""

    users = True


class NothingLeft(AclError):
    """Streams, events or other handles are used up."""

    users = True


class WrongDevice(AclError):
    """There is no such device, or it is not visible, or not permitted."""

    users = True


class WrongModel(AclError):
    """The OM can't be loaded here."""

    users = True


class VersionMismatch(AclError):
    """Driver, firmware and CANN do not belong together."""

    users = True


class DeviceLost(AclError):
    """A fault after which only a new process can use the device."""


class DeviceHung(AclError):
    """Something did not end in time; only a new process can use the device."""


_CLASSES: Final[tuple[tuple[type[AclError], frozenset[int]], ...]] = (
    (VersionMismatch, frozenset({507033, 100039, 148049})),  # before DeviceLost, which has 507033 too
    (DeviceHung, HUNG_CODES),
    (DeviceLost, LOST_CODES),
    (ContextMissing, frozenset({100001, 107002})),
    (RepeatedInit, frozenset({100002, 100037})),
    (OutOfMemory, frozenset({200000, 207001, 207018, 245000, 245002})),
    (NothingLeft, frozenset({207005, *range(207007, 207013)})),
    (WrongDevice, frozenset({107001, 200002, 207004, 207006})),
    (
        WrongModel,
        frozenset({100003, 100005, *range(100012, 100017), 145002, 145006, 507008, 507009, *range(545001, 545006)}),
    ),
)


def error_of(code: int, call: str, text: str = "") -> AclError:
    """The named error for a code that ``call`` (``rt.malloc``) returned."""
    for kind, codes in _CLASSES:
        if code in codes:
            return kind(code, call, text)
    if code == 500002 and call.startswith("mdl.load"):  # how the model layer tells of codes it has no name for
        return WrongModel(code, call, text)
    return AclError(code, call, text)


def mendable(error: AclError, subject: str) -> UserError | AclError:
    """A UserError about ``subject`` (``device ascend:0``) when a user can mend this, else the error itself."""
    return UserError(f"{subject}: {error}") if error.users else error
