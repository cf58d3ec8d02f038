"""Generated bodies: what they do, what they return and how they pack it."""

from dataclasses import dataclass

from dutyfree.check.fuzz.draw import Draw, weighted
from dutyfree.check.fuzz.schema_types import RESULTS, Parameter

# What a body may do before it returns.
EFFECTS = weighted(
    (20, ""),
    (1, "first.add_(1)"),
    (1, "first.detach().zero_()"),
    (1, "first.resize_(0)"),
    (1, "raise Trouble('from the body')"),
    (1, "raise ValueError"),
    (1, "raise RuntimeError('one') from KeyError('two')"),
    (1, "raise StopIteration(3)"),
    (1, "torch.set_grad_enabled(False)"),
    (1, "side.saw('inside', torch.ones(2, requires_grad=True) * first.sum())"),
    (1, "side.saw('grad', torch.autograd.grad((first.float() * side.captured).sum(), side.captured))"),
    (1, "first = first * side.captured"),
    (1, "with torch.enable_grad(): first = first * side.captured"),
    (1, "with torch.no_grad(): first = first * 3"),
    (1, "RECURSE"),
    (5, "LISTS"),
    (1, "warnings.warn('from the body')"),
    (1, "first.requires_grad_()"),
    (1, "with torch.inference_mode(): first = first * 3"),
)
# What a body may return in place of a good value for one of its results.
WRONG_VALUES = weighted(
    (4, "first"),
    (2, "first.view_as(first)"),
    (1, "first[:0]"),
    (1, "first.detach()"),
    (1, "first.data"),
    (1, "next(reversed(list(tensors_in(GIVEN))), first)"),
    (2, "None"),
    (1, "1"),
    (1, "2**63"),
    (1, "1.5"),
    (1, "1j"),
    (1, "True"),
    (1, "'text'"),
    (1, "()"),
    (1, "[]"),
    (2, "(first.clone(), first + 1)"),
    (1, "[first.clone()]"),
    (1, "(first.clone(),)"),
    (1, "[first]"),
    (1, "[first * 2] * 2"),
    (1, "[first.clone(), None]"),
    (1, "[1.5, first.clone()]"),
    (1, "object"),
    (1, "{}"),
    (1, "numpy.int64(4)"),
    (1, "numpy.float32(1.5)"),
    (1, "numpy.bool_(True)"),
    (1, "torch.tensor(3)"),
    (1, "torch.tensor([2.5])"),
    (1, "torch.nn.Parameter(torch.ones(2))"),
    (1, "torch.ones(2).as_subclass(Bare)"),
    (1, "Wrapper(torch.ones(2))"),
    (1, "side.captured"),
    (1, "torch.ones(2, requires_grad=True)"),
    (1, "torch.ones(2, dtype=torch.complex64).conj()"),
    (1, "torch.ones(2).to_sparse()"),
    (1, "inference(torch.ones(2))"),
    (1, "torch.ones(2, device='meta')"),
    (1, "torch.float32"),
    (1, "torch.device('cpu')"),
    (1, "torch.Size([1, 2])"),
)
# How a body may pack its results.
PACKINGS = weighted(
    (24, "good"), (1, "list"), (1, "tuple"), (1, "too few"), (1, "too many"), (1, "same twice"), (1, "namedtuple")
)


@dataclass(frozen=True)
class Body:
    effect: str = ""
    values: tuple[str, ...] = ()
    packing: str = "good"
    # A Tag.inplace or Tag.out body returns its arguments, unless it misbehaves.
    returned: tuple[str, ...] = ()

    def result(self) -> str:
        values = list(self.returned or self.values)
        if self.packing == "same twice" and len(values) > 1:
            return f"({', '.join(['same := ' + values[0], *['same'] * (len(values) - 1)])})"
        if self.packing == "too few":
            values = values[:-1]
        elif self.packing == "too many" and len(values) < 2:
            # PyTorch reads past the schema's end where a schema of two or more results gets too many.
            values = [*(values or ["first.clone()"]), "first + 2"]
        if self.packing == "list":
            return f"[{', '.join(values)}]"
        if self.packing == "namedtuple" and len(values) == 2:
            return f"Two({', '.join(values)})"
        if self.packing == "good" or self.packing == "same twice":
            return ", ".join(values) if values else "None"
        return f"({', '.join(values)}{',' if len(values) == 1 else ''})"


def drawn_body(draw: Draw, style: str, parameters: tuple[Parameter, ...], results: tuple[str, ...]) -> Body:
    effect = draw(EFFECTS) if draw.rarely(2) else ""
    if not effect:
        mutated = [p.name for p in parameters if p.mutated]
        if mutated and not draw.rarely(3):
            effect = "MUTATE"
    values = []
    wrong = draw.rarely(5)
    for kind in results:
        good = RESULTS[kind].values
        values.append(good[draw.below(len(good))])
    if wrong and values:
        values[draw.below(len(values))] = draw(WRONG_VALUES)
    returned: tuple[str, ...] = ()
    if style != "plain" and not wrong:
        own = [p.name for p in parameters if p.mutated] or [f"{parameters[0].name}.view(-1)"]
        returned = tuple(own)
    return Body(effect, tuple(values), draw(PACKINGS), returned)
