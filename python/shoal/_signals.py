"""Signals keep their meaning while a library is loaded."""
import contextlib
import ctypes
import signal
from collections.abc import Iterator

_BYTES = 1024  # more than the C library's struct sigaction has


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Restores every signal's handler: libinfinipath, which libfabric may load, takes them when it is loaded."""
    sigaction = ctypes.CDLL(None).sigaction
    before = {number: ctypes.create_string_buffer(_BYTES) for number in signal.valid_signals()}
    kept = [(number, action) for number, action in before.items() if sigaction(int(number), None, action) == 0]
    try:
        yield
    finally:
        for number, action in kept:
            sigaction(int(number), action, None)  # of SIGKILL and SIGSTOP it fails, and they have none
