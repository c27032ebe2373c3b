"""One step over the ranks of a pipeline.

Pipeline rank 0 runs the step function in one thread for each microbatch. The other ranks serve requests. A call of a
module on another rank is a request to that rank. A microbatch is one logical thread: only one rank computes for it at a
time. While a rank waits for an answer, it serves requests that arrive for the same microbatch, so modules may nest in
any way. One request calls consecutive modules of one rank, where their arguments allow it (runs.py).
"""
import contextlib
import functools
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any, NamedTuple

import torch
from torch import nn

from shoal.torch.parallel.messages import Channel, Modules, Packed, Parcel, pack, unpack
from shoal.torch.parallel.runs import Call, Course, Runs, buffers_of
from shoal.torch.parallel.sums import NO_BACKWARD, VisitSums, current, here
from shoal.torch.parallel.turns import Ended, Microbatch, Peers, RandomState, Turns

log = logging.getLogger("shoal.torch.parallel")
CALL, FETCH, BACKWARD, ANSWER, PHASE, DONE, RESULT, LEAVE = range(8)
_POSTPONED = "postponed"  # in a call: raise the error that ended a run


class _Head(NamedTuple):
    """The first part of each message."""

    kind: int
    source: int
    microbatch: int = -1
    phase: int = 0
    version: int = 0  # of the random state
    random: list[bytes] | None = None  # None if the receiver already has this version
    detail: Any = None


class _Failure(NamedTuple):
    when: float
    rank: int
    text: str


def _text_of(problem: BaseException) -> str:
    return "".join(traceback.format_exception_only(problem)).strip()


def _devices() -> list[str]:
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def caller_settings() -> tuple:
    """This thread's gradient, inference and autocast modes, which a step's other threads and ranks must use too."""
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _devices()])


@contextlib.contextmanager
def applied(settings: tuple) -> Iterator[None]:
    grad, inference, autocasts = settings
    with contextlib.ExitStack() as stack:
        if inference != torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(grad))
        for device, enabled, dtype in autocasts:
            if enabled or torch.is_autocast_enabled(device):
                # With autocast's cache, threads would share cast weights and their graph.
                stack.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))
        yield


class _Inputs(torch.autograd.Function):
    """Makes received tensors non-leaf tensors, which modules may change in place. Stores their gradients."""

    @staticmethod
    def forward(ctx, kept, anchor):
        ctx.set_materialize_grads(False)
        ctx.kept = kept
        return tuple(kept.pop("tensors"))

    @staticmethod
    def backward(ctx, *gradients):
        ctx.kept["gradients"] = gradients
        return None, None


class _Request(torch.autograd.Function):
    """Calls a module on another rank. Its backward asks that rank to run the module's backward."""

    @staticmethod
    def forward(ctx, call, anchor, *tensors):
        ctx.set_materialize_grads(False)
        ctx.call = call
        parcel = call["parcel"] = call["visit"].exchange(call["to"], call["kind"], call["detail"], call["value"])
        call["value"] = None
        outputs = tuple(parcel.tensors)
        ctx.mark_non_differentiable(*[t for t, differentiable in zip(outputs, parcel.requires_grad)
                                      if not differentiable])
        return outputs

    @staticmethod
    def backward(ctx, *gradients):
        call = ctx.call
        visit: Visit = call["visit"]
        if visit.microbatch.phase % 2 == 0:
            raise RuntimeError(NO_BACKWARD)
        answer = visit.exchange(call["to"], BACKWARD, (call["name"], caller_settings()),
                                visit.run.pack(list(gradients)))
        return None, None, *answer.open(visit.run.modules)


@functools.cache
def _warn_of_change(kind: type) -> None:
    log.warning("a %s changes a tensor that it is given in place, and does not return it: a caller on another pipeline "
                "rank does not see the change", kind.__name__)


class _Kept(NamedTuple):
    """A served call whose backward has not run yet."""

    edges: list  # one per output; None if the output needs no gradient
    inputs: dict
    differentiable: list[int]  # indices of such inputs
    count: int  # number of inputs


class Visit:
    """A microbatch on this rank: its thread's requests to other ranks, and the requests that it serves."""

    def __init__(self, run: "Run", microbatch: Microbatch) -> None:
        self.run, self.microbatch = run, microbatch
        self.inbox: list[Parcel] = []
        self.kept: dict[tuple[int, int], _Kept] = {}
        self.calls = 0
        self.course: Course | None = None  # consecutive calls of modules on one other rank
        self.postponed: Exception | None = None  # the error of a module that the caller has not called yet
        self.known: dict[int, int] = {}  # the version of the random state that each rank has

    # Requests, which the microbatch's own thread makes.

    def call(self, to: int, module: nn.Module, args: tuple, kwargs: dict) -> Any:
        """Calls a module that lives on pipeline rank `to`."""
        try:
            value = self.run.pack((args, kwargs))
        except TypeError as problem:
            raise TypeError(f"an argument of {type(module).__name__}, which lives on pipeline rank {to}: {problem}"
                            ) from problem
        name, settings = self.run.modules.name(module), caller_settings()
        course = self.course
        call = course and course.next(to, name, settings, value)
        if course is not None and course.matches(call):
            return course.take(self.run.pack)
        if course is not None and course.has_failed(call):
            self._request(to, CALL, (*name, _POSTPONED), value)
        if call is None or not course.is_recorded:
            self.end_course()
            first, call = (name, value.structure, settings[0], module.training), None
            # Inference mode does not count changes of tensors; backward phases compute activations again.
            expected = [] if settings[1] or self.microbatch.phase % 2 else self.run.runs.after(first)
            course = Course(self.run.runs, to, first, settings, value.tensors, expected)
        self.course = None
        outputs, (states, changed) = self._request(to, CALL, (*name, course.expected), value)
        if call is not None and changed:  # such a module can only be the first one
            course.end()
            return outputs[0]
        if call is not None:
            course.extend(call)
        self.course = course
        course.answered(outputs, states)
        return course.take(self.run.pack)

    def end_course(self) -> None:
        if self.course is not None:
            self.course.end()
            self.course = None

    def fetch(self, to: int, module: nn.Module, name: str) -> torch.Tensor:
        """Reads a parameter or buffer of a module that lives on pipeline rank `to`."""
        self.end_course()
        return self._request(to, FETCH, (*self.run.modules.name(module), name), Packed(b"", []))[0][0]

    def _request(self, to: int, kind: int, what: tuple, value: Packed) -> tuple[list, tuple]:
        """The outputs, and what the other rank tells of them."""
        self.calls += 1
        name = (self.run.channel.rank, self.calls)
        detail = (name, caller_settings(), what)
        if not torch.is_grad_enabled():
            parcel = self.exchange(to, kind, detail, value)
            return parcel.open(self.run.modules), parcel.head.detail
        call = {"visit": self, "to": to, "kind": kind, "name": name, "detail": detail, "value": value}
        outputs = _Request.apply(call, torch.empty(0, requires_grad=True), *value.tensors)
        parcel = call.pop("parcel")
        return parcel.open(self.run.modules, list(outputs)), parcel.head.detail

    def exchange(self, to: int, kind: int, detail: Any, value: Packed) -> Parcel:
        """Sends a request to rank `to` and serves other requests until the answer arrives."""
        self._depart(to, kind, detail, value)
        while True:
            parcel = self._next()
            self._arrive(parcel.head)
            if parcel.head.kind == ANSWER:
                return parcel
            self._serve(parcel)

    def _depart(self, to: int, kind: int, detail: Any, value: Packed) -> None:
        state = self.microbatch.random
        state.save()
        states = None
        if self.known.get(to) != state.version:
            self.known[to] = state.version
            states = [bytes(one.numpy()) for one in state.states]
        head = _Head(kind, self.run.channel.rank, self.microbatch.index, self.microbatch.phase,
                     state.version, states, detail)
        self.run.post(to, head, value)
        self.run.turns.leave(self.microbatch)

    def _next(self) -> Parcel | None:
        """Waits for the next message. Returns None once the microbatch has ended."""
        turns = self.run.turns
        with turns.lock:
            while not self.inbox:
                turns.check()
                if turns.is_done(self.microbatch):
                    return None
                self.microbatch.changed.wait()
            turns.check()
            return self.inbox.pop(0)

    def _arrive(self, head: _Head) -> None:
        self.known[head.source] = head.version
        state = self.microbatch.random
        if head.random is not None:
            state.states = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in head.random]
        state.version = head.version
        self.run.turns.enter_phase(self.microbatch, head.phase)
        self.run.turns.arrive(self.microbatch)

    # Serving.

    def serve(self) -> None:
        while (parcel := self._next()) is not None:
            self._arrive(parcel.head)
            self._serve(parcel)
        self.kept.clear()

    def _serve(self, parcel: Parcel) -> None:
        self.end_course()
        if parcel.head.kind == BACKWARD:
            value, detail = self._backward(parcel), None
        else:
            value, detail = self._forward(parcel)
        self.end_course()
        self._depart(parcel.head.source, ANSWER, detail, value)

    def _forward(self, parcel: Parcel) -> tuple[Packed, tuple]:
        name, settings, what = parcel.head.detail
        if parcel.head.kind == CALL and what[2] == _POSTPONED:
            raise self.postponed
        states, changed = None, False
        module = self.run.modules.find(what[:2])
        with applied(settings):
            tensors = list(parcel.tensors)
            inputs: dict = {}
            places = [i for i, wanted in enumerate(parcel.requires_grad) if wanted and settings[0]]
            if places:
                inputs["tensors"] = [tensors[i] for i in places]
                for i, tensor in zip(places, _Inputs.apply(inputs, torch.empty(0, requires_grad=True))):
                    tensors[i] = tensor
            if parcel.head.kind == FETCH:
                value = getattr(module, what[2])
                # Another microbatch may change a buffer while the message is in flight, but not a parameter.
                outputs = [value if isinstance(value, nn.Parameter) else value.clone()]
            else:
                given = self._arguments(what[:2], tensors) if what[2] else tensors
                args, kwargs = parcel.open(self.run.modules, given)
                versions = [tensor._version for tensor in tensors]
                before = buffers_of(module) if what[2] is None else None
                outputs = [module(*args, **kwargs)]
                changed = before is not None and buffers_of(module) != before
                if any(tensor._version != version for tensor, version in zip(tensors, versions)):
                    self.run.runs.in_place.add(what[:2])
                if what[2]:
                    states = self._follow(tensors, outputs, what[2])
            packed = self.run.pack(outputs)
            if parcel.head.kind == CALL:
                returned = {id(tensor) for tensor in packed.tensors}
                if any(t._version != v and id(t) not in returned for t, v in zip(tensors, versions)):
                    _warn_of_change(type(module))
            if settings[0]:
                edges = [torch.autograd.graph.get_gradient_edge(t) if t.requires_grad else None
                         for t in packed.tensors]
                if any(edges):
                    self.kept[name] = _Kept(edges, inputs, places, len(tensors))
        return packed, (states, changed)

    def _arguments(self, module: tuple[int, int], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors to call the module with: copies if it changes its inputs, because the answer or a later
        module of the run may need them unchanged."""
        return [tensor.clone() for tensor in tensors] if module in self.run.runs.in_place else tensors

    def _follow(self, inputs: list[torch.Tensor], outputs: list, calls: list[Call]) -> list | None:
        """Computes the rest of a run. Returns the random states after each module, None if they are the same."""
        seen, states = [inputs], [RandomState.of_process()]
        for call in calls:
            seen.append(self.run.pack(outputs[-1]).tensors)
            try:
                tensors = self._arguments(call.module, [seen[step][place] for step, place in call.sources])
                args, kwargs = unpack(call.structure, tensors, self.run.modules)
                outputs.append(self.run.modules.find(call.module)(*args, **kwargs))
            except Exception as problem:  # the step fails if the caller comes to this call
                self.postponed = problem
                RandomState.set_process(states[-1])
                break
            states.append(RandomState.of_process())
        same = all(torch.equal(a, b) for state in states[1:] for a, b in zip(state, states[0]))
        return None if same else [[bytes(one.numpy()) for one in state] for state in states]

    def _backward(self, parcel: Parcel) -> Packed:
        name, settings = parcel.head.detail
        kept = self.kept.pop(name, None)
        if kept is None:
            raise RuntimeError("backward through a call of another rank's module a second time: its graph is gone. "
                               "Call model.backward() once for a loss")
        pairs = [(edge, gradient) for edge, gradient in zip(kept.edges, parcel.open(self.run.modules))
                 if edge is not None and gradient is not None]
        with applied(settings):
            if pairs:
                torch.autograd.backward([edge for edge, _ in pairs], [gradient for _, gradient in pairs])
        found = [None] * kept.count
        for place, gradient in zip(kept.differentiable, kept.inputs.get("gradients") or ()):
            found[place] = gradient
        return self.run.pack(found)

    # The step function's own thread.

    def backward(self, tensors: Any, gradients: Any) -> None:
        """torch.autograd.backward(), as a phase of its own (turns.py)."""
        self.end_course()
        self._enter_phase()
        torch.autograd.backward(tensors, gradients)
        self._enter_phase()

    def _enter_phase(self) -> None:
        microbatch, run = self.microbatch, self.run
        microbatch.random.save()
        run.turns.leave(microbatch)
        phase = microbatch.phase + 1
        run.turns.enter_phase(microbatch, phase)
        run.tell(PHASE, microbatch.index, phase)
        if run.simple and phase == 1:
            run.turns.wait_for_phase(1)
        run.turns.arrive(microbatch)


class Run:
    """One step on this rank."""

    def __init__(self, channel: Channel, modules: Modules, runs: Runs, count: int, pipeline: str, active: int,
                 peers: Peers | None) -> None:
        self.channel, self.modules, self.runs, self._peers = channel, modules, runs, peers
        self.simple = pipeline == "simple"
        first = channel.rank == 0
        self.turns = Turns(count, (count if self.simple else active) if first else None, peers)
        self.visits = [Visit(self, microbatch) for microbatch in self.turns.microbatches]
        self.gradients = VisitSums()
        self._settings = caller_settings()
        self._context = copy_context()
        self._threads: list[threading.Thread] = []
        self._serving: set[int] = set()
        self._posting = threading.Lock()
        self._left = False
        self._failures: list[_Failure] = []
        self._connection: BaseException | None = None
        self._causes: list[BaseException] = []
        self._outputs: Any = None

    def pack(self, value: Any) -> Packed:
        return pack(value, self.modules)

    def post(self, to: int, head: _Head, value: Packed = Packed(b"", [])) -> None:
        with self._posting:
            if self._left:
                raise Ended()
            self.channel.send(to, head, value)

    def tell(self, kind: int, microbatch: int, phase: int) -> None:
        """Sends a message without content to every other rank."""
        for to in range(self.channel.size):
            if to != self.channel.rank:
                self.post(to, _Head(kind, self.channel.rank, microbatch, phase))

    # The ranks' parts.

    def run_bodies(self, body: Callable[[int], Any], summary: Callable[[list], Any]) -> Any:
        """For rank 0: calls body(microbatch) in one thread for each microbatch. Every rank returns summary(results)."""
        states = RandomState.split(len(self.visits))
        after = RandomState.of_process()
        results: list = [None] * len(self.visits)
        for visit, state in zip(self.visits, states):
            visit.microbatch.random = RandomState(state)
            visit.microbatch.random.version = 1

        def one(visit: Visit) -> None:
            self.turns.arrive(visit.microbatch)
            results[visit.microbatch.index] = body(visit.microbatch.index)
            visit.end_course()
            visit.microbatch.random.save()
            self.turns.leave(visit.microbatch)
            visit.kept.clear()
            self.turns.finish(visit.microbatch)
            self.tell(DONE, visit.microbatch.index, visit.microbatch.phase)

        receiver = self._begin()
        threads = [self._start_visit(visit, lambda visit=visit: one(visit)) for visit in self.visits]
        with self._failing():
            for thread in threads:
                thread.join()
            if not self.turns.failed:
                if len(self.visits) == 1:
                    after = self.visits[0].microbatch.random.states
                self._leave(None, (summary(results), after))
        return self._finish(receiver)

    def serve(self) -> Any:
        """For the other ranks: serves requests until rank 0 ends the step."""
        return self._finish(self._begin())

    def _begin(self) -> threading.Thread:
        if self._peers is not None:
            with self._failing():
                self._begin_with(self._peers)
        return self._start(self._receive)

    def _begin_with(self, peers: Peers) -> None:
        if peers.following is not None:  # after a step that failed here, until the first rank has ended it
            peers.following.join()
        self.runs.learn(peers.vote(self.runs.has_recorded()))
        if not peers.leads:
            def follow() -> None:
                with self._failing():
                    peers.follow(self.turns)
            peers.following = self._start(follow)

    def _finish(self, receiver: threading.Thread) -> Any:
        with self._failing():
            receiver.join()
        receiver.join()
        for thread in self._threads:
            thread.join()
        self.visits.clear()  # each holds the Run
        if self._peers is not None and self._peers.leads:
            self._peers.end(self._reason() if self.turns.failed else None, self.runs.has_recorded())
        elif self._peers is not None and not self.turns.failed:
            self._peers.following.join()
        if self._peers is None or self.turns.failed:
            self.runs.learn(not self.turns.failed)
        if self._connection is not None:
            raise self._connection from (self._causes[0] if self._causes else None)
        if self._failures:
            first = min(self._failures)
            own = first.rank == self.channel.rank and self._causes
            if own and not isinstance(self._causes[0], Exception):
                raise self._causes[0]  # KeyboardInterrupt, SystemExit
            raise RuntimeError(f"the step failed on pipeline rank {first.rank}: {first.text}") from (
                self._causes[0] if own else None)
        self.channel.flush()
        self.gradients.add()
        outputs, random = self._outputs
        RandomState.set_process(random)
        return outputs

    # Threads.

    def _start(self, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name="shoal pipeline", daemon=True)
        thread.start()
        return thread

    def _start_visit(self, visit: Visit, target: Callable[[], None]) -> threading.Thread:
        def body() -> None:
            here.visit = visit
            with self._failing(), applied(self._settings), torch.autograd.set_multithreading_enabled(False):
                target()

        context = self._context.copy()
        thread = self._start(lambda: context.run(body))
        self._threads.append(thread)
        return thread

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Turns an exception into a failure of the step on all ranks."""
        try:
            yield
        except Ended:
            pass
        except BaseException as problem:
            self._causes.append(problem)
            self._leave(_Failure(time.time(), self.channel.rank, _text_of(problem)), None)

    def _reason(self) -> str:
        """Why the step failed on this rank."""
        return min(self._failures).text if self._connection is None else _text_of(self._connection)

    def _leave(self, failure: _Failure | None, outputs: Any) -> None:
        """Sends this rank's last message of the step. Later calls do nothing."""
        with self._posting:
            if self._left:
                return
            self._left = True
        if failure is not None:
            self._failures.append(failure)
            self.turns.fail()
        try:
            others = [to for to in range(self.channel.size) if to != self.channel.rank]
            if outputs is not None:
                value = self.pack(outputs)
                for to in others:
                    self.channel.send(to, _Head(RESULT, self.channel.rank), value)
                self._outputs = outputs
            # The message has no tensors: when it has arrived, the group's thread has released those of the step.
            for to in others:
                self.channel.send(to, _Head(LEAVE, self.channel.rank, detail=failure))
        except BaseException as problem:
            self._lose(problem)

    def _lose(self, problem: BaseException) -> None:
        """Ends the step on this rank after the process group has failed, which prevents messages to other ranks."""
        if self._connection is None:
            self._connection = problem
        self._left = True
        self.turns.fail()

    def _receive(self) -> None:
        waiting = set(range(self.channel.size)) - {self.channel.rank}
        try:
            for source in waiting:
                self.channel.expect(source)
            while waiting:
                parcel = self.channel.receive()
                if parcel.head.kind == LEAVE:
                    waiting.discard(parcel.head.source)
                else:
                    self.channel.expect(parcel.head.source)
                self._handle(parcel)
        except BaseException as problem:
            self._lose(problem)

    def _handle(self, parcel: Parcel) -> None:
        head: _Head = parcel.head
        if head.kind == LEAVE:
            if head.detail is not None:
                self._failures.append(head.detail)
                self.turns.fail()
            if head.detail is not None or head.source == 0:
                self._leave(None, None)
            return
        if head.kind == RESULT:
            self._outputs = parcel.open(self.modules)
            return
        visit = self.visits[head.microbatch]
        if head.kind == PHASE:
            self.turns.enter_phase(visit.microbatch, head.phase)
        elif head.kind == DONE:
            self.turns.finish(visit.microbatch)
        else:
            with self.turns.lock:
                visit.inbox.append(parcel)
                visit.microbatch.changed.notify_all()
            if self.channel.rank != 0 and head.microbatch not in self._serving:
                self._serving.add(head.microbatch)
                self._start_visit(visit, visit.serve)


def pause_hook(module: nn.Module, args: Any) -> None:
    """A forward pre-hook at which a more urgent microbatch may take its turn."""
    visit = current()
    if visit is not None:
        visit.run.turns.pause(visit.microbatch)
