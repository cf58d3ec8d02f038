"""Renders a case to the source that the fuzzer runs and saves."""

import re
from dataclasses import dataclass
from typing import Any

from dutyfree.check.fuzz import kit
from dutyfree.check.fuzz.calls import LATER, Call, Later
from dutyfree.check.fuzz.operators import Operator
from dutyfree.check.fuzz.schema_types import RESULTS
from dutyfree.check.fuzz.sides import Define, Step
from dutyfree.check.fuzz.states import STATES


@dataclass(frozen=True)
class Case:
    """An operator and what happens to it.

    Attributes:
        side: What is compared with custom_op, one of ``compare.SIDES``.
    """

    operator: Operator
    steps: tuple[Call | Later, ...]
    side: str = "fast"

    def source(self, title: str = "A generated case.") -> str:
        """The stand-alone script."""
        body = "\n\n".join([_definition(self.operator), *map(_step, range(len(self.steps)), self.steps)])
        names = ", ".join(f"step_{number}" for number in range(len(self.steps)))
        return (
            f'"""{title}"""\n\n{_imports(body)}\n\n{body}\n\nSTEPS = [{names}]\n\n'
            f'if __name__ == "__main__":\n    main(define, STEPS, {self.side!r})\n'
        )

    def load(self) -> tuple[Define, list[Step], str]:
        """The functions of the source, in this process, and the side: what ``compare`` takes."""
        # A module that inspect.getmodule, which error messages use, finds at once; and main() does not run.
        names: dict[str, Any] = {"__name__": __name__}
        exec(compile(self.source(), "<fuzz>", "exec"), names)
        return names["define"], names["STEPS"], self.side


_KIT = [name for name, value in vars(kit).items() if getattr(value, "__module__", "") == kit.__name__]
_KIT_NAMES = re.compile(rf"\b({'|'.join(_KIT)})\b")
_OTHER_IMPORTS = {
    "warnings": "import warnings",
    "thread_state": "from dutyfree.check.outcome import thread_state",
    "Optional": "from typing import Optional",
    "Union": "from typing import Union",
    "Sequence": "from collections.abc import Sequence",
    "numpy": "import numpy",
    "Tensor": "from torch import Tensor",
    "forward_ad": "from torch.autograd import forward_ad",
    "FlopCounterMode": "from torch.utils.flop_counter import FlopCounterMode",
    "enable_python_dispatcher": "from torch._dispatch.python import enable_python_dispatcher",
}


def _imports(body: str) -> str:
    used = sorted(set(_KIT_NAMES.findall(body)))
    lines = [line for name, line in _OTHER_IMPORTS.items() if re.search(rf"\b{name}\b", body)]
    lines += ["import torch", "from dutyfree.check.fuzz.compare import main"]
    if used:
        lines.append(f"from dutyfree.check.fuzz.kit import {', '.join(used)}")
    return "\n".join(sorted(lines, key=lambda line: ("dutyfree" in line, "torch" in line, line)))


def _definition(operator: Operator) -> str:
    names = [parameter.name for parameter in operator.parameters]
    given = ", ".join(names)
    lines = [
        "def define(side):",
        "    @side.recorded",
        f"    def body{operator.signature()}:",
        *(f"        {line}" for line in _body(operator, given)),
        "",
        "    def other(*args, **kwargs):",
        "        first = first_tensor(args, kwargs)",
        f"        return {_other_result(operator)}",
        "",
        *_formula(operator),
        "    side.other, side.setup_context, side.backward = other, setup_context, backward",
        f"    side.register(body, {_options(operator)})",
    ]
    if operator.formula == "no setup_context":
        lines.append(f"    {LATER['autograd without setup_context']}")
    elif operator.formula != "none":
        lines.append(f"    {LATER['autograd']}")
    for registration in operator.registrations:
        lines.append(f"    {AT_DEFINITION.get(registration) or LATER[registration]}")
    return "\n".join(lines) + "\n"


# What a definition registers in another way than a later step.
AT_DEFINITION = {
    "torch dispatch": "side.op.register_torch_dispatch(Wrapper, lambda cls, func, types, args, kwargs: torch.ones(6))",
}


def _options(operator: Operator) -> str:
    options = [f"mutates_args={operator.mutates_args}"]
    if operator.schema:
        options.append(f"schema={operator.schema_text()!r}")
    if operator.tags is not None:
        options.append(f"tags={operator.tags}")
    if operator.device_types is not None:
        options.append(f"device_types={operator.device_types}")
    return ", ".join(options)


def _body(operator: Operator, given: str) -> list[str]:
    body = operator.body
    lines = [f"first = first_tensor({given})"]
    if body.effect == "RECURSE":
        positional = [p.name for p in operator.parameters if not p.keyword_only]
        named = [f"{p.name}={p.name}" for p in operator.parameters if p.keyword_only]
        lines += ["if side.once():", f"    return side.op({', '.join(positional + named)})"]
    elif body.effect == "LISTS":
        lines += [
            f"for given in ({given}{',' if given else ''}):",
            "    if isinstance(given, list):",
            "        given.append(3)",
        ]
    elif body.effect == "MUTATE":
        mutated = [p.name for p in operator.parameters if p.mutated]
        lines += [f"for tensor in tensors_in([{', '.join(mutated)}]):", "    tensor.add_(1)"]
    elif body.effect:
        lines.append(body.effect)
    result = body.result().replace("GIVEN", f"[{given}]")
    return [*lines, f"return {result}"]


def _other_result(operator: Operator) -> str:
    if operator.tags and ("inplace" in operator.tags or "Tag.out" in operator.tags):
        mutated = [p for p in operator.parameters if p.mutated]
        if mutated[0].keyword_only:
            return ", ".join(f"kwargs[{p.name!r}]" for p in mutated)
        return "first"
    values = [RESULTS[kind].values[0].replace("first.clone()", "first * 5") for kind in operator.results]
    return ", ".join(values) if values else "None"


def _formula(operator: Operator) -> list[str]:
    inputs = "inputs, keyword_only_inputs" if operator.has_keyword_only else "inputs"
    saved = "keep(ctx, inputs)"
    wrong = {
        "setup_context raises": "raise Trouble('from setup_context')",
        "no materialized grads": "ctx.set_materialize_grads(False)",
        "marks non-differentiable": "ctx.mark_non_differentiable(*tensors_in(output))",
        "keeps the output": "ctx.save_for_backward(*tensors_in(output)); return",
        "writes to the input": "first_tensor(inputs).detach().add_(1)",
        "setup_context returns the operator": "ctx.output = output",
    }.get(operator.formula)
    returned = {
        "too few gradients": "gradients(ctx, grads)[1:]",
        "one gradient": "grads[0]",
        "not a tensor": "('text', *gradients(ctx, grads)[1:])",
    }.get(operator.formula, "gradients(ctx, grads)")
    raising = ["        raise Trouble('from backward')"] if operator.formula == "backward raises" else []
    if operator.formula == "keeps the output":
        returned = "tuple(None for _ in ctx.needs_input_grad)"
    return [
        f"    def setup_context(ctx, {inputs}, output):",
        f"        side.saw('setup_context', {inputs}, output, ctx.needs_input_grad, state=thread_state())",
        *([f"        {wrong}"] if wrong else []),
        f"        {saved}",
        "",
        "    def backward(ctx, *grads):",
        "        side.saw('backward', grads, ctx.needs_input_grad, ctx.saved_tensors, state=thread_state())",
        *raising,
        f"        return {returned}",
        "",
    ]


def _step(number: int, step: Call | Later) -> str:
    if isinstance(step, Later):
        return f"def step_{number}(side):\n    {LATER[step.what]}\n"
    making = [f"t{index} = {text}" for index, text in enumerate(step.tensors)]
    calling = [_calling(step)]
    if step.backward:
        calling.append(f"side.differentiate({step.backward!r})")
    if step.threaded:
        calling = [f"side.in_thread(lambda: ({', '.join(calling)}))"]
    if not step.states:
        lines = [*making, *calling]
    else:
        within = [*making, *calling] if step.made_inside else calling
        contexts = ", ".join(STATES[state] for state in step.states)
        lines = [*([] if step.made_inside else making), f"with {contexts}:", *(f"    {line}" for line in within)]
    return "\n".join([f"def step_{number}(side):", *(f"    {line}" for line in lines)]) + "\n"


def _calling(step: Call) -> str:
    arguments = ", ".join([*step.args, *(f"{name}={text}" for name, text in step.kwargs)])
    separated = f", {arguments}" if arguments else ""
    if step.transform:
        return f"side.transformed({step.transform!r}, {step.spelling!r}{separated})"
    return f"side.call({step.spelling!r}{separated})"
