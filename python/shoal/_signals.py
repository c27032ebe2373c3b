"""Restores signal handlers that loading a library replaces."""
import contextlib
import ctypes
import signal
from collections.abc import Iterator

_BYTES = 1024  # larger than the C library's struct sigaction


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Restores every signal's handler after the body. libfabric may load libinfinipath, which installs handlers of its
    own."""
    sigaction = ctypes.CDLL(None).sigaction
    before = {number: ctypes.create_string_buffer(_BYTES) for number in signal.valid_signals()}
    kept = [(number, action) for number, action in before.items() if sigaction(int(number), None, action) == 0]
    try:
        yield
    finally:
        for number, action in kept:
            sigaction(int(number), action, None)  # fails for SIGKILL and SIGSTOP, which have no handlers
