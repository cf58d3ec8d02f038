"""Nodes of fast operators in the hands of others: profilers, compilers, checkpointing, threads."""

import copy
import gc
import json
import pickle
import re
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor

import dutyfree
from gradients_alike import (
    alike,
    done,
    done_alike,
    needing_grad,
    plain,
    product,
    products,
    step,
    steps,
    with_exponential,
    with_formula,
    with_product,
    with_products,
)
from parity import Pair, Side, pair_of, unique_namespaces

CPU = [torch.profiler.ProfilerActivity.CPU]


# Profilers


def events_of(side: Side, run: Callable[[Side], Any], **options: Any) -> Any:
    with torch.profiler.profile(activities=CPU, **options) as profiler:
        run(side)
    events = [event for event in profiler.events() if not event.name.startswith(("Profiler", "Unrecognized"))]
    first = min((event.sequence_nr for event in events if event.sequence_nr >= 0), default=0)

    def parents(event: Any) -> list[str]:
        return [] if event.cpu_parent is None else [side.text(event.cpu_parent.name), *parents(event.cpu_parent)]

    return [
        (
            side.text(event.name),
            parents(event),
            event.sequence_nr - first if event.sequence_nr >= 0 else None,
            event.scope,
            str(event.input_shapes),
        )
        for event in sorted(events, key=lambda event: (event.time_range.start, -event.time_range.end))
    ]


@pytest.mark.parametrize("shapes", [False, True])
def test_the_profiler_shows_the_same_events(shapes: bool) -> None:
    for pair, run in ((with_product(), step), (with_products(), steps)):
        outcome = alike(pair, lambda side, run=run: events_of(side, run, record_shapes=shapes))
        assert "NAMESPACE::op" in str(outcome)
        assert "GeneratedBackwardFor_NAMESPACE_op_defaultBackward" in str(outcome)


def test_the_legacy_profiler_and_emit_itt_see_the_same() -> None:
    def legacy(side: Side) -> Any:
        with torch.autograd.profiler.profile(use_kineto=False) as profiler:
            step(side)
        return sorted(Counter(side.text(event.name) for event in profiler.function_events).items())

    alike(with_product(), legacy)


# torch.compile and compiled autograd


def compiled_alike(pair: Pair, function: Callable[..., Any], *shapes: int, **options: Any) -> Any:
    def run(side: Side) -> Any:
        torch._dynamo.reset()
        tensors = [needing_grad(size) for size in shapes]
        compiled = torch.compile(lambda *args: function(side.op, *args), backend="aot_eager", fullgraph=True, **options)
        result = compiled(*tensors)
        result.sum().backward()
        return result.detach(), [tensor.grad for tensor in tensors]

    expected, actual = (done(run, side) for side in pair.sides())
    assert actual == expected
    assert actual[0] != "raised", actual
    return actual


def test_compiled_functions_differentiate_through_the_operator() -> None:
    compiled_alike(with_product(), lambda op, x, y: op(x, y, 3.0).sin() + op(x, x), 2, 2)
    compiled_alike(with_products(), lambda op, x, y: op(x, [y, x])[0] + op(x, [x])[0].sin(), 2, 2)


def test_an_eager_node_may_lie_behind_a_compiled_function() -> None:
    for pair in (with_product(), with_exponential(), with_products()):

        def run(side: Side, pair: Pair = pair) -> Any:
            torch._dynamo.reset()
            x = needing_grad()
            op = side.op
            if "others" in str(op._opoverload._schema):
                middle = op(x, [x, x])[1]
            else:
                middle = op(x, x) if "scale" in str(op._opoverload._schema) else op(x)
            torch.compile(torch.sin, backend="aot_eager")(middle).sum().backward()
            return x.grad

        alike(pair, run)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_autograd_takes_the_node_of_an_eager_call(fullgraph: bool) -> None:
    from torch._dynamo import compiled_autograd

    graphs: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module.print_readable(print_output=False))
        return module

    def run(side: Side, forward_and_backward: Callable[[Side], Any]) -> Any:
        torch._dynamo.reset()
        compiled_autograd.reset()
        graphs.clear()
        with compiled_autograd._enable(torch.compile(backend=backend, fullgraph=fullgraph)):
            found = [forward_and_backward(side) for _ in range(2)]
        return found, len(graphs), [target_lines(graph, side) for graph in graphs]

    def exponential_step(side: Side) -> Any:
        x = needing_grad()
        side.op(x).sum().backward()
        return x.grad

    alike(with_product(), lambda side: run(side, step))
    alike(with_exponential(), lambda side: run(side, exponential_step))
    alike(with_products(), lambda side: run(side, steps))

    def refused(side: Side, forward_and_backward: Callable[[Side], Any]) -> str:
        with pytest.raises(Exception, match="no autograd formula was registered") as error:
            run(side, forward_and_backward)
        return re.sub(r"eval_with_key>\.\d+", "", side.text(error.value))

    alike(pair_of(product), lambda side: refused(side, step))
    alike(pair_of(products), lambda side: refused(side, steps))


def target_lines(graph: str, side: Side) -> list[str]:
    """The operations of a printed graph, without the source lines that it names."""
    lines = (line.split("#")[0].strip() for line in graph.splitlines())
    return [side.text(line) for line in lines if " = " in line]


def test_compiled_autograd_inside_a_compiled_function_takes_the_node() -> None:
    def run(side: Side, forward_and_backward: Callable[[Side], Any]) -> Any:
        torch._dynamo.reset()
        with torch._dynamo.config.patch(compiled_autograd=True):

            @torch.compile(backend="aot_eager")
            def train(loss: Tensor) -> None:
                loss.backward()

            x, y = needing_grad(), needing_grad()
            train(forward_and_backward(side, x, y))  # type: ignore[call-arg]
            return x.grad, y.grad

    alike(with_product(), lambda side: run(side, lambda side, x, y: side.op(x, y).sum()))  # type: ignore[misc]
    alike(with_products(), lambda side: run(side, lambda side, x, y: side.op(x, [y])[0].sum()))  # type: ignore[misc]


def test_traced_and_exported_functions_hold_the_operator() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def traced(side: Side) -> Any:
        def gradient(x: Tensor) -> Tensor:
            y = x.detach().requires_grad_()
            return torch.autograd.grad(side.op(y, y).sum(), y)[0]

        return str(make_fx(gradient)(torch.ones(2)).code)

    pair = with_product()
    expected, actual = (done(traced, side) for side in pair.sides())
    assert actual == expected
    for side in pair.sides():
        found = torch.jit.trace(lambda x, op=side.op: op(x, x), (needing_grad(),), check_trace=False)
        assert found(torch.ones(2)).tolist() == [2.0, 2.0]


# Checkpointing


def test_selective_checkpointing_saves_the_operators_result() -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    seen: list[Any] = []

    def run(side: Side, policy: CheckpointPolicy) -> Any:
        seen.clear()

        def decide(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            seen.append((ctx.is_recompute, side.text(op)))
            return policy if op is side.overload else CheckpointPolicy.PREFER_RECOMPUTE

        x, y = needing_grad(), needing_grad()
        torch.utils.checkpoint.checkpoint(
            lambda a, b: side.op(a, b).sin(),
            x,
            y,
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(decide),
        ).sum().backward()
        return seen, x.grad, y.grad

    for policy in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE):
        alike(with_product(), lambda side, policy=policy: run(side, policy), paths={"pytorch", "direct"})


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_over_lists(reentrant: bool) -> None:
    def run(side: Side) -> Any:
        x, y = needing_grad(), needing_grad()
        torch.utils.checkpoint.checkpoint(
            lambda a, b: side.op(a, [b, a])[0].sin() + side.op(a, [b])[0], x, y, use_reentrant=reentrant
        ).sum().backward()
        return x.grad, y.grad

    alike(with_products(), run, paths={"autograd", "direct"} if reentrant else None)


# Copies


def test_results_with_a_node_are_copied_and_pickled_as_in_pytorch() -> None:
    def run(side: Side, change: Callable[[Any], Any]) -> Any:
        return change(side.op(needing_grad(), torch.ones(2)))

    pair = with_product()
    for change in (copy.copy, copy.deepcopy, pickle.dumps):
        done_alike(pair, lambda side, change=change: type(run(side, change)).__name__)
        done_alike(pair, lambda side, change=change: run(side, lambda result: change(result.grad_fn)))  # type: ignore[misc]


# Other kernels, tensors and modes


def test_another_autograd_kernel_takes_over_at_once() -> None:
    def run(side: Side) -> Any:
        found = [step(side)]
        with torch.library._scoped_library(side.namespace, "IMPL") as library:
            library.impl("op", lambda x, y, scale=2.0: x + y, "AutogradCPU")
            found.append(step(side))
        found.append(step(side))
        return found

    alike(with_product(), run, paths={"autograd", "pytorch"})


def test_saved_tensors_that_are_subclasses_parameters_and_views_are_kept() -> None:
    def run(side: Side, make: Callable[[], Tensor]) -> Any:
        x = make()
        result = side.op(x, x)
        saved = result.grad_fn.saved_tensors
        return [type(tensor).__name__ for tensor in saved], saved[0] is x, saved[1] is x, result

    alike(with_product(), lambda side: run(side, lambda: torch.nn.Parameter(torch.ones(2))))
    alike(with_product(), lambda side: run(side, lambda: torch.nn.Buffer(torch.ones(2)).requires_grad_()))
    alike(with_product(), lambda side: run(side, lambda: needing_grad(4)[::2]))
    alike(with_product(), lambda side: run(side, lambda: needing_grad(2, 2).t()))


def test_complex_conjugated_and_low_precision_tensors_have_the_same_gradients() -> None:
    def run(side: Side, change: Callable[[Tensor], Tensor]) -> Any:
        x = needing_grad()
        result = side.op(change(x), change(x))
        (result.real if result.is_complex() else result).float().sum().backward()
        return result, x.grad

    for change in (
        lambda x: x * (1 + 2j),
        lambda x: (x * (1 + 2j)).conj(),
        lambda x: (x * (1 + 2j)).conj().imag,
        lambda x: x.bfloat16(),
        lambda x: x.half(),
        lambda x: x.expand(3, 2),
    ):
        # The dispatcher, not the autograd kernel, makes a conjugated view an ordinary tensor.
        expected, actual = (
            done(lambda side, change=change: run(side, change), side) for side in with_product().sides()
        )
        assert actual == expected


def test_autocast_stays_on_in_body_and_formula_as_in_pytorch() -> None:
    def backward(ctx: Any, grad: Tensor) -> Any:
        return (grad * 2 @ torch.ones(2, 2)), None, None

    def run(side: Side) -> Any:
        x = needing_grad(2, 2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = side.op(x, torch.ones(2, 2))
            result.sum().backward()
        return result, x.grad

    alike(with_formula(lambda_body, backward), run)


def lambda_body(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
    return x @ y


def test_modes_that_are_active_in_backward_only_see_the_formula() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __init__(self, side: Side, seen: list[str]) -> None:
            super().__init__()
            self.side, self.seen = side, seen

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(self.side.text(func))
            return func(*args, **(kwargs or {}))

    def run(side: Side) -> Any:
        seen: list[str] = []
        result = side.op(needing_grad(), needing_grad(), 3.0)
        with Log(side, seen):
            result.sum().backward()
        return seen

    alike(with_product(), run)


def test_execution_traces_hold_the_same_nodes(tmp_path: Any) -> None:
    def run(side: Side, forward_and_backward: Callable[[Side], Any]) -> Any:
        observer = torch.profiler.ExecutionTraceObserver()
        observer.register_callback(str(tmp_path / "trace.json"))
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], execution_trace_observer=observer
        ):
            forward_and_backward(side)
        nodes = json.loads((tmp_path / "trace.json").read_text())["nodes"]
        return [
            (side.text(node["name"]), node["inputs"]["shapes"], node["inputs"]["types"], node["outputs"]["types"])
            for node in nodes
        ]

    alike(with_product(), lambda side: run(side, step))
    alike(with_products(), lambda side: run(side, steps))


def test_mutation_of_saved_tensors_may_be_allowed() -> None:
    def run(side: Side) -> Any:
        x, y = needing_grad(), torch.ones(2)
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            result = side.op(x, y)
            y.mul_(5)
            result.sum().backward()
        return x.grad

    done_alike(with_product(), run)


def test_meta_and_sparse_tensors_record_as_in_pytorch() -> None:
    pair = with_product()
    meta = torch.ones(2, device="meta", requires_grad=True)
    done_alike(pair, lambda side: [plain(side.op(meta, meta).grad_fn, side), side.op(meta, meta).shape])

    def sparse(side: Side) -> Any:
        x = torch.eye(2).to_sparse().requires_grad_()
        result = side.op(x, x)
        torch.sparse.sum(result).backward()
        return result.detach().to_dense(), plain(result.grad_fn, side), x.grad.to_dense()

    done_alike(pair, sparse)


def test_subclasses_with_torch_function_record_as_in_pytorch() -> None:
    class Bare(Tensor):
        pass

    def run(side: Side) -> Any:
        x = torch.ones(2).as_subclass(Bare).requires_grad_()
        result = side.op(x, x)
        result.sum().backward()
        return type(result).__name__, type(x.grad).__name__, plain(result.grad_fn, side), x.grad.tolist()

    done_alike(with_product(), run)


def test_an_operator_lives_as_long_with_a_node_as_in_pytorch() -> None:
    def run(register: Any, namespace: str) -> Any:
        op = register(f"{namespace}::op", product, mutates_args=())
        op.register_autograd(lambda ctx, grad: (grad * 5, None, None))
        x = needing_grad()
        result = op(x, torch.ones(2), 3.0)
        reference = weakref.ref(op)
        del op
        gc.collect()
        found: list[Any] = [reference() is None]
        result.sum().backward()
        found.append(x.grad.tolist())  # type: ignore[union-attr]
        del result
        gc.collect()
        return [*found, reference() is None]

    reference, ours = unique_namespaces()
    assert run(dutyfree.fast_custom_op, ours) == run(torch.library.custom_op, reference)


def test_a_redefined_operator_leaves_older_nodes_their_formula() -> None:
    def run(register: Any, namespace: str) -> Any:
        x = needing_grad()
        results = []
        for factor in (5, 7):
            op = register(f"{namespace}::op", product, mutates_args=())
            op.register_autograd(lambda ctx, grad, factor=factor: (grad * factor, None, None))
            results.append(op(x, torch.ones(2), 3.0))
        return [torch.autograd.grad(result.sum(), x)[0].tolist() for result in results]

    reference, ours = unique_namespaces()
    assert run(dutyfree.fast_custom_op, ours) == run(torch.library.custom_op, reference)


def test_batched_calls_record_as_in_pytorch() -> None:
    def run(side: Side) -> Any:
        x = needing_grad(3, 2)
        result = torch.vmap(lambda row: side.op(row, row * 2))(x)
        result.sin().sum().backward()
        return result, x.grad

    pair = with_product()
    done_alike(pair, run)
    pair.each(lambda op: op.register_vmap(lambda info, dims, x, y: (x * y * 2, 0)))
    done_alike(pair, run)


def test_an_apply_that_someone_put_on_function_sees_every_call() -> None:
    seen: list[str] = []
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(cls.__name__.rpartition("_")[2])
        return original.__func__(cls, *args, **kwargs)

    pair = pair_of(lambda x: x * 2, schema="(Tensor x) -> Tensor")
    x = torch.ones(2, requires_grad=True)
    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        for side in pair.sides():
            side.op(x)
        assert dutyfree.explain(pair.fast.op, x).path == "pytorch"
    finally:
        torch.autograd.Function.apply = original
    assert seen == ["default", "default"]
    assert dutyfree.explain(pair.fast.op, x).path == "autograd"


def test_an_apply_that_someone_put_on_nodes_sees_every_backward() -> None:
    seen: list[int] = []
    nodes = torch.autograd.function.BackwardCFunction
    original = nodes.apply

    def apply(self: Any, *args: Any) -> Any:
        seen.append(len(args))
        return original(self, *args)

    pair = pair_of(lambda x: x * 2, schema="(Tensor x) -> Tensor")
    pair.each(lambda op: op.register_autograd(lambda ctx, grad: grad * 2))
    nodes.apply = apply
    try:
        for side in pair.sides():
            x = torch.ones(2, requires_grad=True)
            side.op(x).sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [2.0, 2.0]
    finally:
        nodes.apply = original
    assert seen == [1, 1]


def test_a_class_derived_from_the_function_applies_itself() -> None:
    pair = pair_of(lambda x: x * 2, schema="(Tensor x) -> Tensor")
    for side in pair.sides():
        x = torch.ones(2, requires_grad=True)
        node: Any = type(side.op(x).grad_fn)
        functions = {
            "forward": staticmethod(lambda ctx, x: x * 2),
            "backward": staticmethod(lambda ctx, grad: grad * 5),
        }
        derived: Any = type("Derived", (node._forward_cls,), functions)
        derived.apply(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [5.0, 5.0]
