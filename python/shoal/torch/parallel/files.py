"""Files of checkpoints: a failure on one rank is raised on all, checksums find damage, random states are kept."""
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from shoal.torch.parallel.state import state
from shoal.torch.parallel.turns import RandomState

_T = TypeVar("_T")


def together(work: Callable[[], _T]) -> _T:
    """Runs `work` on every rank of the job and returns this rank's result. If it fails on some, every rank raises.

        together(lambda: os.makedirs(path, exist_ok=True))

    A rank where it failed raises its own exception, the others that of the first such rank: OSError with the path,
    ValueError, else RuntimeError. `work` must not wait for other ranks.
    """
    result: list[_T] = []
    gather(lambda: result.append(work()))
    return result[0]


def gather(work: Callable[[], _T]) -> list[_T]:
    """Does as together(), and returns the results of all ranks."""
    problem, mine = None, None
    try:
        mine = work()
    except Exception as found:  # the other ranks must learn of it
        problem = found
    everywhere: list[Any] = [None] * state.mesh.size("world")
    told = None if problem is None else _of_rank(problem, state.mesh.rank("world"))
    dist.all_gather_object(everywhere, (told, mine), group=state.mesh.group("world"))
    if problem is not None:
        raise problem
    first = next((told for told, _ in everywhere if told is not None), None)
    if first is not None:
        raise first
    return [value for _, value in everywhere]


def _of_rank(problem: Exception, rank: int) -> Exception:
    if isinstance(problem, OSError) and problem.errno is not None:
        return OSError(problem.errno, f"{problem.strerror} (on rank {rank})", problem.filename)
    kind = next((kind for kind in (FileNotFoundError, OSError, ValueError) if isinstance(problem, kind)), None)
    return kind(f"{problem} (on rank {rank})") if kind else RuntimeError(
        f"{type(problem).__name__}: {problem} (on rank {rank})")


class Writer:
    """A file for torch.save(), which hides why a write fails: `problem` is that OSError."""

    def __init__(self, file: Any) -> None:
        self._file, self.problem = file, None  # the file can be read too

    def write(self, content: Any) -> int:
        try:
            return self._file.write(content)
        except OSError as problem:
            self.problem = problem
            raise

    def flush(self) -> None:
        self._file.flush()

    def append(self, name: str, content: str) -> None:
        """Adds an entry to the archive that torch.save() has written. torch.load() ignores it. The older form of
        torch.save() is no archive and has no entries."""
        if zipfile.is_zipfile(self._file):
            with zipfile.ZipFile(self._file, "a") as archive:
                archive.writestr(_entry(archive, name), content)


def _entry(archive: zipfile.ZipFile, name: str) -> str:
    return f"{archive.namelist()[0].split('/')[0]}/{name}"


def read_entry(path: str, name: str) -> str | None:
    """Returns the entry that Writer.append() added, or None. BadZipFile: the file is damaged, or is no archive."""
    with zipfile.ZipFile(path) as archive:
        entry = _entry(archive, name)
        return archive.read(entry).decode() if entry in archive.namelist() else None


def check_archive(path: str) -> None:
    """ValueError if bytes of a file of torch.save() have changed; torch.load() ignores the checksums that it has."""
    if not zipfile.is_zipfile(path):
        return  # torch.load() reads the older format and refuses others
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{path} is damaged: {damaged} has another checksum than when it was saved; load another "
                         "checkpoint")


def checksum(value: torch.Tensor) -> int:
    """The CRC-32 of a tensor's dtype, shape and elements."""
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(content, zlib.crc32(f"{value.dtype} {list(value.shape)}".encode()))


def with_random_states(user_content: Any) -> dict[str, Any]:
    """Returns the content together with the layout and the random states of torch on each replica, for the file of a
    model-parallel rank. Every rank of an rdp group calls it."""
    mesh = state.mesh
    states: list[Any] = [RandomState.of_process()] * mesh.size("rdp")
    if mesh.size("rdp") > 1:
        dist.all_gather_object(states, states[0], group=mesh.group("rdp"))
    return {"content": user_content, "layout": list(mesh.shape), "random": states}


def take_content(found: Mapping[str, Any]) -> Any:
    """Returns the content that with_random_states() was given. In the same layout it also restores this rank's random
    states."""
    mesh = state.mesh
    if found.get("layout") == list(mesh.shape):
        states = found["random"][mesh.rank("rdp")]
        RandomState.set_process(states if torch.cuda.is_available() else states[:1])
    return found["content"]
