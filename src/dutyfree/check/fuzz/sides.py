"""Runs a case's source on both sides, step by step, and says where they differ.

A step is one call with everything around it, or one later registration. What happened in it is a dict of plain values,
so that one ``==`` compares the two sides.
"""

import contextlib
import functools
import gc
import itertools
import re
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._library import custom_ops, simple_registry
from torch._subclasses.fake_tensor import FakeTensorMode

import dutyfree
from dutyfree import _front
from dutyfree.check.fuzz.kit import tensors_in
from dutyfree.check.fuzz.transforms import through
from dutyfree.check.outcome import Arguments, Side, describe, members_of, thread_state, warned_as

Define = Callable[["FuzzSide"], Any]
Step = Callable[["FuzzSide"], None]
Happened = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])

_numbers = itertools.count()
_FRAMES = re.compile(r"Traceback of forward call that caused the error:.*|\nAt:\n(  [^\n]*\n)*", re.DOTALL)


class FuzzSide(Side):
    """One of the two operators of a case, and what happens to it."""

    def __init__(self, namespace: str, custom_op: Callable[..., Any]) -> None:
        super().__init__(namespace, "op", None)  # type: ignore[arg-type]
        self.custom_op = custom_op
        self.replaced: list[Any] = []
        # Functions of the source that later registrations use.
        self.other: Callable[..., Any]
        self.setup_context: Callable[..., Any]
        self.backward: Callable[..., Any]
        self._libraries: list[torch.library.Library] = []
        self.begin()

    def begin(self) -> None:
        """Forget what happened in the step before."""
        self.events: list[Any] = []
        self.inputs: list[Any] = []
        self.happened: Happened = {}
        self.value: Any = None
        self.counts: list[Any] = []
        self.depth = 0
        self._kept: list[Any] = []
        # What a body may close over although it is no argument: gradients must not reach it.
        self.captured = torch.nn.Parameter(torch.tensor(2.0))

    @functools.cached_property
    def fake_mode(self) -> FakeTensorMode:
        """The mode of this side's fake tensors."""
        return FakeTensorMode(allow_non_fake_inputs=True)

    def text(self, value: object) -> str:
        """As of any side, without what differs between any two calls.

        That is the Python frames that some errors list, of which a fast call has fewer, as it should, and the numbers
        that PyTorch counts ragged dimensions by.
        """
        return re.sub(r"\bj\d+\b", "jN", _FRAMES.sub("", super().text(value)))

    # What the source of a case calls.

    def register(self, body: Callable[..., Any], **options: Any) -> Any:
        """Make the operator of ``body``."""
        self.op = self.custom_op(self.qualname, body, **options)
        return self.op

    def recorded(self, function: F) -> F:
        """``function``, whose calls are written down with the thread state that they find."""
        name = function.__name__

        @functools.wraps(function)
        def recording(*args: Any, **kwargs: Any) -> Any:
            self.saw(name, Arguments(args, kwargs), state=thread_state())
            return function(*args, **kwargs)

        return recording  # type: ignore[return-value]

    def saw(self, what: str, *values: Any, state: Any = None) -> None:
        """Write down that something happened, with the values as they are now."""
        self.events.append((what, [describe(value, self, self.inputs) for value in values], state))

    def call(self, spelling: str, /, *args: Any, **kwargs: Any) -> None:
        """Call the operator and write down all that can be observed of it."""
        arguments = Arguments(args, kwargs)
        self._observe(lambda: self.spelled(spelling)(*args, **kwargs), arguments, self._foretold(spelling, arguments))

    def _foretold(self, spelling: str, arguments: Arguments) -> str | None:
        """The path that ``explain`` foretells; None for an operator of the reference."""
        if _front.front_of(self.op) is None:
            return None
        events = len(self.events)
        path = dutyfree.explain(self.spelled(spelling), *arguments.args, **arguments.kwargs).path
        return path if len(self.events) == events else f"{path}, and it ran something"

    def transformed(self, transform: str, spelling: str, /, *args: Any, **kwargs: Any) -> None:
        """As ``call``, under a functorch transform."""
        self._observe(lambda: through(transform, self.spelled(spelling), args, kwargs), Arguments(args, kwargs))

    def in_thread(self, run: Callable[[], None]) -> None:
        """Run something in a thread of its own."""
        errors: list[Exception] = []

        def catching() -> None:
            try:
                run()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=catching)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    def fake(self, tensor: Tensor) -> Tensor:
        """A fake tensor."""
        return self.fake_mode.from_tensor(tensor)

    def keep(self, result: list[Any]) -> list[Any]:
        """A list that the body returns and may change later: a caller must not get this very one."""
        self._kept.append(result)
        return result

    def once(self) -> bool:
        """Whether this is the outer one of a body's recursive calls."""
        self.depth += 1
        return self.depth == 1

    def differentiate(self, how: str) -> None:
        """Compute gradients of what the call returned, and write them down."""
        outputs = [tensor for tensor in tensors_in(self.value) if isinstance(tensor, Tensor) and tensor.requires_grad]
        inputs = [member for member in _unique(self.inputs) if isinstance(member, Tensor) and member.requires_grad]
        if not outputs or not inputs:
            return
        try:
            gradients = _differentiate(outputs, inputs, how)
        except Exception as error:
            self.happened["gradients"] = (type(error).__name__, self.text(error))
        else:
            self.happened["gradients"] = describe(gradients, self, self.inputs)

    def library(self, key: str, function: Callable[..., Any]) -> None:
        """Register ``function`` for a dispatch key through a Library of its own."""
        library = torch.library.Library(self.namespace, "IMPL")
        self._libraries.append(library)
        library.impl(self.name, function, key, allow_override=True)

    def drop_libraries(self) -> None:
        """Undo ``library``."""
        for library in self._libraries:
            library._destroy()
        self._libraries.clear()

    def redefine(self, define: Define) -> None:
        """Define the operator's name again.

        The old object is not called after that: the reference's reads freed memory then.
        """
        self.replaced.append(self.op)  # collected at the end of the case, not at a moment of chance
        define(self)

    # What runs a case.

    def _observe(self, run: Callable[[], Any], arguments: Arguments, foretold: str | None = None) -> None:
        inputs = self.inputs = list(members_of(arguments))
        value, raised = None, None
        before, front = thread_state(), _front.front_of(self.op)
        counted = front.counters() if front is not None else None
        try:
            value = run()
        except Exception as error:
            raised = (type(error).__name__, self.text(error), type(error.__cause__).__name__)
        after = thread_state()
        if front is not None and counted is not None:
            self.counts.append((counted, front.counters()))
            taken = [path for path, count in front.counters()[0].items() if count > counted[0].get(path, 0)]
            if foretold is not None and foretold not in taken:
                self.happened["explain"] = f"foretold {foretold}, but it went {taken}"
        self.value = value
        self.happened |= {
            "value": describe(value, self, inputs),
            "value is kept": any(member is kept for member in members_of(value) for kept in self._kept),
            "raised": raised,
            "inputs after": describe(arguments, self, inputs),
            "state kept": after == before or (before, after),
        }

    def run(self, step: Callable[["FuzzSide"], Any]) -> Happened:
        """Run one step; what happened in it."""
        self.begin()
        with contextlib.ExitStack() as restored, warned_as() as caught:
            # A body may leave the grad mode changed, and PyTorch some dispatch keys, after an error below a mode.
            restored.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
            restored.enter_context(
                torch._C._ForceDispatchKeyGuard(
                    torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
                )
            )
            try:
                step(self)
            except Exception as error:
                self.happened["step raised"] = (type(error).__name__, self.text(error))
        self.happened["events"] = self.events
        self.happened["warned"] = [(warning.category.__name__, self.text(warning.message)) for warning in caught]
        self.value, self.inputs = None, []
        return self.happened

    def close(self) -> None:
        """Remove the operator from PyTorch, so that a run of many cases does not grow."""
        self.drop_libraries()
        self.begin()
        definitions = [*self.replaced, self.op]
        self.replaced.clear()
        library: Any = custom_ops.OPDEF_TO_LIB.pop(self.qualname, None)
        if library is not None:
            library._destroy()
            library._op_defs.clear()  # else its finaliser makes the namespace anew
        simple_registry.singleton._data.pop(self.qualname, None)
        self.op = None  # type: ignore[assignment]
        for definition in filter(None, definitions):
            front = _front.front_of(definition)
            if front is not None:
                front.forget()  # the kernels that it knows hold the definition, and the definition holds it
            vars(definition).clear()
        custom_ops.OPDEFS.pop(self.qualname, None)
        vars(torch.ops).pop(self.namespace, None)
        if self.namespace in torch.ops._dir:
            torch.ops._dir.remove(self.namespace)


def _unique(members: list[Any]) -> list[Any]:
    return list({id(member): member for member in members}.values())


def _differentiate(outputs: list[Tensor], inputs: list[Tensor], how: str) -> Any:
    if how == "accumulate":
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs], inputs=inputs)
        return [tensor.grad for tensor in inputs]
    create_graph = how == "create graph"

    def grad() -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            outputs,
            inputs,
            [torch.ones_like(output) for output in outputs],
            allow_unused=True,
            create_graph=create_graph,
            retain_graph=create_graph or how == "retained",
        )

    first = grad()
    if how in ("twice", "retained"):
        return first, grad()
    again = [tensor for tensor in first if tensor is not None and tensor.requires_grad]
    if not create_graph or not again:
        return first
    second = torch.autograd.grad(again, inputs, [torch.ones_like(tensor) for tensor in again], allow_unused=True)
    return first, second


@dataclass
class Compared:
    """One step on both sides."""

    number: int
    reference: Happened
    fast: Happened
    ways: list[Any] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return self.reference == self.fast


@contextlib.contextmanager
def both_sides() -> Iterator[tuple[FuzzSide, FuzzSide]]:
    """A side for custom_op and one for fast_custom_op, in namespaces of equal length that nothing else uses."""
    number = next(_numbers)
    kernels: list[Any] = []
    sides = (
        FuzzSide(f"fuzz_ref_{number:08}", torch.library.custom_op),
        FuzzSide(f"fuzz_our_{number:08}", dutyfree.fast_custom_op),
    )
    try:
        with _noting_kernels(kernels):
            yield sides
    finally:
        for side in sides:
            side.close()
        _empty(kernels)


@contextlib.contextmanager
def _noting_kernels(kernels: list[Any]) -> Iterator[None]:
    """Collect every function that is registered for a dispatch key inside the block.

    ``Library.impl`` is another function for the whole process meanwhile, so nothing else should register beside a case.
    """
    library: Any = torch.library.Library
    impl = library.impl

    @functools.wraps(impl)
    def noting(self: Any, name: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        kernels.append(function)
        return impl(self, name, function, *args, **kwargs)

    library.impl = noting
    try:
        yield
    finally:
        library.impl = impl


def _empty(kernels: list[Any]) -> None:
    """Take away what the functions of a destroyed library close over.

    PyTorch 2.13 never lets go of such a function itself, and it holds the CustomOpDef, the autograd.Function and more:
    110 KB for the two operators of a case, a gigabyte in a run of 100,000 calls.
    """
    for kernel in kernels:
        for cell in getattr(kernel, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # it is empty already
                del cell.cell_contents


def compare(define: Define, steps: list[Step]) -> Generator[Compared, None, None]:
    """Define the operator and take the steps, each on both sides. Number -1 is the definition."""
    with both_sides() as sides, _no_vmap_warning():
        for number, step in enumerate([define, *steps], start=-1):
            reference, fast = (side.run(step) for side in sides)
            yield Compared(number, reference, fast, sides[1].counts)
            if any("step raised" in happened for happened in (reference, fast)) and number == -1:
                return  # there is no operator to call


@contextlib.contextmanager
def _no_vmap_warning() -> Iterator[None]:
    """Turn off the one warning that goes past Python's, straight to the terminal.

    PyTorch does not tell whether it is on. It is unless someone turns it off.
    """
    enable: Any = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    enable(False)
    try:
        yield
    finally:
        enable(True)


def differences(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    """Where two nested values differ, a line each."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in [*expected, *(name for name in actual if name not in expected)]:
            yield from differences(expected.get(name, "nothing"), actual.get(name, "nothing"), f"{path}[{name!r}]")
    elif (
        isinstance(expected, (list, tuple))
        and isinstance(actual, (list, tuple))
        and len(expected) == len(actual)
        and type(expected) is type(actual)
    ):
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif isinstance(expected, list) and isinstance(actual, list):
        for index, (one, other) in enumerate(itertools.zip_longest(expected, actual, fillvalue="nothing")):
            yield from differences(one, other, f"{path}[{index}]")
    elif expected != actual:
        yield f"{path}\n    custom_op:      {expected}\n    fast_custom_op: {actual}"


def main(define: Define, steps: list[Step]) -> None:
    """What a saved script does: prints where the two sides differ, and exits with 1 if they do."""
    differ = False
    for compared in compare(define, steps):
        if not compared.same:
            differ = True
            print("the definition" if compared.number < 0 else f"step_{compared.number}")
            for line in differences(compared.reference, compared.fast):
                print(f"  {line}")
    print("They differ." if differ else "No difference.")
    gc.collect()  # so that what crashes at the end crashes here
    sys.exit(differ)
