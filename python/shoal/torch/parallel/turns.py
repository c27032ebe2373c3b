"""Decides which microbatch computes on a rank and when, and switches the random state between microbatches.

A *visit* is the time from a microbatch's arrival on a rank to its departure for another rank. A microbatch's *phase* is
0 until its first model.backward(), 1 during it, and so on: odd phases are backward ones. Visit n of a phase waits until
the previous microbatch has completed its visit n, so that buffers and gradients change in a fixed order.
"""
import threading
import time
from collections import deque
from collections.abc import Callable

import torch
import torch.distributed as dist

# A visit that has computed for less than this time takes precedence over longer ones. Most visits on a rank that calls
# other ranks' modules are shorter, because they only pass tensors on.
SHORT_SECONDS = 2e-3
_DONE = (1 << 60, 0)
_TAG, _VOTE_TAG, _REASON_TAG = 28003, 28004, 28005
_REASON_BYTES = 1024
_END, _FAILED, _RECORDED = -1, -2, -3  # _RECORDED: an end after which vote() follows


class Ended(BaseException):
    """Raised in a thread of a step to end it after the step has failed elsewhere."""


class RandomState:
    """One microbatch's random generator states. They are sent along with the microbatch."""

    def __init__(self, states: list[torch.Tensor]) -> None:
        self.states, self.version = states, 0

    @staticmethod
    def of_process() -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        if torch.cuda.is_initialized():
            states.append(torch.cuda.get_rng_state())
        return states

    @staticmethod
    def set_process(states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1])

    @staticmethod
    def split(count: int) -> list[list[torch.Tensor]]:
        """Draws initial states for `count` microbatches. A single microbatch continues the process's state."""
        if count == 1:
            return [RandomState.of_process()]
        seed = int(torch.randint(1 << 62, (), dtype=torch.int64))
        devices = ["cpu"] + (["cuda"] if torch.cuda.is_initialized() else [])
        return [[torch.Generator(device).manual_seed(seed + i).get_state() for device in devices]
                for i in range(count)]

    def save(self) -> None:
        now = self.of_process()
        if not all(torch.equal(a, b) for a, b in zip(now, self.states)):
            self.states, self.version = now, self.version + 1

    def restore(self) -> None:
        self.set_process(self.states)


class Microbatch:
    """A microbatch on one rank. The lock of Turns guards `waiting`, `progress` and `served`."""

    def __init__(self, index: int, lock: threading.Lock) -> None:
        self.index = index
        self.changed = threading.Condition(lock)
        self.phase = self.visits = 0
        self.progress = (0, 0)  # the phase, and the number of visits completed in it
        self.waiting = False
        self.served, self.since = 0.0, 0.0  # seconds computed in this visit; start of the last computation
        self.random = RandomState([])

    @property
    def visit(self) -> tuple[int, int]:
        """The current visit: its phase and its index in the phase."""
        return self.phase, self.visits - 1

    def enter_phase(self, phase: int) -> None:
        if phase > self.phase:
            self.phase, self.visits = phase, 0
            self.progress = max(self.progress, (phase, 0))


class Peers:
    """Ranks of other pipelines that take part in collectives inside this rank's modules, as in tensor parallelism.

    All of them must run microbatches in the same order. The group's first rank decides it and tells the others.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.leads = group, group.rank() == 0
        self._sent: list = []
        self._votes = False  # in the next vote()
        self.following: threading.Thread | None = None  # runs follow() for the newest step

    def tell(self, decision: int) -> None:
        self._sent = [work for work in self._sent if not work.is_completed()]
        for to in range(1, self.group.size()):
            self._sent.append(self.group.send([torch.tensor([decision])], to, _TAG))

    def end(self, failure: str | None, has_recorded: bool) -> None:
        """For the first rank: ends the step. failure: why it failed. has_recorded: of its runs (runs.py)."""
        self._votes = has_recorded and failure is None
        self.tell(_FAILED if failure is not None else _RECORDED if self._votes else _END)
        if failure is None:
            for work in self._sent:
                work.wait()
            return
        reason = torch.frombuffer(bytearray(failure.encode()[:_REASON_BYTES].ljust(_REASON_BYTES)), dtype=torch.uint8)
        for to in range(1, self.group.size()):  # without waiting: a rank that takes no messages may be the failure
            self._sent.append(self.group.send([reason], to, _REASON_TAG))

    def vote(self, succeeded: bool) -> bool:
        """Whether the step before has recorded runs and succeeded on all ranks. Each calls it before its next step."""
        votes, self._votes = self._votes, False
        if not votes:
            return False
        answer = torch.tensor([succeeded])
        others = range(1, self.group.size()) if self.leads else [0]
        if not self.leads:
            self.group.send([answer.clone()], 0, _VOTE_TAG).wait()
        for other in others:
            heard = torch.empty_like(answer)
            self.group.recv([heard], other, _VOTE_TAG).get_future().wait()
            answer = answer & heard
        if self.leads:
            for other in others:
                self.group.send([answer], other, _VOTE_TAG).wait()
        return bool(answer)

    def follow(self, turns: "Turns") -> None:
        """Receives decisions and passes them to `turns` until the step ends. Runs in a thread of its own."""
        decision = torch.empty(1, dtype=torch.int64)
        while True:
            self.group.recv([decision], 0, _TAG).get_future().wait()
            if decision.item() == _FAILED:
                reason = torch.empty(_REASON_BYTES, dtype=torch.uint8)
                self.group.recv([reason], 0, _REASON_TAG).get_future().wait()
                raise RuntimeError("the step failed in the pipeline of the tensor-parallel group's first rank: " +
                                   bytes(reason.numpy()).decode(errors="ignore").strip())
            if decision.item() in (_END, _RECORDED):
                self._votes = decision.item() == _RECORDED
                return
            turns.decide(int(decision.item()))


class Turns:
    """Lets one microbatch at a time compute on this rank."""

    def __init__(self, count: int, active: int | None, peers: Peers | None = None) -> None:
        """`active`: how many microbatches may have started but not ended. None on ranks that start none."""
        self._tell: Callable[[int], None] | None = peers.tell if peers is not None and peers.leads else None
        self._decisions: deque[int] | None = deque() if peers is not None and not peers.leads else None
        self.lock = threading.Lock()
        self.microbatches = [Microbatch(i, self.lock) for i in range(count)]
        self.failed = False
        self._active, self._started = active, set()
        self._holder: Microbatch | None = None
        self._waiters = 0

    def check(self) -> None:
        if self.failed:
            raise Ended()

    def fail(self) -> None:
        with self.lock:
            self.failed = True
            for microbatch in self.microbatches:
                microbatch.changed.notify_all()

    def arrive(self, microbatch: Microbatch) -> None:
        """Begins a visit: waits until the microbatch may compute."""
        with self.lock:
            microbatch.visits += 1
            microbatch.served = 0.0
            self._wait(microbatch)
        microbatch.random.restore()

    def leave(self, microbatch: Microbatch) -> None:
        """Ends the visit. The caller has saved the random state."""
        with self.lock:
            microbatch.progress = max(microbatch.progress, (microbatch.phase, microbatch.visits))
            self._give_back()

    def pause(self, microbatch: Microbatch) -> None:
        """Lets another microbatch compute first if its visit is more urgent."""
        if self._waiters == 0 and not self.failed or self._tell is not None or self._decisions is not None:
            return
        with self.lock:
            self.check()
            now = time.perf_counter()
            microbatch.served += now - microbatch.since
            microbatch.since = now
            best = self._best()
            if best is None or self._urgency(best) >= self._urgency(microbatch):
                return
            microbatch.random.save()
            self._give_back()
            self._wait(microbatch)
        microbatch.random.restore()

    def enter_phase(self, microbatch: Microbatch, phase: int) -> None:
        with self.lock:
            microbatch.enter_phase(phase)
            self._grant()
            self._notify_all()

    def wait_for_phase(self, phase: int) -> None:
        """Waits until every microbatch has entered the phase or ended. The caller must not be in a visit."""
        condition = self.microbatches[0].changed
        with self.lock:
            while any(m.progress < (phase, 0) for m in self.microbatches):
                self.check()
                condition.wait()

    def finish(self, microbatch: Microbatch) -> None:
        """Records that the microbatch makes no more visits to this rank."""
        with self.lock:
            microbatch.progress = _DONE
            self._grant()
            self._notify_all()

    def decide(self, index: int) -> None:
        """Queues this microbatch for the next visit."""
        with self.lock:
            self._decisions.append(index)
            self._grant()

    def is_done(self, microbatch: Microbatch) -> bool:
        return microbatch.progress == _DONE

    def _notify_all(self) -> None:
        for microbatch in self.microbatches:
            microbatch.changed.notify_all()

    def _wait(self, microbatch: Microbatch) -> None:
        microbatch.waiting = True
        self._waiters += 1
        self._grant()
        try:
            while self._holder is not microbatch:
                self.check()
                microbatch.changed.wait()
        finally:
            microbatch.waiting = False
            self._waiters -= 1
        microbatch.since = time.perf_counter()

    def _give_back(self) -> None:
        self._holder = None
        self._grant()

    def _grant(self) -> None:
        if self._holder is None and (best := self._best()) is not None:
            self._holder = best
            self._started.add(best.index)
            if self._decisions is not None:
                self._decisions.popleft()
            elif self._tell is not None:
                self._tell(best.index)
            best.changed.notify_all()

    def _best(self) -> Microbatch | None:
        if self._decisions is not None:
            decided = self.microbatches[self._decisions[0]] if self._decisions else None
            return decided if decided is not None and decided.waiting else None
        ready = [m for m in self.microbatches if m.waiting and m is not self._holder and self._may_compute(m)]
        return min(ready, key=self._urgency, default=None)

    def _may_compute(self, microbatch: Microbatch) -> bool:
        if microbatch.index > 0:
            phase, visit = microbatch.visit
            if self.microbatches[microbatch.index - 1].progress < (phase, visit + 1):
                return False
        if self._active is None or microbatch.index in self._started:
            return True
        return sum(not self.is_done(self.microbatches[i]) for i in self._started) < self._active

    @staticmethod
    def _urgency(microbatch: Microbatch) -> tuple:
        return microbatch.served >= SHORT_SECONDS, microbatch.phase % 2 == 0, microbatch.index
