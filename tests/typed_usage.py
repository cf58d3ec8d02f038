"""What a type checker must see of a decorated function; test_typing.py checks this file with mypy."""

from torch import Tensor
from typing_extensions import assert_type

from dutyfree import CustomOp, Plan, explain, fast_custom_op


@fast_custom_op("dutyfree_tests::typed", mutates_args=())
def scale(x: Tensor, factor: float = 1.0) -> Tensor:
    return x * factor


def count(x: Tensor) -> int:
    return x.numel()


counted = fast_custom_op("dutyfree_tests::counted", count)


def usage(x: Tensor) -> None:
    assert_type(scale(x, 2.0), Tensor)
    assert_type(scale(x, factor=2.0), Tensor)
    assert_type(counted(x), int)
    assert_type(explain(scale, x), Plan)
    same: CustomOp[[Tensor], int] = counted
    assert_type(same(x), int)
    scale("text")  # expected error: arg-type
    scale(x, nonsense=1)  # expected error: call-arg
    scale()  # expected error: call-arg
    scale(x).nonsense()  # expected error: attr-defined
