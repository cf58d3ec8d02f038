"""Generated operators: their parameters and results, and what is registered for them."""

from dataclasses import dataclass, replace

from dutyfree.check.fuzz.bodies import Body, drawn_body
from dutyfree.check.fuzz.draw import Draw, weighted
from dutyfree.check.fuzz.schema_types import KINDS, RESULTS, Parameter

NAMES = ("x", "y", "xs", "n", "scale", "mode", "weight", "flag", "other", "input", "out", "dtype")
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
