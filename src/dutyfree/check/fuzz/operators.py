"""Generated operators: their parameters and results, what their bodies do, and what is registered for them."""

from dataclasses import dataclass, replace

from dutyfree.check.fuzz.draw import Draw, weighted


@dataclass(frozen=True)
class Kind:
    """A type of the schema language.

    Attributes:
        annotation: What infer_schema makes this type of; None where only a schema text can say it.
        defaults: Default values, each as the schema's text and as Python's.
    """

    annotation: str | None
    defaults: tuple[tuple[str, str], ...] = ()


NONE = ("None", "None")
NUMBER = "Union[int, float, bool]"
KINDS: dict[str, Kind] = {
    "Tensor": Kind("Tensor"),
    "Tensor?": Kind("Optional[Tensor]", (NONE,)),
    "Tensor[]": Kind("list[Tensor]"),
    "Tensor?[]": Kind("list[Optional[Tensor]]"),
    "Tensor[]?": Kind(None, (NONE,)),
    "Tensor[2]": Kind(None),
    "SymInt": Kind("int", (("3", "3"), ("0", "0"), ("4611686018427387904", "2**62"))),
    "SymInt?": Kind("Optional[int]", (NONE, ("3", "3"))),
    "SymInt[]": Kind("Sequence[int]", (("[1, 2]", "[1, 2]"),)),
    "SymInt[]?": Kind("Optional[list[int]]", (NONE,)),
    "SymInt[2]": Kind(None, (("1", "[1, 1]"),)),
    "int": Kind(None, (("3", "3"),)),
    "int[]": Kind(None, (("[]", "[]"),)),
    "float": Kind("float", (("0.5", "0.5"), ("-1.0", "-1.0"))),
    "float?": Kind("Optional[float]", (NONE, ("0.5", "0.5"))),
    "float[]": Kind("list[float]"),
    "float[]?": Kind("Optional[Sequence[float]]", (NONE,)),
    "bool": Kind("bool", (("True", "True"), ("False", "False"))),
    "bool?": Kind("Optional[bool]", (NONE, ("False", "False"))),
    "bool[]": Kind("list[bool]"),
    "bool[]?": Kind("Optional[list[bool]]", (NONE,)),
    "str": Kind("str", (('"mean"', "'mean'"),)),
    "str?": Kind("Optional[str]", (NONE, ('"mean"', "'mean'"))),
    "str[]": Kind(None),
    "Scalar": Kind(NUMBER, (("2", "2"), ("1.5", "1.5"), ("True", "True"))),
    "Scalar?": Kind(f"Optional[{NUMBER}]", (NONE, ("2", "2"))),
    "Scalar[]": Kind(f"list[{NUMBER}]"),
    "ScalarType": Kind("torch.dtype", (("float32", "torch.float32"),)),
    "ScalarType?": Kind("Optional[torch.dtype]", (NONE,)),
    "ScalarType[]": Kind(None),
    "Device": Kind("torch.device", (('"cpu"', "torch.device('cpu')"),)),
    "Device?": Kind("Optional[torch.device]", (NONE,)),
    "Layout": Kind(None),
    "MemoryFormat?": Kind(None, (NONE,)),
    "complex": Kind(None),
}
NAMES = ("x", "y", "xs", "n", "scale", "mode", "weight", "flag", "other", "input", "out", "dtype")


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: str
    default: tuple[str, str] | None = None
    # The default in the body's signature where it is not the schema's.
    body_default: str | None = None
    keyword_only: bool = False
    mutated: bool = False
    # The alias set of the schema's annotation, for a mutated parameter or a view.
    alias: str = ""

    @property
    def is_tensors(self) -> bool:
        return self.kind.startswith("Tensor")

    def in_schema(self) -> str:
        kind = self.kind
        if self.alias:
            kind = f"Tensor({self.alias}){kind[len('Tensor') :]}"
        return f"{kind} {self.name}" + (f"={self.default[0]}" if self.default else "")

    def in_signature(self, annotated: bool) -> str:
        default = self.body_default or (self.default[1] if self.default else None)
        if not annotated:
            return self.name + ("" if default is None else f"={default}")
        return f"{self.name}: {KINDS[self.kind].annotation}" + ("" if default is None else f" = {default}")


# Result types: the schema's and the annotation's text, and what a good body returns. `first` is the first tensor.
@dataclass(frozen=True)
class Result:
    kind: str
    annotation: str | None
    values: tuple[str, ...]


TENSOR_VALUES = (
    "first.clone()",
    "first + 1",
    "first * 2",
    "torch.ones(3)",
    "first.sum()",
    "torch.zeros(0, 2)",
    "(first * 2).t() if first.dim() == 2 else first * 2",
    "torch.ones(2, 4)[:, 1:]",
    "torch.arange(3)",
    "first > 0",
    "first.detach().clone()",
)
RESULTS = {
    "Tensor": Result("Tensor", "Tensor", TENSOR_VALUES),
    "Tensor[]": Result(
        "Tensor[]", "list[Tensor]", ("[first.clone(), first + 1]", "[]", "[first * 2]", "side.keep([first * 3])")
    ),
    "Tensor?": Result("Tensor?", None, ("first.clone()", "None")),
    "SymInt": Result("SymInt", "int", ("7", "-(2**63)", "first.dim()")),
    "float": Result("float", "float", ("1.5", "float('inf')", "float(first.dim())")),
    "bool": Result("bool", "bool", ("True", "False")),
    "Scalar": Result("Scalar", NUMBER, ("3", "2.5", "True")),
    "str": Result("str", None, ("'text'",)),
    "int[]": Result("int[]", None, ("[1, 2]",)),
    "ScalarType": Result("ScalarType", None, ("first.dtype",)),
    "Device": Result("Device", None, ("first.device",)),
}
RESULT_LISTS = weighted(
    (8, ("Tensor",)),
    (2, ()),
    (3, ("Tensor", "Tensor")),
    (3, ("Tensor[]",)),
    (1, ("Tensor", "SymInt")),
    (1, ("Tensor", "Tensor[]", "float")),
    (1, ("Tensor", "float", "bool", "SymInt")),
    (1, ("SymInt",)),
    (1, ("float",)),
    (1, ("bool",)),
    (1, ("Scalar",)),
    (1, ("float", "Scalar")),
    (1, ("Tensor[]", "Tensor[]")),
    (1, ("Tensor?",)),
    (1, ("Tensor?", "Tensor")),
    (1, ("str",)),
    (1, ("int[]",)),
    (1, ("ScalarType",)),
    (1, ("Device", "Tensor")),
)

# What a body may do before it returns.
DEEDS = weighted(
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
    deed: str = ""
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


FORMULAS = weighted(
    (10, "none"),
    (12, "good"),
    (1, "no setup_context"),
    (1, "too few gradients"),
    (1, "one gradient"),
    (1, "not a tensor"),
    (1, "backward raises"),
    (1, "setup_context raises"),
    (1, "no materialized grads"),
    (1, "marks non-differentiable"),
    (1, "keeps the output"),
    (1, "writes to the input"),
    (1, "setup_context returns the operator"),
)


@dataclass(frozen=True)
class Operator:
    """One generated operator.

    Attributes:
        schema: Whether the schema is given as text; inferred from annotations otherwise.
        mutates_args: As written in the source.
        registrations: Names out of ``REGISTRATIONS``.
    """

    parameters: tuple[Parameter, ...]
    results: tuple[str, ...]
    body: Body
    schema: bool = False
    mutates_args: str = "()"
    tags: str | None = None
    device_types: str | None = None
    formula: str = "none"
    registrations: tuple[str, ...] = ()
    # Alias sets of the results, where the schema has any.
    result_aliases: tuple[str, ...] = ()

    @property
    def has_keyword_only(self) -> bool:
        return any(parameter.keyword_only for parameter in self.parameters)

    def schema_text(self) -> str:
        texts = []
        for parameter in self.parameters:
            if parameter.keyword_only and "*" not in texts:
                texts.append("*")
            texts.append(parameter.in_schema())
        results = [
            f"Tensor({alias}){kind[len('Tensor') :]}" if alias else kind
            for kind, alias in zip(self.results, self.result_aliases or [""] * len(self.results), strict=True)
        ]
        returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
        return f"({', '.join(texts)}) -> {returned}"

    def signature(self) -> str:
        texts = []
        for parameter in self.parameters:
            if parameter.keyword_only and "*" not in texts:
                texts.append("*")
            texts.append(parameter.in_signature(not self.schema))
        if self.schema:
            return f"({', '.join(texts)})"
        annotations = [str(RESULTS[kind].annotation) for kind in self.results]
        returned = annotations[0] if len(annotations) == 1 else f"tuple[{', '.join(annotations)}]"
        return f"({', '.join(texts)}) -> {returned if annotations else 'None'}"


REGISTRATIONS = ("fake", "vmap", "autocast", "kernel", "torch dispatch")
TENSOR_KINDS = weighted(
    (10, "Tensor"), (3, "Tensor?"), (4, "Tensor[]"), (2, "Tensor?[]"), (1, "Tensor[]?"), (1, "Tensor[2]")
)
# Dtypes more often: PyTorch shows their defaults as numbers in some places.
OTHER_KINDS = weighted(
    *((5 if kind == "ScalarType" else 1, kind) for kind in KINDS if not kind.startswith("Tensor")),
)
DEVICE_TYPES = weighted(
    (20, None), (9, "'cpu'"), (3, "['cpu', 'cuda']"), (1, "'cuda'"), (1, "['meta', 'cpu']"), (1, "['cpu']")
)
MUTATES_FORMS = weighted((4, "set"), (2, "tuple"), (2, "list"), (1, "dict"))
OPERATOR_STYLES = weighted((20, "plain"), (2, "inplace"), (2, "out"), (1, "view"), (1, "returns its argument"))
EXTRA_TAGS = weighted(
    (12, None), (1, "torch.Tag.pt2_compliant_tag"), (1, "(torch.Tag.needs_fixed_stride_order,)"), (1, "[]")
)
COUNTS = weighted((3, 1), (3, 2), (2, 3), (2, 4), (1, 0), (1, 6), (1, 9))


def drawn_operator(draw: Draw) -> Operator:
    style = draw(OPERATOR_STYLES)
    with_schema = style in ("view", "returns its argument") or draw.rarely(3)
    results = drawn_results(draw, style, with_schema)
    parameters = drawn_parameters(draw, style, with_schema)
    parameters, mutates_args = with_mutations(draw, style, parameters, with_schema)
    if style == "out":
        results = ("Tensor",) * sum(parameter.mutated for parameter in parameters)
    tags = {"inplace": "torch.Tag.inplace", "out": "(torch.Tag.out,)"}.get(style) or draw(EXTRA_TAGS)
    aliases: tuple[str, ...] = ()
    if (style in ("view", "returns its argument") and parameters[0].alias) or (style == "inplace" and with_schema):
        aliases = (parameters[0].alias,)
    elif style == "out" and with_schema:
        aliases = tuple(parameter.alias for parameter in parameters if parameter.mutated)
    # PyTorch refuses device types without a tensor or a device to tell them by, and formulas for what mutates. Both are
    # tried now and then.
    servable = any(parameter.is_tensors or parameter.kind == "Device" for parameter in parameters)
    mutating = any(parameter.mutated for parameter in parameters)
    return Operator(
        parameters=parameters,
        results=results,
        body=drawn_body(draw, style, parameters, results),
        schema=with_schema,
        mutates_args=mutates_args,
        tags=tags,
        device_types=draw(DEVICE_TYPES) if servable or draw.rarely(20) else None,
        formula=draw(FORMULAS) if not mutating or draw.rarely(12) else "none",
        registrations=tuple(name for name in REGISTRATIONS if draw.rarely(6 if name != "fake" else 3)),
        result_aliases=aliases,
    )


def drawn_results(draw: Draw, style: str, with_schema: bool) -> tuple[str, ...]:
    if style != "plain":
        return ("Tensor",)
    results: tuple[str, ...] = draw(RESULT_LISTS)
    if not with_schema and any(RESULTS[kind].annotation is None for kind in results):
        return ("Tensor",)
    return results


def drawn_parameters(draw: Draw, style: str, with_schema: bool) -> tuple[Parameter, ...]:
    parameters = []
    count = draw(COUNTS)
    if style != "plain":
        parameters.append(Parameter("x", "Tensor"))
    for index in range(len(parameters), max(count, len(parameters))):
        kind = draw(TENSOR_KINDS) if not draw.rarely(2) else draw(OTHER_KINDS)
        if style == "view" and kind.startswith("SymInt") and not draw.rarely(12):
            kind = "int"  # PyTorch refuses views with SymInt
        if KINDS[kind].annotation is None and not with_schema:
            kind = "Tensor" if kind.startswith("Tensor") else "SymInt"
        default = None
        defaults = KINDS[kind].defaults
        if defaults and draw.rarely(2):
            default = defaults[draw.below(len(defaults))]
            if not with_schema and default[1].startswith("["):
                default = None
        name = NAMES[index]
        if draw.rarely(40):
            name = "self"
        keyword_only = not kind.startswith("Tensor") and draw.rarely(5)
        body_default = None
        if default is not None and with_schema and draw.rarely(2):
            body_default = "'the body s own'"
        parameters.append(Parameter(name, kind, default, body_default, keyword_only))
    if len({parameter.name for parameter in parameters}) < len(parameters):
        parameters = [replace(parameter, name=f"a{index}") for index, parameter in enumerate(parameters)]
    if style == "out":
        for index in range(1 + draw.rarely(3)):
            parameters.append(Parameter(f"out{index}", "Tensor", keyword_only=True))
    return tuple(sorted(parameters, key=lambda parameter: (parameter.keyword_only, parameter.default is not None)))


def with_mutations(
    draw: Draw, style: str, parameters: tuple[Parameter, ...], with_schema: bool
) -> tuple[tuple[Parameter, ...], str]:
    """The parameters with the mutated ones marked, and ``mutates_args`` as written in the source."""
    unknown = False
    if style == "inplace" or style == "returns its argument":
        mutated = {parameters[0].name}
    elif style == "out":
        mutated = {
            parameter.name for parameter in parameters if parameter.name.startswith("out") and parameter.keyword_only
        }
    elif style == "view" or not draw.rarely(3):
        mutated = set()
    else:
        mutated = {parameter.name for parameter in parameters if parameter.is_tensors and draw.rarely(2)}
        unknown = not with_schema and draw.rarely(6)
        if unknown:
            mutated = {parameter.name for parameter in parameters if parameter.is_tensors}
    marked = tuple(
        replace(
            parameter,
            mutated=parameter.name in mutated,
            alias=f"a{index}!" if parameter.name in mutated else "a" if style == "view" and index == 0 else "",
        )
        for index, parameter in enumerate(parameters)
    )
    names = [repr(parameter.name) for parameter in marked if parameter.mutated]
    if unknown:
        return marked, "'unknown'"
    if not names:
        return marked, "()"
    if len(names) == 1 and draw.rarely(40):
        return marked, names[0]
    form = draw(MUTATES_FORMS)
    joined = ", ".join(names)
    texts = {
        "set": f"{{{joined}}}",
        "tuple": f"({joined},)",
        "list": f"[{joined}]",
        "dict": f"{{{', '.join(name + ': None' for name in names)}}}",
    }
    return marked, texts[form]


def drawn_body(draw: Draw, style: str, parameters: tuple[Parameter, ...], results: tuple[str, ...]) -> Body:
    deed = draw(DEEDS) if draw.rarely(2) else ""
    if not deed:
        mutated = [p.name for p in parameters if p.mutated]
        if mutated and not draw.rarely(3):
            deed = "MUTATE"
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
    return Body(deed, tuple(values), draw(PACKINGS), returned)
