"""Owns the life of the vendor's runtime in this process, and which context each thread has. Does not own devices.

``init`` once, by the first user, ``finalize`` once, by the last, whatever failed between. Somebody else's ``init`` in
the same process (torch_npu, another library) is met with 100002: then it is theirs, and theirs to finalise. A second
``init`` after ``finalize`` is allowed by the current documents and was not by older ones: the engine opens a device
once per process and never needs it.

No ``__del__`` and no bare hook at exit finalises: the order in which native objects die then is not defined.
"""

from __future__ import annotations

import logging
import threading

from stages.accelerators.ascend.binding import Binding
from stages.accelerators.ascend.calls import Acl
from stages.accelerators.ascend.errors import AclError, RepeatedInit
from stages.accelerators.ascend.owned import Register

log = logging.getLogger(__name__)

_lock = threading.Lock()
_runtimes: dict[int, Runtime] = {}  # by the identity of the module


class Runtime:
    """The runtime behind one module. Any thread may use it."""

    def __init__(self, binding: Binding) -> None:
        self.acl = Acl(binding.module)
        self.register = Register()  # of what lives in this process besides the devices' own things
        self._binding = binding
        self._users = 0
        self._owns = False
        self._current = threading.local()

    def enter(self, context: int) -> None:
        """Make ``context`` current for the calling thread; costs nothing when it is."""
        if getattr(self._current, "context", None) != context:
            self._current.context = None
            self.acl.rt.set_context(context)
            self._current.context = context

    def entered(self, context: int | None) -> None:
        """Note which context the calling thread has now: some calls change it. None: not known."""
        self._current.context = context

    def _acquire(self) -> None:
        if self._users == 0:
            try:
                self.acl.init()
                self._owns = True
            except RepeatedInit:
                log.info("acl was initialised by another library in this process, which also finalises it")
                self._owns = False
        self._users += 1

    def leave_to_exit(self) -> None:
        """Do not finalise: something on the device never ended, and the end of the process takes it all."""
        self._owns = False

    def release(self) -> None:
        """One user less; the last one finalises."""
        with _lock:
            self._users -= 1
            if self._users:
                return
            _runtimes.pop(id(self._binding.module), None)
            try:
                if self._owns:
                    self.acl.finalize()
            except AclError as error:
                log.warning("the runtime is not finalised: %s", error)


def acquire_runtime(binding: Binding) -> Runtime:
    """The runtime of this module, initialised; each user releases it once. Raises AclError, UserError."""
    with _lock:
        runtime = _runtimes.get(id(binding.module))
        if runtime is None:
            runtime = Runtime(binding)
        runtime._acquire()
        _runtimes[id(binding.module)] = runtime
        return runtime
