"""One side of a case: an operator, what the source of the case does to it, and what happened.

A step is one call with everything around it, or one later registration. What happened in it is a dict of plain values,
so that one ``==`` compares two sides.
"""

import contextlib
import functools
import re
import threading
from collections.abc import Callable
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

# Under torch.device("meta") PyTorch shows what is in memory that nothing was written to.
_GARBAGE = re.compile(r"(?<=Cannot cast )tensor\(-?\d+\)")
_FRAMES = re.compile(r"Traceback of forward call that caused the error:.*|\nAt:\n(  [^\n]*\n)*", re.DOTALL)


def accelerated_custom_op(name: str, body: Callable[..., Any], **options: Any) -> Any:
    """An operator of torch.library.custom_op that is accelerated before anything else is registered for it."""
    definition = torch.library.custom_op(name, body, **options)
    dutyfree.accelerate(definition)
    return definition


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
        text = _GARBAGE.sub("tensor(N)", _FRAMES.sub("", super().text(value)))
        return re.sub(r"\bj\d+\b", "jN", text)

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
        fronts = [front for front in map(_front.front_of, definitions) if front is not None]
        for front in fronts:
            front.forget()  # the kernels that it knows hold the definition, and the definition holds it
        if any(front.boxes for front in fronts):
            dutyfree.restore(self.qualname)  # it is accelerated
        library: Any = custom_ops.OPDEF_TO_LIB.pop(self.qualname, None)
        if library is not None:
            library._destroy()
            library._op_defs.clear()  # else its finaliser makes the namespace anew
        simple_registry.singleton._data.pop(self.qualname, None)
        self.op = None  # type: ignore[assignment]
        for definition in filter(None, definitions):
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
