"""Generated calls and later registrations: a case's steps."""

from dataclasses import dataclass

from dutyfree.check.fuzz.draw import Draw, weighted
from dutyfree.check.fuzz.operators import Operator
from dutyfree.check.fuzz.schema_types import Parameter
from dutyfree.check.fuzz.states import ONE_STATE
from dutyfree.check.fuzz.transforms import TRANSFORMS

# Tensors by what is special about them. "{earlier}" is a tensor of the same call.
TENSORS: dict[str, tuple[str, ...]] = {
    "plain": (
        "torch.arange(4.0)",
        "torch.ones(2, 3)",
        "torch.ones(2, 2)",
        "torch.tensor(1.5)",
        "torch.tensor(1)",
        "torch.arange(4)",
        "torch.tensor([True, False])",
        "torch.ones(2, dtype=torch.float64)",
        "torch.ones(2, dtype=torch.bfloat16)",
        "torch.ones(2, dtype=torch.complex64)",
    ),
    "zero size": ("torch.ones(0)", "torch.ones(0, 3)"),
    "not contiguous": ("torch.arange(6.0).view(2, 3).t()", "torch.ones(3).expand(2, 3)", "torch.arange(8.0)[::2]"),
    "view": ("torch.arange(6.0)[2:4]", "torch.ones(2, 2).view(-1)", "torch.arange(4.0).detach()"),
    "requires grad": (
        "torch.ones(3, requires_grad=True)",
        "torch.ones(2, 2, requires_grad=True)",
        "torch.ones(2, dtype=torch.float64).requires_grad_()",
    ),
    "non-leaf": ("torch.ones(3, requires_grad=True) * 2", "torch.ones(2, 2, requires_grad=True).t() + 1"),
    "view that requires grad": ("(torch.ones(4, requires_grad=True) * 2)[1:]", "torch.ones(4, requires_grad=True)[1:]"),
    "parameter": ("torch.nn.Parameter(torch.ones(3))",),
    "frozen parameter": ("torch.nn.Parameter(torch.ones(3), requires_grad=False)",),
    "buffer": ("torch.nn.Buffer(torch.ones(3))",),
    "bare subclass": ("torch.ones(3).as_subclass(Bare)", "torch.ones(3, requires_grad=True).as_subclass(Bare)"),
    "subclass without torch function": ("torch.ones(3).as_subclass(Plain)",),
    "torch function subclass": ("torch.ones(3).as_subclass(Functional)",),
    "wrapper subclass": ("Wrapper(torch.ones(3))", "Wrapper(torch.ones(3), requires_grad=True)"),
    "fake": ("side.fake(torch.ones(3))",),
    "meta": ("torch.ones(3, device='meta')", "torch.ones(3, device='meta', requires_grad=True)"),
    "conj": ("torch.tensor([1 + 2j, 3j]).conj()",),
    "neg": ("torch._neg_view(torch.ones(3))", "torch.tensor([1 + 2j, 3j]).conj().imag"),
    "zero tensor": ("torch._efficientzerotensor((3,))",),
    "sparse": ("torch.ones(2, 2).to_sparse()", "torch.ones(2, 2).to_sparse(1)"),
    "mkldnn": ("torch.ones(2, 2).to_mkldnn()",),
    "quantized": ("torch.quantize_per_tensor(torch.ones(3), 0.1, 10, torch.quint8)",),
    "nested": ("nested(torch.ones(2), torch.ones(3))", "nested(torch.ones(2), torch.ones(3), layout=torch.jagged)"),
    "inference": ("inference(torch.ones(3))", "ordinary_keys(inference(torch.ones(3)))"),
    "dual": ("dual(torch.ones(3))", "dual(torch.ones(3, requires_grad=True))"),
    "shared": ("{earlier}", "{earlier}.view_as({earlier})", "{earlier}[:1]", "{earlier}.detach()", "{earlier}.t()"),
}
ORDINARY = weighted((12, "plain"), (1, "zero size"), (2, "not contiguous"), (2, "view"), (2, "shared"))
WITH_GRADIENT = weighted(
    (4, "requires grad"), (3, "non-leaf"), (1, "view that requires grad"), (3, "plain"), (2, "parameter"), (1, "shared")
)
SPECIAL = tuple(name for name in TENSORS if name != "plain")
POOLS = {"ordinary": ORDINARY, "gradient": WITH_GRADIENT, "special": SPECIAL}

GOOD: dict[str, tuple[str, ...]] = {
    "SymInt": ("1", "-3", "0", "3", "2**31", "2**62 - 1", "2**62", "2**63 - 1", "-(2**63)"),
    "float": ("1.5", "-0.0", "0.5", "1e300", "5e-324", "float('inf')", "float('nan')", "2", "0", "-3"),
    "bool": ("True", "False"),
    "str": ("'sum'", "'mean'", "''", "'\\u00e9\\u4e2d'", "'\\U0001f600'", "'a\\0b'"),
    "Scalar": ("2", "1.5", "True", "-3", "0.0", "2**62", "2**63 - 1", "float('nan')", "1j"),
    "ScalarType": ("torch.float32", "torch.int8", "torch.bool"),
    "Device": ("torch.device('cpu')", "torch.device('meta')", "'cpu'"),
    "Layout": ("torch.strided", "torch.sparse_coo"),
    "MemoryFormat": ("torch.contiguous_format", "torch.channels_last"),
    "complex": ("1j", "2 + 3j"),
}
GOOD["int"] = GOOD["SymInt"]
# Values that PyTorch converts, or refuses, or takes for something else.
NEARLY: dict[str, tuple[str, ...]] = {
    "SymInt": (
        "True",
        "numpy.int32(4)",
        "numpy.int64(4)",
        "numpy.bool_(True)",
        "torch.tensor(3)",
        "torch.tensor([3])",
        "2**63",
        "-(2**63) - 1",
        "2**100",
        "1.0",
        "torch.tensor(3.5)",
        "numpy.float64(2.0)",
    ),
    "float": (
        "True",
        "2**70",
        "numpy.float32(1.5)",
        "numpy.float64(1.5)",
        "numpy.int64(2)",
        "torch.tensor(1.5)",
        "torch.tensor([1.5])",
        "torch.tensor(1.5, requires_grad=True)",
        "torch.tensor(2)",
        "1j",
        "'1.5'",
    ),
    "bool": ("1", "0", "2", "numpy.bool_(True)", "torch.tensor(True)", "torch.tensor([1])", "1.0"),
    "str": ("b'sum'", "1", "Text('sum')"),
    "Scalar": (
        "numpy.float32(1.5)",
        "numpy.int32(4)",
        "numpy.int64(2)",
        "torch.tensor(2.5)",
        "torch.tensor([1, 2])",
        "2**63",
        "'2'",
    ),
    "ScalarType": ("float", "int", "numpy.float32", "'float32'", "6"),
    "Device": ("'meta'", "'nonsense'", "'cuda:0'", "0", "'cpu:0'", "'CPU'", "torch.device('cuda', 0)"),
    "Layout": ("0", "'strided'"),
    "MemoryFormat": ("0",),
    "complex": ("1", "1.5", "numpy.complex64(1j)"),
}
NEARLY["int"] = NEARLY["SymInt"]
WRONG = (
    "None",
    "'text'",
    "1",
    "2.5",
    "True",
    "[]",
    "[1]",
    "(1.5,)",
    "['text']",
    "[None]",
    "{}",
    "object",
    "torch.ones(2)",
    "[torch.ones(2)]",
    "(torch.ones(2), torch.ones(2))",
    "[torch.ones(2), 1]",
    "torch.float32",
    "torch.device('cpu')",
    "torch.Size([2, 3])",
    "numpy.ones(2)",
    "range(3)",
    "iter([1])",
    "{1, 2}",
    "...",
    "slice(None)",
    "(i for i in range(2))",
    "2**64",
    "torch.nn.Flatten()",
)
CONTAINERS = weighted((8, "list"), (3, "tuple"), (1, "named tuple"), (1, "list subclass"))
NUMBER_CONTAINERS = weighted((8, "list"), (3, "tuple"), (2, "torch.Size"), (1, "numpy"), (1, "tensor"), (1, "range"))


@dataclass(frozen=True)
class Call:
    """One call and what is around it; texts are Python.

    Attributes:
        tensors: Expressions for ``t0``, ``t1``, …
        states: Names out of ``states.STATES``, from the outermost.
        made_inside: Whether the tensors are made inside the states.
        backward: How gradients are computed of what came back, "" for not at all.
        labels: What the report counts the call under.
    """

    spelling: str
    tensors: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    kwargs: tuple[tuple[str, str], ...] = ()
    states: tuple[str, ...] = ()
    made_inside: bool = False
    transform: str = ""
    threaded: bool = False
    backward: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Later:
    """A registration between calls; a name out of ``LATER``."""

    what: str

    @property
    def labels(self) -> tuple[str, ...]:
        return (f"later: {self.what}",)


LATER = {
    "kernel": "side.op.register_kernel('cpu', side.recorded(side.other))",
    "default kernel": "side.op.register_kernel(None, side.recorded(side.other))",
    "kernels": "side.op.register_kernel(['cpu', 'cuda'], side.recorded(side.other))",
    "meta kernel": "side.op.register_kernel('meta', side.recorded(side.other))",
    "autograd": "side.op.register_autograd(side.backward, setup_context=side.setup_context)",
    "autograd without setup_context": "side.op.register_autograd(side.recorded(lambda ctx, *grads: grads[0]))",
    "fake": "side.op.register_fake(lambda *args, **kwargs: stand_ins(side.other(*args, **kwargs)))",
    "vmap": "side.op.register_vmap(lambda info, dims, *args, **kwargs: batched_anew(side.op, dims, args, kwargs))",
    "autocast": "side.op.register_autocast('cpu', torch.bfloat16)",
    "impl CPU": "side.library('CPU', side.recorded(side.other))",
    "impl AutogradCPU": "side.library('AutogradCPU', side.recorded(side.other))",
    "impl Autograd": "side.library('Autograd', side.recorded(side.other))",
    "impl ADInplaceOrView": "side.library('ADInplaceOrView', side.recorded(side.other))",
    "impl CompositeExplicitAutograd": "side.library('CompositeExplicitAutograd', side.recorded(side.other))",
    "impl BackendSelect": "side.library('BackendSelect', side.recorded(side.other))",
    "impl AutocastCPU": "side.library('AutocastCPU', side.recorded(side.other))",
    "impl dropped": "side.drop_libraries()",
    "torch dispatch": "side.op.register_torch_dispatch(DispatchLog, lambda *given: torch.ones(5))",
    "redefinition": "side.redefine(define)",
}
ONE_LATER = tuple(LATER)
MOODS = weighted((10, "ordinary"), (6, "gradient"), (4, "special"), (3, "nearly"), (3, "wrong"))
SPELLINGS = weighted((2, "object"), (1, "packet"), (1, "overload"))
BACKWARD = weighted((3, "once"), (1, "create graph"), (1, "twice"), (1, "retained"), (1, "accumulate"))
LENGTHS = (1, 2, 2, 3, 0)


class _Drawing:
    """A call as it is drawn."""

    def __init__(self, draw: Draw, mood: str) -> None:
        self.draw = draw
        self.pool = POOLS.get(mood, ORDINARY)
        self.mood = mood
        self.tensors: list[str] = []
        self.kinds: set[str] = set()
        self.labels: list[str] = [f"mood: {mood}"]

    def tensor(self, kind: str = "") -> str:
        kind = kind or self.draw(self.pool)
        if kind == "shared" and not self.tensors:
            kind = "plain"
        if {kind, *self.kinds} >= {"zero tensor", "wrapper subclass"}:
            # What unwraps the one hands the other on without memory, and a body that touches it crashes the process.
            kind = "plain"
        self.kinds.add(kind)
        text = self.draw(TENSORS[kind])
        if "{earlier}" in text:
            text = text.replace("{earlier}", f"t{self.draw.below(len(self.tensors))}")
        self.labels.append(f"tensor: {kind}")
        self.tensors.append(text)
        return f"t{len(self.tensors) - 1}"

    def value(self, kind: str) -> str:
        """A value for a parameter of a schema type, right or nearly so."""
        self.labels.append(f"type: {kind}")
        if kind.endswith("?"):
            return "None" if self.draw.rarely(4) else self.value(kind[:-1])
        if kind.endswith("[]"):
            return self.sequence(kind[:-2], self.draw(LENGTHS))
        if kind.endswith("[2]"):
            if kind.startswith("SymInt") and self.draw.rarely(4):
                return "5"
            return self.sequence(kind[:-3], 2 if not self.draw.rarely(12) else 3)
        if kind == "Tensor":
            return self.tensor()
        if self.mood == "nearly" and self.draw.rarely(2):
            self.labels.append("value: nearly")
            return str(self.draw(NEARLY[kind]))
        return str(self.draw(GOOD[kind]))

    def sequence(self, kind: str, length: int) -> str:
        members = [self.value(kind) for _ in range(length)]
        container = self.draw(CONTAINERS if kind.startswith("Tensor") else NUMBER_CONTAINERS)
        self.labels.append(f"container: {container}")
        joined = ", ".join(members)
        if container == "tuple":
            return f"({joined}{',' if length == 1 else ''})"
        if container == "torch.Size" and kind in ("SymInt", "int"):
            return f"torch.Size([{joined}])"
        if container == "named tuple" and length == 2:
            return f"Two({joined})"
        if container == "list subclass":
            return f"ListSubclass([{joined}])"
        if container == "range" and kind in ("SymInt", "int"):
            return "range(2)"
        if container in ("numpy", "tensor") and kind in ("SymInt", "int", "float", "bool", "Scalar"):
            return f"{'numpy.array' if container == 'numpy' else 'torch.tensor'}([1, 2])"
        return f"[{joined}]"


def drawn_call(draw: Draw, operator: Operator) -> Call:
    mood = draw(MOODS)
    drawing = _Drawing(draw, mood)
    args: list[str] = []
    kwargs: list[tuple[str, str]] = []
    by_name = False
    for parameter in operator.parameters:
        by_name = by_name or parameter.keyword_only
        text = _argument(drawing, parameter)
        if text is None:
            by_name = True
            continue
        by_name = by_name or draw.rarely(8)
        if by_name:
            kwargs.append((parameter.name, text))
        else:
            args.append(text)
    if mood == "wrong":
        _spoil(drawing, operator, args, kwargs)
    if len(kwargs) > 1 and draw.rarely(3):
        kwargs.reverse()
    spelling = draw(SPELLINGS)
    states: tuple[str, ...] = ()
    if draw.rarely(3):
        states = tuple(dict.fromkeys([draw(ONE_STATE), *([draw(ONE_STATE)] if draw.rarely(3) else [])]))
    # functorch reads past what a body returned if that is less than the schema says: the process crashes on both sides.
    transformable = operator.body.packing != "too few" or len(operator.results) < 2
    transform = draw(TRANSFORMS) if draw.rarely(12) and transformable else ""
    threaded = draw.rarely(20)
    backward = draw(BACKWARD) if mood == "gradient" or draw.rarely(6) else ""
    inside = bool(states) and draw.rarely(3)
    labels = [
        *drawing.labels,
        f"spelling: {spelling}",
        *(f"state: {state}" for state in states),
        *([f"transform: {transform}"] if transform else []),
        *(["state: another thread"] if threaded else []),
        *([f"backward: {backward}"] if backward else []),
        *([] if states or transform or threaded else ["state: none"]),
    ]
    return Call(
        spelling,
        tuple(drawing.tensors),
        tuple(args),
        tuple(kwargs),
        states,
        inside,
        transform,
        threaded,
        backward,
        tuple(labels),
    )


def _argument(drawing: _Drawing, parameter: Parameter) -> str | None:
    """The text of one argument; None leaves it out."""
    draw = drawing.draw
    if parameter.default is not None:
        choice = draw.below(4)
        if choice <= 1:
            return None
        if choice == 2:
            drawing.labels.append("value: the default")
            return parameter.default[1]
    if parameter.mutated and parameter.kind == "Tensor" and draw.rarely(12):
        return drawing.tensor("inference")  # it may not be written to, which few of the others would show
    return drawing.value(parameter.kind)


def _spoil(drawing: _Drawing, operator: Operator, args: list[str], kwargs: list[tuple[str, str]]) -> None:
    """Make the arguments wrong in one way."""
    draw = drawing.draw
    way = draw.below(8)
    if way == 7:
        args.append(draw(WRONG))
        way_name = "too many"
    elif way == 6 and args:
        args.pop()
        way_name = "missing"
    elif way == 5:
        kwargs.append(("nonsense", draw(WRONG)))
        way_name = "unknown keyword"
    elif way == 4 and args:
        kwargs.append((operator.parameters[0].name, draw(WRONG)))
        way_name = "repeated"
    elif args or kwargs:
        index = draw.below(len(args) + len(kwargs))
        if index < len(args):
            args[index] = draw(WRONG)
        else:
            kwargs[index - len(args)] = (kwargs[index - len(args)][0], draw(WRONG))
        way_name = "wrong type"
    else:
        args.append(draw(WRONG))
        way_name = "too many"
    if len({name for name, _ in kwargs}) < len(kwargs):
        kwargs[:] = dict(kwargs).items()
    drawing.labels.append(f"wrong: {way_name}")


def drawn_steps(draw: Draw, operator: Operator, count: int) -> tuple[Call | Later, ...]:
    steps: list[Call | Later] = []
    for _ in range(count):
        if steps and draw.rarely(20):
            steps.append(Later(draw(ONE_LATER)))
        else:
            steps.append(drawn_call(draw, operator))
    return tuple(steps)


# Hypothesis varies a count drawn from these, most of them large: making an operator costs as much as several calls.
STEP_COUNTS = (1, 2, 4, 8, 12, 16, 20, 24, 24, 28)
