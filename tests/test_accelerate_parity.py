"""What the tests of ``fast_custom_op`` say of arguments, results, gradients, modes … holds for accelerated operators.

Those tests run again, in a process in which an accelerated ``custom_op`` operator stands for each operator of
``fast_custom_op`` (see ``accelerate_instead``).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "arguments_and_results": (
        *("arguments", "argument_defaults", "bad_arguments", "factories", "validation"),
        *("results", "aliasing", "inplace_and_out", "versions"),
    ),
    "modes_and_registrations": (
        *("tensor_kinds", "modes", "autocast", "dtensor"),
        *("later_registrations", "threads", "tracing", "torchscript"),
    ),
    "gradients": (
        *("autograd", "gradients", "gradients_nodes", "gradients_results", "gradients_of_lists"),
        *("gradients_backward", "gradients_checkpointed", "gradients_compiled", "gradients_profiled"),
        *("gradients_tensors_and_modes", "functorch", "gradients_functorch"),
    ),
}

# What fast_custom_op does better than custom_op, and accelerate leaves as it is: TorchScript of the object, and
# torch.func over a formula, which PyTorch refuses. And the kernels of others: accelerate reads them, fast_custom_op
# leaves such calls to PyTorch.
OTHERWISE = (
    "test_a_script_that_calls_the_object_names_the_operator_too",
    "test_reverse_mode_works_and_the_other_transforms_act_as_in_pytorch",
    "test_nested_transforms_give_the_right_values",
    "test_a_dual_level_counts_where_it_gave_tangents",
    "test_several_results_and_keyword_only_inputs_have_right_gradients",
    "test_a_result_that_is_marked_not_differentiable_stays_so_at_every_level",
    "test_a_call_that_belongs_to_an_outer_level_is_recorded_there",
    "test_a_functional_call_of_a_module_has_per_sample_gradients",
    "test_no_grad_around_a_transform_hides_the_outer_tape_only",
    "test_the_body_under_a_transform_runs_in_the_state_of_an_ordinary_call",
    "test_state_after_a_transform_that_raised_is_as_before",
    "test_another_autograd_kernel_takes_over_at_once",
)

# Their processes of their own don't have the plugin; what they say is said of ``fast_custom_op`` again.
ELSEWHERE = (
    "test_too_many_outputs_raise",
    "test_near_the_recursion_limit_it_is_a_recursion_error",
    "test_kernels_may_be_forgotten_while_an_observed_call_has_let_the_gil_go",
)


@pytest.mark.parametrize("subject", FILES)
def test_accelerated_operators_pass_the_tests_of_fast_custom_op(subject: str) -> None:
    folder = Path(__file__).parent
    arguments = ["-q", "-p", "accelerate_instead", "-p", "no:cacheprovider", "-p", "no:warnings", "--tb=short"]
    paths = [str(folder / f"test_{name}.py") for name in FILES[subject]]
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *paths, "-k", f"not ({' or '.join(OTHERWISE + ELSEWHERE)})"],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed is not None
    assert int(passed[1]) > 100, finished.stdout
