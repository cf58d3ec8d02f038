"""dutyfree.load_library: the operators of a shared library, and libraries that are not as they should be."""

import copy
import inspect
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dutyfree
from cpp_libraries import EMPTY, build_operators
from isolated import run_isolated

NAMES = [
    "cpp_tests::axpy",
    "cpp_tests::only_defined",
    "cpp_tests::plus.number",
    "cpp_tests::plus.tensor",
    "cpp_tests::scale_",
    "cpp_tests::square",
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cpp_operators")


@pytest.fixture(scope="session")
def misfit(folder: Path) -> str:
    """The text of the error of a library that could not register. It comes first: no other library may show it."""
    with pytest.raises(RuntimeError) as raised:
        build_operators(folder, "misfit")
    return str(raised.value)


@pytest.fixture(scope="session")
def operators(folder: Path, misfit: str) -> dutyfree.Operators:
    return build_operators(folder)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(4.0)


@pytest.fixture
def y() -> torch.Tensor:
    return torch.ones(4)


# --- what load_library returns ----------------------------------------------------------------------------------------


def test_it_has_the_operators_of_the_library(operators: dutyfree.Operators) -> None:
    assert list(operators) == NAMES
    assert operators.axpy is operators["cpp_tests::axpy"]
    assert {"axpy", "scale_", "square"} <= set(dir(operators))
    assert "plus" not in dir(operators)
    assert "cpp_tests::plus.number" in repr(operators)


def test_a_name_with_overloads_is_no_attribute(operators: dutyfree.Operators) -> None:
    with pytest.raises(AttributeError, match=r"plus may be cpp_tests::plus\.number, cpp_tests::plus\.tensor"):
        operators.plus  # noqa: B018
    with pytest.raises(AttributeError, match=r"axpi: not an operator(.|\n)*cpp_tests::axpy(.|\n)*Did you mean axpy\?"):
        operators.axpi  # noqa: B018
    with pytest.raises(KeyError, match=r"cpp_tests::plus: not an operator(.|\n)*cpp_tests::plus\.number"):
        operators["cpp_tests::plus"]


def test_loading_again_gives_the_same(operators: dutyfree.Operators) -> None:
    again = dutyfree.load_library(Path(operators._path))
    assert again == operators
    assert again.axpy is operators.axpy
    assert operators._path in torch.ops.loaded_libraries


def test_an_operator_is_the_librarys_whoever_has_its_kernel(operators: dutyfree.Operators, x: torch.Tensor) -> None:
    operators.only_defined.register_kernel("cpu")(lambda x: x + 1)
    assert operators.only_defined(x).tolist() == [1, 2, 3, 4]
    assert dutyfree.explain(operators.only_defined, x).path == "direct"
    assert list(dutyfree.load_library(operators._path)) == list(operators)


def test_the_environment_is_as_it_was(operators: dutyfree.Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "DUTYFREE_LOADS_LIBRARY" not in os.environ
    monkeypatch.setenv("DUTYFREE_LOADS_LIBRARY", "mine")
    dutyfree.load_library(operators._path)
    assert os.environ["DUTYFREE_LOADS_LIBRARY"] == "mine"


# --- calls ------------------------------------------------------------------------------------------------------------


def test_calls(operators: dutyfree.Operators, x: torch.Tensor, y: torch.Tensor) -> None:
    assert operators.axpy(x, y, 2.0).tolist() == [1, 3, 5, 7]
    assert operators.axpy(x, a=2.0, y=y).tolist() == [1, 3, 5, 7]
    assert operators.axpy(x, y).tolist() == [1, 2, 3, 4]
    assert operators["cpp_tests::plus.number"](x, 2).tolist() == [2, 3, 4, 5]
    assert operators["cpp_tests::plus.tensor"](x, other=y).tolist() == [1, 2, 3, 4]
    assert torch.ops.cpp_tests.axpy(x, y).tolist() == [1, 2, 3, 4]
    assert operators.square(self=x).tolist() == [0, 1, 4, 9]


def test_calls_are_direct(operators: dutyfree.Operators, x: torch.Tensor, y: torch.Tensor) -> None:
    assert dutyfree.explain(operators.axpy, x, y, 2.0).path == "direct"
    assert dutyfree.explain(operators.scale_, x, 2.0).path == "direct"
    assert dutyfree.explain(operators.square, x).path == "direct"
    assert dutyfree.explain(operators["cpp_tests::plus.tensor"], x, other=y).path == "direct"


def test_wrong_arguments_are_pytorchs_errors(operators: dutyfree.Operators, x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"axpy: x has the sizes \[4\], y has \[2\]"):
        operators.axpy(x, torch.ones(2))
    with pytest.raises(RuntimeError, match=r"cpp_tests::axpy\(\) is missing value for argument 'y'"):
        operators.axpy(x)


def test_a_mutated_argument_gets_a_new_version(operators: dutyfree.Operators, x: torch.Tensor) -> None:
    version = x._version
    result = operators.scale_(x, 2.0)
    assert x.tolist() == [0, 2, 4, 6]
    assert result.data_ptr() == x.data_ptr()
    assert x._version > version


def test_gradients_of_cpp(operators: dutyfree.Operators) -> None:
    inputs = (torch.randn(3, dtype=torch.float64, requires_grad=True), torch.randn(3, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda x, y: operators.axpy(x, y, 3.0), inputs)
    assert torch.autograd.gradgradcheck(lambda x, y: operators.axpy(x, y, 3.0), inputs)


def test_opcheck(operators: dutyfree.Operators, x: torch.Tensor, y: torch.Tensor) -> None:
    torch.library.opcheck(operators.axpy._opoverload, (x, y, 2.0))
    torch.library.opcheck(operators.axpy._opoverload, (x.requires_grad_(), y.requires_grad_(), 2.0))


@pytest.mark.parametrize("gradient", [False, True])
def test_compiled_code_calls_the_operator(
    operators: dutyfree.Operators, x: torch.Tensor, y: torch.Tensor, gradient: bool
) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(lambda x, y: operators.axpy(x, y, 2.0) * 2, backend=backend, fullgraph=True)
    x.requires_grad_(gradient)
    torch.testing.assert_close(compiled(x, y), 2 * (2 * x + y))
    assert torch.ops.cpp_tests.axpy.default in [node.target for node in graphs[0].graph.nodes]
    assert len(graphs) == 1


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_torchscript_compiles_calls(operators: dutyfree.Operators, x: torch.Tensor, y: torch.Tensor) -> None:
    axpy = operators.axpy

    @torch.jit.script
    def scripted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return axpy(x, y, 2.0)

    assert "cpp_tests::axpy" in str(scripted.graph)
    assert scripted(x, y).tolist() == [1, 3, 5, 7]


# --- the object -------------------------------------------------------------------------------------------------------


def test_what_an_operator_says_of_itself(operators: dutyfree.Operators) -> None:
    axpy = operators.axpy
    assert (axpy.__name__, axpy.__module__) == ("axpy", "torch.ops.cpp_tests")
    assert axpy.__doc__ == "cpp_tests::axpy(Tensor x, Tensor y, float a=1.) -> Tensor"
    assert repr(axpy) == f"<CppOp {axpy.__doc__}>"
    assert str(inspect.signature(axpy)) == "(x, y, a=1.0)"
    assert axpy._opoverload is torch.ops.cpp_tests.axpy.default
    tensors = operators["cpp_tests::plus.tensor"]
    assert tensors.__name__ == "plus.tensor"
    assert str(inspect.signature(tensors)) == "(x, *, other)"


def test_an_operator_is_copied_and_pickled_by_its_name(operators: dutyfree.Operators) -> None:
    for operator in operators.values():
        assert copy.deepcopy(operator) is operator
        assert pickle.loads(pickle.dumps(operator)) is operator
    assert copy.deepcopy(operators) == operators
    pickled = pickle.dumps(operators.axpy).replace(b"cpp_tests::axpy", b"cpp_tests::none")
    with pytest.raises(LookupError, match=r"cpp_tests::none is not loaded in this process"):
        pickle.loads(pickled)


def test_calls_skip_the_frame_of_call_unless_it_is_patched(
    operators: dutyfree.Operators, x: torch.Tensor, y: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = []
    sys.setprofile(lambda frame, event, arg: frames.append(frame.f_code.co_name) if event == "call" else None)
    try:
        operators.axpy(x, y)
    finally:
        sys.setprofile(None)
    assert "__call__" not in frames
    monkeypatch.setattr(dutyfree.CppOp, "__call__", lambda self, *args: "patched")
    assert operators.axpy(x, y) == "patched"


def test_accelerate_and_restore_take_the_object(operators: dutyfree.Operators) -> None:
    name = "cpp_tests::square"
    before = torch.ops.cpp_tests.square.default._op
    dutyfree.restore(operators.square)
    assert torch.ops.cpp_tests.square.default._op is not before
    assert dutyfree.accelerate(operators.square).names == [name]
    assert operators.square(torch.full((1,), 3.0)).item() == 9


# --- registrations by Python ------------------------------------------------------------------------------------------


def test_registrations_by_python_take_effect() -> None:
    """In a process of its own, because they can't be taken back."""
    run_isolated(registrations_by_python, CPP_TESTS_LIBRARY=os.environ["CPP_TESTS_LIBRARY"])


@pytest.fixture(autouse=True)
def library_for_processes(operators: dutyfree.Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPP_TESTS_LIBRARY", operators._path)


def registrations_by_python() -> None:
    operators = dutyfree.load_library(os.environ["CPP_TESTS_LIBRARY"])
    square, x = operators.square, torch.arange(4.0)
    assert square(x).tolist() == [0, 1, 4, 9]

    @square.register_fake
    def fake(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    assert torch.compile(lambda x: square(x) + 1, backend="aot_eager", fullgraph=True)(x).tolist() == [1, 2, 5, 10]

    def backward(context, gradient):  # type: ignore[no-untyped-def]
        return 2 * context.saved_tensors[0] * gradient

    square.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    assert torch.autograd.gradcheck(square, torch.randn(3, dtype=torch.float64, requires_grad=True))
    assert square(x).tolist() == [0, 1, 4, 9]

    @square.register_vmap
    def rule(info, in_dims, x):  # type: ignore[no-untyped-def]
        return square(x), in_dims[0]

    assert torch.vmap(square)(x).tolist() == [0, 1, 4, 9]
    square.register_autocast("cpu", torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert square(x).dtype == torch.bfloat16
    assert square(x).dtype == torch.float32

    meta = operators["cpp_tests::plus.number"].register_kernel("meta")(lambda x, number: torch.empty_like(x))
    assert meta(x, 1).shape == (4,)
    assert operators["cpp_tests::plus.number"](x.to("meta"), 1).device.type == "meta"
    assert operators["cpp_tests::plus.number"](x, 1).tolist() == [1, 2, 3, 4]


# --- libraries that are not as they should be -------------------------------------------------------------------------


def test_a_kernel_that_does_not_fit_its_schema_raises_with_both(misfit: str) -> None:
    assert "cpp_misfit::repeat(Tensor x, float times) -> Tensor" in misfit
    assert "(Tensor _0, int _1) -> Tensor" in misfit
    assert "frame #" not in misfit


def test_it_raises_every_time_and_its_operators_are_absent(folder: Path, misfit: str) -> None:
    path = next(folder.glob("misfit-*/*/misfit.so"))
    for _ in range(2):
        with pytest.raises(RuntimeError) as raised:
            dutyfree.load_library(path)
        assert str(raised.value) == misfit
    assert not hasattr(torch.ops.cpp_misfit, "twice")


def test_another_library_with_the_same_operators_raises(operators: dutyfree.Operators, tmp_path: Path) -> None:
    copied = shutil.copy(operators._path, tmp_path / "copied.so")
    with pytest.raises(RuntimeError, match=r"copied\.so(.|\n)*cpp_tests::axpy"):
        dutyfree.load_library(copied)
    assert operators.axpy(torch.ones(1), torch.ones(1)).item() == 2


def load_misfit_without_dutyfree() -> None:
    torch.ops.load_library(os.environ["CPP_TESTS_MISFIT"])


def test_without_load_library_an_error_ends_the_process(folder: Path, misfit: str) -> None:
    path = next(folder.glob("misfit-*/*/misfit.so"))
    with pytest.raises(AssertionError, match=r"exit status -6(.|\n)*cpp_misfit::repeat"):
        run_isolated(load_misfit_without_dutyfree, CPP_TESTS_MISFIT=str(path))


def test_what_is_no_library_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no shared library at .*absent\.so"):
        dutyfree.load_library(tmp_path / "absent.so")
    text = tmp_path / "text.so"
    text.write_text("not a library")
    with pytest.raises(OSError, match=r"could not load .*text\.so: (.|\n)*compile it anew"):
        dutyfree.load_library(text)


def test_a_library_without_op_h_raises(tmp_path: Path) -> None:
    source = tmp_path / "plain.cpp"
    source.write_text("int plain() { return 3; }\n")
    with pytest.raises(RuntimeError, match=r"plain\.so has no operators of dutyfree's(.|\n)*torch\.ops\.load_library"):
        dutyfree.build("plain", source, build_directory=tmp_path)
    source.write_text(EMPTY)
    assert repr(dutyfree.build("plain", source, build_directory=tmp_path)).endswith("plain.so: none>")


def calls_without_dutyfree() -> None:
    operators = dutyfree.load_library(os.environ["CPP_TESTS_LIBRARY"])
    x = torch.ones(2)
    assert operators.axpy(x, x, 2.0).tolist() == [3, 3]
    assert operators.square(self=x).tolist() == [1, 1]
    assert dutyfree.explain(operators.axpy, x, x, 2.0).reason == "DUTYFREE=off"


def test_with_dutyfree_off_pytorch_makes_the_calls() -> None:
    run_isolated(calls_without_dutyfree, DUTYFREE="off")


# --- where the headers are --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "function"), [("--include", dutyfree.get_include), ("--cmake-dir", dutyfree.cmake_dir)]
)
def test_the_command_prints_folders(option: str, function: object) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "dutyfree", option], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert printed == f"{function()}\n"  # type: ignore[operator]


def test_the_folders_have_what_they_should() -> None:
    assert (Path(dutyfree.get_include()) / "dutyfree" / "op.h").is_file()
    assert (Path(dutyfree.cmake_dir()) / "dutyfreeConfig.cmake").is_file()
