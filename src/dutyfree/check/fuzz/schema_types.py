"""The schema language's types: of a parameter, with default values, and of a result, with what a body returns."""

from dataclasses import dataclass


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


@dataclass(frozen=True)
class Result:
    """The schema's and the annotation's text, and what a good body returns. ``first`` is the first tensor."""

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
