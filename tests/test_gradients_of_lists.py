"""Gradients of operators with lists of tensors, which PyTorch takes apart for its autograd.Function."""

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from gradients_alike import alike, needing_grad, plain, records, refused, with_formula
from isolated import run_isolated
from parity import Pair, Side, call, check, pair_of


def total(x: Tensor, others: list[Tensor], scale: float = 2.0) -> Tensor:
    result = x * scale
    for other in others:
        result = result + other
    return result


def sparse_total(x: Tensor, others: list[Tensor | None], more: list[Tensor]) -> Tensor:
    return total(x, [other for other in [*others, *more] if other is not None])


def listed(x: Tensor, count: int) -> list[Tensor]:
    return [x * index for index in range(count)]


def grouped(first: list[Tensor], x: Tensor, second: list[Tensor]) -> tuple[list[Tensor], Tensor, list[Tensor], int]:
    return [t * 2 for t in first], x * 3, [(t > 1).long() for t in second], 4


def total_with_formula() -> Pair:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.count = len(inputs[1])
        ctx.scale = inputs[2]
        ctx.save_for_backward(inputs[0], *inputs[1], output)

    def backward(ctx: Any, grad: Tensor) -> Any:
        x, *_ = ctx.saved_tensors
        # As many gradients as inputs were passed: a default that is left out has none beside a list.
        gradients = grad * ctx.scale, [grad * (index + x) for index in range(ctx.count)], None
        return gradients[: len(ctx.needs_input_grad)]

    return with_formula(total, backward, setup_context)


def test_the_node_of_a_call_with_lists_is_custom_ops() -> None:
    def node(side: Side) -> Any:
        x, y = needing_grad(), needing_grad() * 1
        found = side.op(x, [y, torch.ones(2), x], 3.0).grad_fn
        return {
            "name": (found.name(), type(found).__name__),
            "next": [None if n is None else (type(n).__name__, index) for n, index in found.next_functions],
            "needs": found.needs_input_grad,
            "saved": found.saved_tensors,
            "attributes": sorted(vars(found)),
            "sizes": str(found._pt_metadata.input_spec),
            "output": str(found._pt_metadata.output_spec),
            "tuple": found._pt_metadata.result_is_tuple,
        }

    alike(total_with_formula(), node)
    alike(pair_of(total), node)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("scale", [(), (2.0,), (3.0,)], ids=["omitted", "equal", "other"])
def test_each_tensor_of_a_list_gets_its_gradient(count: int, scale: tuple[float, ...]) -> None:
    def run(side: Side) -> Any:
        x, others = needing_grad(), [needing_grad() for _ in range(count)]
        result = side.op(x, others, *scale)
        result.sum().backward()
        return result, x.grad, [other.grad for other in others]

    alike(total_with_formula(), run)


def test_only_lists_that_hold_nothing_but_tensors_are_taken_apart() -> None:
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append((ctx.needs_input_grad, plain(inputs)))

    def backward(ctx: Any, grad: Tensor) -> Any:
        needed = ctx.needs_input_grad
        seen.append(needed)
        return (grad, *([grad] * len(n) if isinstance(n, list) else None for n in needed[1:]))

    pair = with_formula(sparse_total, backward, setup_context)
    y, plain_one = needing_grad(), torch.ones(2)
    for others, more in (
        ([y, None], []),
        ([None], [y]),
        ([None, None], [plain_one, y]),
        ([y, y], [plain_one]),
        ([], []),
        ([plain_one], []),
    ):
        for needs in (True, False):

            def run(side: Side, others: Any = others, more: Any = more, needs: bool = needs) -> Any:
                seen.clear()
                y.grad = None
                x = torch.ones(2).requires_grad_(needs)
                result = side.op(x, others, more)
                if result.requires_grad:
                    result.sum().backward()
                return result, seen, x.grad, y.grad

            x = torch.ones(2).requires_grad_(needs)
            check(pair, lambda x=x, others=others, more=more: call(x, others, more), reason=None)  # type: ignore[misc]
            taken = "autograd" if records(pair, x, others, more) else "direct"
            alike(pair, run, paths={taken})


def test_a_list_of_numbers_stays_an_input_of_its_own() -> None:
    def numbers(x: Tensor, sizes: list[int], tensors: list[Tensor], weights: list[float]) -> Tensor:
        return x * sum(sizes)

    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append((ctx.needs_input_grad, plain(inputs)))

    def run(side: Side) -> Any:
        found = []
        for sizes, weights in (([1, 2], [1.0]), ([], []), ([3], [])):
            seen.clear()
            try:
                side.op(needing_grad(), sizes, [torch.ones(1)], weights).sum().backward()
            except RuntimeError as error:
                found.append(side.text(error))
            found.append(list(seen))
        return found

    for gradients in ((None, [None], None), ([], [None], []), ([None], [None], None), ([None, None], [None], [None])):

        def backward(ctx: Any, grad: Tensor, gradients: Any = gradients) -> Any:
            seen.append(ctx.needs_input_grad)
            return grad, *gradients

        alike(with_formula(numbers, backward, setup_context), run)


class _List(list):  # type: ignore[type-arg]
    pass


class _Tuple(tuple):  # type: ignore[type-arg]
    __slots__ = ()


@pytest.mark.parametrize(
    "gradients",
    [
        lambda g: (g, [g, g], None),
        lambda g: (g, [g, None], None),
        lambda g: (g, [None, None], None),
        lambda g: (g, None, None),
        lambda g: (g, g, None),
        lambda g: (g, [g], None),
        lambda g: (g, [g, g, g], None),
        lambda g: (g, [], None),
        lambda g: (g, (g, g), None),
        lambda g: (g, [g, g]),
        lambda g: (g, [g, g], None, None),
        lambda g: (g, [g, 3], None),
        lambda g: (g, [g, [g]], None),
        lambda g: (g, [[g, g]], None),
        lambda g: (g, _List([g, g]), None),
        lambda g: (g, _Tuple((g, g)), None),
        lambda g: _Tuple((g, [g, g], None)),
        lambda g: [g, [g, g], None],
        lambda g: ([g], [g, g], None),
        lambda g: ([], [g, g], None),
        lambda g: ([3], [g, g], None),
        lambda g: ((g,), [g, g], None),
        lambda g: ((), [g, g], None),
        lambda g: (_List([g]), [g, g], None),
        lambda g: ({"x": g}, [g, g], None),
        lambda g: (g, {"a": g, "b": g}, None),
        lambda g: g,
        lambda g: None,
        lambda g: (),
        lambda g: (3.0, [g, g], None),
        lambda g: (None, [g, "text"], None),
        lambda g: (g, [g, torch.ones(3)], None),
        lambda g: (g, [g, g], g),
        lambda g: (g, [g, g], [g]),
        lambda g: (g, [g, g], []),
        lambda g: (g, [g.double(), g.long()], None),
    ],
)
def test_whatever_backward_returns_is_taken_or_refused_alike_with_lists(gradients: Callable[[Tensor], Any]) -> None:
    pair = with_formula(total, lambda ctx, grad: gradients(grad))

    def run(side: Side, *scale: float) -> Any:
        x, y, z = needing_grad(), needing_grad(), needing_grad()
        result = side.op(x, [y, z], *scale)
        try:
            result.sum().backward()
        except Exception as error:
            return type(error).__name__, side.text(error), result.grad_fn.needs_input_grad
        return x.grad, y.grad, z.grad, result.grad_fn.needs_input_grad

    alike(pair, lambda side: run(side, 3.0))
    alike(pair, run)


@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_an_operator_that_returns_a_list_gets_a_list_of_gradients(count: int) -> None:
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append((type(output).__name__, len(output), inputs[1]))
        ctx.save_for_backward(*output)

    def backward(ctx: Any, grads: Any) -> Any:
        seen.append(plain(grads))
        saved = ctx.saved_tensors
        return sum(g * s for g, s in zip(grads, saved, strict=True)), None

    def run(side: Side) -> Any:
        seen.clear()
        x = needing_grad()
        results = side.op(x, count)
        kinds = type(results).__name__, [result.grad_fn is results[0].grad_fn for result in results]
        numbers = [result.output_nr for result in results]
        if results:
            results[-1].sum().backward()
        return results, kinds, numbers, seen, x.grad

    alike(with_formula(listed, backward, setup_context), run)
    alike(pair_of(listed), lambda side: side.op(needing_grad(), count))


def test_a_list_and_more_as_results_have_gradients_of_the_same_structure() -> None:
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append((plain(inputs), plain(output), ctx.needs_input_grad))
        ctx.mark_non_differentiable(*output[2])

    def backward(ctx: Any, *grads: Any) -> Any:
        seen.append((plain(grads), ctx.needs_input_grad))
        return [g * 2 for g in grads[0]], grads[1] * 3, [None] * len(grads[2])

    def run(side: Side) -> Any:
        found = []
        for first, second in ((1, 1), (2, 0), (0, 2)):
            seen.clear()
            x, many = needing_grad(), [needing_grad() for _ in range(first)]
            results = side.op(many, x, [needing_grad() for _ in range(second)])
            (results[1].sum() + sum(result.sum() for result in results[0])).backward()
            found.append((results, list(seen), x.grad, [t.grad for t in many]))
        return found

    alike(with_formula(grouped, backward, setup_context), run)
    alike(with_formula(grouped, backward), run)


def test_gradients_of_unused_list_outputs_may_stay_none() -> None:
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, grads: Any) -> Any:
        seen.append(plain(grads))
        return next(g for g in grads if g is not None), None

    def run(side: Side) -> Any:
        seen.clear()
        x = needing_grad()
        side.op(x, 3)[1].sum().backward()
        return seen, x.grad

    alike(with_formula(listed, backward, setup_context), run)


def test_setup_context_may_change_its_inputs_and_the_output() -> None:
    def body(x: Tensor, others: list[Tensor], sizes: list[int]) -> list[Tensor]:
        results = [x * 2, *[other * 2 for other in others]]
        others.clear()
        sizes.append(9)
        return results

    def change(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.before = plain(inputs)
        inputs[1].clear()
        inputs[2].append(5)
        output.append(torch.ones(1))

    def shorten(ctx: Any, inputs: Any, output: Any) -> None:
        output.pop()

    def replace(ctx: Any, inputs: Any, output: Any) -> None:
        output[0] = inputs[0]
        output[1] = torch.zeros(2)

    def spoil(ctx: Any, inputs: Any, output: Any) -> None:
        output[0] = 3

    def run(side: Side) -> Any:
        x, others, sizes = needing_grad(), [needing_grad()], [1]
        results = side.op(x, others, sizes)
        found = [results, len(others), sizes, vars(results[0].grad_fn).get("before")]
        results[0].sum().backward()
        return found, x.grad, others[0].grad

    for setup in (change, shorten, replace, spoil):
        pair = with_formula(body, lambda ctx, grads: (grads[0], list(grads[1:2]) or [None], None), setup)
        alike(pair, run, may_raise=setup is spoil)


def test_pytorchs_own_attribute_of_the_context_may_not_be_set() -> None:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx._pt_metadata = 3

    pair = with_formula(total, lambda ctx, grad: grad, setup_context)
    assert "_pt_metadata" in refused(pair, lambda side: side.op(needing_grad(), []))

    def drop(ctx: Any, grad: Tensor) -> Any:
        found = ctx._pt_metadata
        del ctx._pt_metadata
        return grad, [None] * (found.input_spec.num_leaves - 2)

    def run(side: Side) -> Any:
        x = needing_grad()
        result = side.op(x, [torch.ones(2)])
        result.sum().backward(retain_graph=True)
        return x.grad, vars(result.grad_fn)

    alike(with_formula(total, drop), run)

    def again(side: Side, value: Any) -> Any:
        result = side.op(needing_grad(), [torch.ones(2)])
        if value is None:
            del result.grad_fn._pt_metadata
        else:
            result.grad_fn._pt_metadata = value
        result.sum().backward()

    refused(total_with_formula(), lambda side: again(side, None))
    refused(total_with_formula(), lambda side: again(side, 3))


def test_without_a_formula_backward_raises_the_same() -> None:
    def run(side: Side) -> Any:
        result = side.op(needing_grad(), [needing_grad()])
        try:
            result.sum().backward()
        except RuntimeError as error:
            return side.text(error), result.grad_fn.needs_input_grad, sorted(vars(result.grad_fn))

    alike(pair_of(total), run)
    refused(pair_of(listed), lambda side: side.op(needing_grad(), 2)[0].sum().backward())


def test_exceptions_leave_the_node_as_it_was() -> None:
    def backward(ctx: Any, grad: Tensor) -> Any:
        ctx.needs_input_grad = 3
        raise KeyError("backward")

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise KeyError("setup_context")

    def run(side: Side) -> Any:
        result = side.op(needing_grad(), [needing_grad()])
        try:
            result.sum().backward()
        except KeyError as error:
            return str(error), result.grad_fn.needs_input_grad

    alike(with_formula(total, backward), run)
    refused(with_formula(total, backward, setup_context), run)


def test_results_that_alias_or_have_a_wrong_kind_are_refused_alike() -> None:
    def wrong(x: Tensor, others: list[Tensor], kind: str) -> list[Tensor]:
        y = x * 1
        values = {"input": [x], "element": [others[0]], "view": [others[0][:1]], "twice": [y, y], "tensor": y}
        values |= {"tuple": (y, x * 2), "none": [y, None], "number": [3], "nothing": None, "empty": []}
        values |= {"nested": [[y]], "subclass": _List([y]), "alone": 3}
        return values[kind]  # type: ignore[return-value]

    pair = with_formula(wrong, lambda ctx, grads: (grads[0], [None], None), lambda ctx, inputs, output: None)
    for kind in (
        *("input", "element", "view", "twice", "tensor", "tuple", "none", "number", "nothing", "empty", "nested"),
        *("subclass", "alone"),
    ):
        alike(pair, lambda side, kind=kind: side.op(needing_grad(), [torch.ones(2)], kind), may_raise=True)


def test_an_operator_that_writes_into_a_list_records_nothing() -> None:
    def fill_(targets: list[Tensor], x: Tensor) -> None:
        for target in targets:
            target.copy_(x)

    def fill_and_return_(targets: list[Tensor], x: Tensor) -> Tensor:
        fill_(targets, x)
        return x * 2

    for body in (fill_, fill_and_return_):
        pair = pair_of(body, mutates_args={"targets"}, record=False)

        def run(side: Side) -> Any:
            targets = [torch.ones(2), torch.ones(2)]
            result = side.op(targets, needing_grad())
            return result, targets, [target._version for target in targets]

        alike(pair, run)
        alike(pair, lambda side: side.op([needing_grad() * 1], torch.ones(2)))
        alike(pair, lambda side: side.op([needing_grad()], needing_grad()))


def test_gradcheck_double_backward_and_hooks_work_with_lists() -> None:
    def square(tensors: list[Tensor], x: Tensor) -> list[Tensor]:
        return [t * t * x for t in tensors]

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[0], inputs[1])

    def backward(ctx: Any, grads: Any) -> Any:
        *tensors, x = ctx.saved_tensors
        pairs = list(zip(grads, tensors, strict=True))
        return [2 * g * t * x for g, t in pairs], sum(g * t * t for g, t in pairs)

    pair = with_formula(square, backward, setup_context)
    a, b, c = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    alike(pair, lambda side: torch.autograd.gradcheck(lambda a, b, c: tuple(side.op([a, b], c)), (a, b, c)))
    alike(pair, lambda side: torch.autograd.gradgradcheck(lambda a, b, c: tuple(side.op([a, b], c)), (a, b, c)))

    def hooked(side: Side) -> Any:
        seen: list[Any] = []
        x = needing_grad()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (seen.append(("pack", t.tolist())), t)[1], lambda t: (seen.append(("unpack", t.tolist())), t)[1]
        ):
            results = side.op([x, x * 2], x)
        node = results[0].grad_fn
        node.register_prehook(lambda grads: seen.append(plain(grads, side)))
        node.register_hook(lambda grads, outs: seen.append(plain((grads, outs), side)))
        results[1].sum().backward(retain_graph=True)
        results[0].sum().backward()
        return seen, x.grad

    alike(pair, hooked)


def test_nothing_stays_alive_after_a_call_with_lists() -> None:
    def run(side: Side) -> Any:
        x, others = needing_grad(), [needing_grad(), torch.ones(2)]
        result = side.op(x, others, 3.0)
        result.grad_fn.canary = canary = type("Canary", (), {})()
        references = [weakref.ref(value) for value in (x, *others, result, canary)]
        result.sum().backward()
        del x, others, result, canary
        gc.collect()
        return [reference() is None for reference in references]

    assert "False" not in str(alike(total_with_formula(), run))

    op = total_with_formula().fast.op
    x, y = needing_grad(), needing_grad()

    def calls(count: int) -> int:
        for _ in range(count):
            torch.autograd.grad(op(x, [y, y], 3.0).sum(), (x, y))
        gc.collect()
        return len(gc.get_objects())

    before = calls(100)
    assert calls(5_000) - before < 20


@pytest.mark.parametrize(
    ("schema", "result"),
    [
        ("(Tensor x) -> (Tensor[], Tensor?[])", lambda x: ([x * 2], [None, x * 3])),
        ("(Tensor x) -> Tensor?[]", lambda x: [x * 2, None]),
        ("(Tensor x) -> (Tensor[], (Tensor, Tensor))", lambda x: ([x * 2], (x * 3, x * 4))),
        ("(Tensor x) -> (Tensor[], Any)", lambda x: ([x * 2], [None])),
        ("(Tensor x) -> (Tensor[], Any)", lambda x: ([x * 2], (x * 3, 1))),
        ("(Tensor x) -> (Tensor[], int[])", lambda x: ([x * 2], [3, 4])),
    ],
)
def test_results_that_are_no_lists_of_tensors_stay_beside_those_that_are(schema: str, result: Any) -> None:
    # PyTorch takes nested tuples apart, too, so it has to record these.
    nests = "(Tensor, Tensor)" in schema or "Any" in schema
    pair = pair_of(result, schema=schema)
    pair.each(lambda op: op.register_autograd(lambda ctx, *grads: torch.ones(3)))
    check(pair, lambda: call(torch.ones(3, requires_grad=True)), reason="gradient-form" if nests else "requires-grad")


def call_near_the_recursion_limit() -> None:
    @dutyfree.fast_custom_op("dutyfree_deep::op", mutates_args=())
    def op(xs: list[Tensor], numbers: list[int]) -> list[Tensor]:
        return [x * 2 for x in xs]

    op.register_autograd(lambda ctx, grads: (grads, None))
    x = torch.ones(2, requires_grad=True)

    def deep(levels: int) -> Any:
        return deep(levels - 1) if levels else op([x], [1, 2])

    refused = 0
    for levels in range(sys.getrecursionlimit() - 100, sys.getrecursionlimit()):
        try:
            deep(levels)
        except RecursionError:
            refused += 1
    assert 0 < refused < 100


def test_near_the_recursion_limit_it_is_a_recursion_error() -> None:
    run_isolated(call_near_the_recursion_limit)


def test_a_gradient_that_can_t_be_looked_at_raises_alike() -> None:
    """isinstance asks a proxy for its class, and a dead one raises."""

    class Mortal:
        pass

    def usable_depth(levels: int = 0) -> int:
        try:
            return usable_depth(levels + 1)
        except RecursionError:
            return levels

    pair = pair_of(lambda xs: [x * 2 for x in xs], schema="(Tensor[] xs) -> Tensor[]")
    pair.each(lambda op: op.register_autograd(lambda ctx, grads: [weakref.proxy(Mortal())]))
    depth = usable_depth()
    for side in pair.sides():
        x = torch.ones(2, requires_grad=True)
        for _ in range(20):
            with pytest.raises(ReferenceError):
                side.op([x])[0].sum().backward()
    assert usable_depth() == depth


def test_what_links_a_node_to_its_call_serves_once() -> None:
    """A hook on saved tensors may get hold of it while the node is made."""
    op = pair_of(lambda xs: [x * 2 for x in xs], schema="(Tensor[] xs) -> Tensor[]").fast.op
    op.register_autograd(
        lambda ctx, grads: [grads], setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*output)
    )
    errors: list[Exception] = []

    def pack(tensor: Tensor) -> Tensor:
        node: Any = tensor.grad_fn
        try:
            node._forward_cls.forward(node, tensor, node._pt_metadata)
        except Exception as error:
            errors.append(error)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        (result,) = op([torch.ones(2, requires_grad=True)])
    assert result.tolist() == [2.0, 2.0]
    assert [type(error) for error in errors] == [NotImplementedError]
