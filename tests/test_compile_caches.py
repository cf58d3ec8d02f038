"""Graphs that were compiled for another schema of an operator are not used again."""

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from dutyfree import _compile_caches
from isolated import run_isolated
from parity import pair_of


def write(x: Tensor, y: Tensor) -> None:
    y.copy_(x * 2)


def define(mutates_args: Sequence[str]) -> Any:
    register = torch.library.custom_op if os.environ.get("REGISTER") == "custom_op" else dutyfree.fast_custom_op
    operator = register("dutyfree_caches::write", write, mutates_args=mutates_args)
    operator.register_fake(lambda x, y: None)
    return operator


def caller(operator: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Calls it in one of its spellings. It returns nothing: the compiler drops the call where nothing is mutated.

    What remains is a kernel of PyTorch's that needs no C++ compiler.
    """

    def by_object(x: Tensor, y: Tensor) -> Tensor:
        operator(x, y)
        return x.sort().values

    def by_packet(x: Tensor, y: Tensor) -> Tensor:
        torch.ops.dutyfree_caches.write(x, y)
        return x.sort().values

    def by_overload(x: Tensor, y: Tensor) -> Tensor:
        torch.ops.dutyfree_caches.write.default(x, y)
        return x.sort().values

    return {"object": by_object, "packet": by_packet, "overload": by_overload}[os.environ["SPELLING"]]


def written(compiled: Callable[[Tensor, Tensor], Tensor]) -> list[float]:
    y = torch.zeros(2)
    compiled(torch.ones(2), y)
    return y.tolist()


def compile_that_mutates_nothing() -> None:
    assert written(torch.compile(caller(define(())), fullgraph=True)) == [0.0, 0.0]


def compile_that_mutates_y() -> None:
    assert written(torch.compile(caller(define(("y",))), fullgraph=True)) == [2.0, 2.0]


def compile_redefine_and_compile_again() -> None:
    compiled = torch.compile(caller(define(())), fullgraph=True)
    assert written(compiled) == [0.0, 0.0]
    operator = define(("y",))
    if os.environ["SPELLING"] != "object":
        assert written(compiled) == [2.0, 2.0]
    torch._dynamo.reset()
    print(written(torch.compile(caller(operator), fullgraph=True)))


def compile_the_same_again() -> None:
    from torch._dynamo.utils import counters

    compile_that_mutates_y()
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1, counters["aot_autograd"]


@pytest.mark.parametrize("spelling", ["object", "packet", "overload"])
def test_a_redefinition_that_mutates_more_is_compiled_anew(tmp_path: Path, spelling: str) -> None:
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "SPELLING": spelling}
    assert run_isolated(compile_redefine_and_compile_again, **environment) == "[2.0, 2.0]\n"
    if spelling == "object":
        run_isolated(compile_the_same_again, **environment)


def test_another_process_with_other_mutated_arguments_compiles_anew(tmp_path: Path) -> None:
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "SPELLING": "overload"}
    run_isolated(compile_that_mutates_nothing, **environment)
    run_isolated(compile_that_mutates_y, **environment)


def counted_schemas(*operators: Any) -> list[str]:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for operator in operators:
        graph.call_function(operator, (x,))
    graph.output(x)
    return _compile_caches._schemas_that_count(torch.fx.GraphModule(torch.nn.Module(), graph))


def test_a_graph_counts_the_schemas_of_its_own_operators() -> None:
    pair, other = (pair_of(torch.clone, schema="(Tensor x) -> Tensor") for _ in range(2))
    op = pair.fast.op
    for spelling in (op, op._opoverload, op._opoverload.overloadpacket):
        (schema,) = counted_schemas(spelling, torch.ops.aten.sin.default, torch.sin)
        assert f"{op._qualname}(Tensor x) -> Tensor" in schema
    assert counted_schemas(pair.reference.op._opoverload, torch.ops.aten.sin.default) == []
    assert len(counted_schemas(op, other.fast.op)) == 2


def test_a_packet_with_another_overload_counts_dutyfree_s_own() -> None:
    side = pair_of(torch.clone, schema="(Tensor x) -> Tensor").fast
    library = torch.library.Library(side.namespace, "FRAGMENT")
    library.define(f"{side.name}.second(Tensor x, int n) -> Tensor")  # PyTorch makes the packet's `_op` anew
    assert any(side.qualname in schema for schema in counted_schemas(side.packet))
    library._destroy()


@pytest.mark.parametrize("side", ["reference", "fast"])
def test_a_graph_with_a_formula_counts_all_schemas(side: str) -> None:
    """AOTAutograd hashes it before it traces the formula, which may call any operator."""
    pair, other = (pair_of(torch.clone, schema="(Tensor x) -> Tensor") for _ in range(2))
    pair.each(lambda op: op.register_autograd(lambda ctx, grad: grad))
    counted = counted_schemas(getattr(pair, side).op._opoverload)
    assert any(other.fast.qualname in schema for schema in counted)


def redefine_the_reference() -> None:
    compile_that_mutates_nothing()
    torch._dynamo.reset()
    print(written(torch.compile(caller(define(("y",))), fullgraph=True)))


def test_the_reference_uses_the_old_graph(tmp_path: Path) -> None:
    """What the tests above would find if nothing were done. When this fails, PyTorch has solved it."""
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "SPELLING": "overload", "REGISTER": "custom_op"}
    assert run_isolated(redefine_the_reference, **environment) == "[0.0, 0.0]\n"


def define_operators_without_a_compiler() -> None:
    def waiting() -> int:
        return sum(type(finder).__module__ == "dutyfree_auto" for finder in sys.meta_path)

    define(())
    define(("y",))
    assert "torch._inductor.codecache" not in sys.modules
    assert waiting() == 1
    # torch._logging.set_logs(modules=...) asks for the spec of a module without importing it.
    assert importlib.util.find_spec("torch._inductor.codecache") is not None
    assert waiting() == 1
    import torch._inductor.codecache

    assert hasattr(torch._inductor.codecache.FxGraphHashDetails, "dutyfree_schemas")
    define(())
    assert waiting() == 1


def test_the_compiler_s_cache_is_not_imported_for_it() -> None:
    run_isolated(define_operators_without_a_compiler)
