"""Messages between the ranks of a pipeline: nested values, whose tensors are sent as raw bytes."""
import io
import pickle
import queue
import threading
import time
from collections import deque
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

FRAME_TAG, DATA_TAG = 28001, 28002
FRAME_BYTES = 8192  # enough for a message's head, a random state and most structures
INLINE_BYTES = 512  # tensors up to this size travel inside the frame
_PING, _PONG = "ping", "pong"  # heads of messages between Channels
_LOOKS = 4  # at silent ranks, in the time after which they count as lost


class _Tensor(NamedTuple):
    """The description of a sent tensor. `data` holds a small tensor's bytes; the bytes of larger ones follow the frame.
    """

    dtype: torch.dtype
    shape: tuple
    sent: tuple  # the shape without the repetitions of expanded dimensions
    requires_grad: bool
    device: str
    data: bytes | None

    def empty(self) -> torch.Tensor:
        return torch.empty(self.sent, dtype=self.dtype)

    def finish(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.device != "cpu":
            tensor = tensor.to(self.device)
        return tensor if self.sent == self.shape else tensor.expand(self.shape)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor. PyTorch also calls one element with a stride of 0 contiguous."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _describe(tensor: torch.Tensor) -> tuple[_Tensor, torch.Tensor]:
    """Returns the tensor's description and a contiguous copy on the host."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"a {tensor.layout} tensor cannot be sent to another pipeline rank: use a strided one")
    if tensor.is_meta:
        raise RuntimeError("a meta tensor, which has no data, cannot be sent to another pipeline rank. Parameters "
                           "of another rank's modules are such tensors: read them as module.name inside the step")
    plain = tensor.detach().resolve_conj().resolve_neg()
    for dim, (size, stride) in enumerate(zip(plain.shape, plain.stride())):
        if stride == 0 and size > 1:
            plain = plain.narrow(dim, 0, 1)
    plain = plain.contiguous()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    small = plain.nbytes <= INLINE_BYTES
    return _Tensor(tensor.dtype, tuple(tensor.shape), tuple(plain.shape), tensor.requires_grad, tensor.device.type,
                   bytes(_bytes_of(plain).numpy()) if small else None), plain


class Modules:
    """Modules that a message refers to by number. Their content is not sent."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, int]] = {}
        self._models: dict[int, list[nn.Module]] = {}

    def add(self, model: int, modules: list[nn.Module]) -> None:
        self._models[model] = modules
        self._numbers.update({id(module): (model, i) for i, module in enumerate(modules)})

    def remove(self, model: int) -> None:
        """Forgets the modules of a model that has been deleted."""
        for module in self._models.pop(model, ()):
            self._numbers.pop(id(module), None)

    def name(self, module: nn.Module) -> tuple[int, int]:
        found = self._numbers.get(id(module))
        if found is None:
            raise TypeError(f"a {type(module).__name__} that belongs to no DistributedModel cannot be sent to another "
                            "pipeline rank: make it a child of the model")
        return found

    def find(self, name: tuple[int, int]) -> nn.Module:
        return self._models[name[0]][name[1]]


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, modules: Modules) -> None:
        super().__init__(file, protocol=5)
        self.modules = modules
        self.tensors: list[torch.Tensor] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            place = self._places.setdefault(id(value), len(self.tensors))
            if place == len(self.tensors):
                self.tensors.append(value)
            return place
        if isinstance(value, nn.Module):
            return self.modules.name(value)
        return None


class _Unpacker(pickle.Unpickler):
    def __init__(self, data: bytes, tensors: list[torch.Tensor], modules: Modules) -> None:
        super().__init__(io.BytesIO(data))
        self.tensors, self.modules = tensors, modules

    def persistent_load(self, pid: Any) -> Any:
        return self.tensors[pid] if isinstance(pid, int) else self.modules.find(pid)


class Packed(NamedTuple):
    """A nested value, as its pickled structure and its distinct tensors."""

    structure: bytes
    tensors: list[torch.Tensor]


def pack(value: Any, modules: Modules) -> Packed:
    """Pickles the structure of a value and collects its tensors. They may be anywhere that pickle reaches."""
    file = io.BytesIO()
    packer = _Packer(file, modules)
    try:
        packer.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise TypeError(f"a value cannot be sent to another pipeline rank: {problem}") from problem
    return Packed(file.getvalue(), packer.tensors)


def unpack(structure: bytes, tensors: list[torch.Tensor], modules: Modules) -> Any:
    """The value of a Packed structure with these tensors."""
    return _Unpacker(structure, tensors, modules).load()


class Parcel:
    """A received message. `tensors` are without a graph; `requires_grad` tells which of them require gradients on the
    sender."""

    def __init__(self, head: Any, structure: bytes, tensors: list[torch.Tensor], requires_grad: list[bool]) -> None:
        self.head, self.structure, self.tensors, self.requires_grad = head, structure, tensors, requires_grad

    def open(self, modules: Modules, tensors: list[torch.Tensor] | None = None) -> Any:
        """Returns the value, with `tensors` in place of the received ones."""
        return unpack(self.structure, self.tensors if tensors is None else tensors, modules)


class Channel:
    """Sends messages to the ranks of a group and receives theirs. Any thread may send; only one receives."""

    def __init__(self, group: dist.ProcessGroup, patience: float) -> None:
        """patience: seconds without a sign of life after which an expected rank counts as lost. A message may take
        longer, because the rank's receiving thread answers meanwhile."""
        self.group, self.rank, self.size, self._patience = group, group.rank(), group.size(), patience
        self._expected: dict[int, float] = {}  # by rank: its last sign of life, or since when it is expected
        self._looked = 0.0
        self._order = [threading.Lock() for _ in range(self.size)]
        self._sent: deque = deque()
        # One for each source. The group's thread may still hold a tensor after it has reported its arrival.
        self._frames = [torch.empty(FRAME_BYTES, dtype=torch.uint8) for _ in range(self.size)]
        self._arrived: queue.SimpleQueue = queue.SimpleQueue()

    def send(self, to: int, head: Any, value: Packed = Packed(b"", [])) -> None:
        """Starts to send. The tensors must not change until the other rank has answered or flush() has returned."""
        described = [_describe(tensor) for tensor in value.tensors]
        data = pickle.dumps((head, value.structure, [about for about, _ in described]), protocol=5)
        parts = [_bytes_of(plain) for about, plain in described if about.data is None and plain.numel() > 0]
        frame = torch.empty(FRAME_BYTES, dtype=torch.uint8)
        whole = torch.frombuffer(bytearray(len(data).to_bytes(8, "little") + data), dtype=torch.uint8)
        if len(whole) <= FRAME_BYTES:
            frame[:len(whole)] = whole
        else:
            frame[:8] = whole[:8]
            parts.insert(0, whole[8:])
        with self._order[to]:
            works = [self.group.send([frame], to, FRAME_TAG)]
            works += [self.group.send([part], to, DATA_TAG) for part in parts]
            self._sent.append(works)
        self._collect(lambda works: all(work.is_completed() for work in works))

    def flush(self) -> None:
        """Waits until all messages have been sent."""
        self._collect(lambda works: True)

    def _collect(self, ready) -> None:
        while True:
            try:
                works = self._sent.popleft()
            except IndexError:
                return
            if not ready(works):
                self._sent.appendleft(works)
                return
            for work in works:
                work.wait()

    def expect(self, source: int) -> None:
        """Posts a receive for one message from `source`, after receive() has returned the one before."""
        future = self.group.recv([self._frames[source]], source, FRAME_TAG).get_future()
        future.add_done_callback(lambda done: self._arrived.put((source, done)))
        self._expected[source] = time.monotonic()

    def receive(self) -> Parcel:
        """Waits for the next message from any rank that expect() named."""
        while True:
            oldest = min(self._expected.values())
            due = min(max(self._looked, oldest) + self._patience / _LOOKS, oldest + self._patience)
            try:
                source, done = self._arrived.get(timeout=max(due - time.monotonic(), 0))
            except queue.Empty:
                self._look(due)
                continue
            parcel = self._open(source, done)
            if parcel.head == _PING:
                self.send(source, _PONG)
            if parcel.head not in (_PING, _PONG):
                del self._expected[source]
                return parcel
            self.expect(source)

    def _look(self, due: float) -> None:
        """Asks the expected ranks for a sign of life, or raises what a message from a lost rank would. `due`: when this
        look should have been."""
        self._looked = now = time.monotonic()
        if now - due > self._patience / _LOOKS:  # this process itself was stopped, so it has not asked
            asked = now - self._patience * (1 - 1 / _LOOKS)
            self._expected = {source: max(heard, asked) for source, heard in self._expected.items()}
        for source, heard in self._expected.items():
            if now - heard < self._patience:
                self.send(source, _PING)
                continue
            problem = (f"rank {source} has given no sign of life for {now - heard:.1f} s: it is stopped, or has not "
                       "come to this step")
            lose = getattr(self.group._get_backend(torch.device("cpu")), "lose", None)  # only the backend shoal has it
            if lose is not None:
                lose(source, problem)
            raise dist.DistBackendError(f"pipeline {problem}")

    def _open(self, source: int, done: torch.futures.Future) -> Parcel:
        done.value()  # raises if the receive failed
        frame = self._frames[source]
        length = int.from_bytes(bytes(frame[:8].numpy()), "little")
        if length + 8 <= FRAME_BYTES:
            data = bytes(frame[8:8 + length].numpy())
        else:
            rest = torch.empty(length, dtype=torch.uint8)
            self._take([rest], source)
            data = bytes(rest.numpy())
        head, structure, about = pickle.loads(data)
        tensors, expected = [], []
        for one in about:
            tensor = one.empty()
            if one.data:
                _bytes_of(tensor).copy_(torch.frombuffer(bytearray(one.data), dtype=torch.uint8))
            elif tensor.numel() > 0:
                expected.append(_bytes_of(tensor))
            tensors.append(tensor)
        self._take(expected, source)
        tensors = [one.finish(tensor) for one, tensor in zip(about, tensors)]
        return Parcel(head, structure, tensors, [one.requires_grad for one in about])

    def _take(self, parts: list[torch.Tensor], source: int) -> None:
        works = [self.group.recv([part], source, DATA_TAG) for part in parts]
        for work in works:
            work.get_future().wait()
