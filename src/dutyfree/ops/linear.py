"""``NVFP4Linear``: a linear layer whose weight is kept in NVFP4, and what puts it in place of ``nn.Linear``."""

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dutyfree import ops

BLOCK = 16
ACTIVATIONS = (torch.float16, torch.bfloat16, torch.float32)
# What no cast of the module may touch: bytes, and the factors between them and real numbers.
_FIXED = ("weight", "weight_scale", "weight_global_scale", "input_scale", "alpha")
# Attributes that change nothing of what a layer does: transformers sets the first on all that it has loaded, and
# torch.jit.script the second on all that it has seen.
_MARKS = ("_is_hf_initialized", "__overloads__")


class NVFP4Linear(nn.Module):
    """y = x · Wᵀ + b for inference, with W in NVFP4 and x quantized to NVFP4 in each call.

    A block of 16 elements along K = ``in_features`` shares one e4m3 scale, and a tensor one global scale g =
    448 · 6 / amax, float32: an element is e2m1 · e4m3 / g. The two operators are ``trtllm::tunable_fp4_quantize`` and
    ``trtllm::nvfp4_gemm``.

    The global scale of activations is that of each call's x (dynamic: one pass more over x), or one that was measured
    before (static, ``input_scale``; values beyond the amax it stands for saturate).

    What leaves float32: below 1e-38, which takes an amax of x times an amax of W below 1e-31, ``alpha`` has fewer bits
    than float32, so that results lose precision, and below 1e-45 it is 0, and so are they. Above 3e38 (amax times amax
    above 2e45) it is infinite, and results are infinite or NaN. A static ``input_scale`` of which that is known is
    refused, but not one that is loaded.

    A new module holds zeros: load a state dict, or convert with :meth:`from_linear` and :func:`quantize_linears`.

    Args:
        in_features: K, a multiple of 16.
        out_features: N.
        bias: Whether b is added.
        fuse_bias: Whether ``nvfp4_gemm`` adds b, before it rounds to x's dtype. Without it b is added to its rounded
            result, and the operator is called with six positional arguments, as graph patterns for it expect. A layer
            without b calls it like that in any case.
        static_input_scale: Whether there is an ``input_scale`` to load, 1.0 until then.
        device: Where the buffers are made.
        dtype: The bias's; torch's default dtype without it.

    Buffers (all move with the module; ``.to(dtype)``, ``.half()`` and the like change the bias only):
        weight: uint8 (N, K / 2), element 2i in the low nibble of byte i.
        weight_scale: uint8, flat, the e4m3 scales in the swizzled layout of 128 × 4 tiles, round_up(N, 128) ·
            round_up(K / 16, 4) bytes.
        weight_global_scale: float32 (1,), the weight's g.
        input_scale: float32 (1,), the activations' g; None where it is dynamic.
        alpha: float32 (1,), 1 / (input_scale · weight_global_scale); None where ``input_scale`` is. Not in the state
            dict: loading computes it. After writing to either scale call :meth:`set_input_scale`.
        bias: (N,), or None.

    Raises:
        ValueError: ``in_features`` is no multiple of 16, or a size is not positive.
    """

    weight: Tensor
    weight_scale: Tensor
    weight_global_scale: Tensor
    input_scale: Tensor | None
    alpha: Tensor | None
    bias: Tensor | None
    # Of layers that were pickled before there was a choice.
    fuse_bias: bool = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        static_input_scale: bool = False,
        fuse_bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        refused = _refused_sizes(in_features, out_features)
        if refused:
            raise ValueError(f"NVFP4Linear: {refused}.")
        self.in_features = in_features
        self.out_features = out_features
        self.fuse_bias = fuse_bias
        scales = _round_up(out_features, 128) * _round_up(in_features // BLOCK, 4)
        one = torch.ones(1, dtype=torch.float32, device=device)
        self.register_buffer("weight", torch.zeros(out_features, in_features // 2, dtype=torch.uint8, device=device))
        self.register_buffer("weight_scale", torch.zeros(scales, dtype=torch.uint8, device=device))
        self.register_buffer("weight_global_scale", one)
        self.register_buffer("input_scale", one.clone() if static_input_scale else None)
        self.register_buffer("alpha", one.clone() if static_input_scale else None, persistent=False)
        self.register_buffer("bias", torch.zeros(out_features, dtype=dtype, device=device) if bias else None)
        self._order_buffers()

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, input_scale: Tensor | float | None = None, *, fuse_bias: bool = True
    ) -> "NVFP4Linear":
        """``linear`` with its weight quantized, on the same device.

        Args:
            linear: An ``nn.Linear`` itself, whose weight is fp16, bf16 or float32 and finite. It stays as it is; its
                hooks, and what else was set on it, a ``forward`` of its own included, are not taken over.
            input_scale: The activations' global scale 448 · 6 / amax, one element; without it each call measures its
                own. ``dutyfree.ops.global_scale(x)`` gives it for an x that stands for all.
            fuse_bias: As in :class:`NVFP4Linear`.

        Raises:
            TypeError: ``linear`` is something else than ``nn.Linear``, a subclass included (its forward may do more),
                or its weight has another dtype.
            ValueError: ``in_features`` is no multiple of 16; the weight has no data (meta), an infinity or a NaN; or
                ``input_scale`` is not one positive number, or ``alpha`` with it is 0 or not finite in float32.
        """
        if type(linear) is not nn.Linear:
            raise TypeError(
                f"NVFP4Linear.from_linear takes a torch.nn.Linear and no subclass, whose forward may do more; this is "
                f"a {_type_name(linear)}. Make an nn.Linear of its weight and bias if it does not."
            )
        refused = _refused_weight(linear)
        if refused:
            error = TypeError if linear.weight.dtype not in ACTIVATIONS else ValueError
            raise error(f"NVFP4Linear.from_linear: {refused}.")
        return cls._of(linear, _quantized(linear.weight), input_scale, fuse_bias)

    @classmethod
    def _of(
        cls,
        linear: nn.Linear,
        weight: tuple[Tensor, Tensor, Tensor],
        input_scale: Tensor | float | None,
        fuse_bias: bool,
    ) -> "NVFP4Linear":
        made = cls(linear.in_features, linear.out_features, bias=False, fuse_bias=fuse_bias, device="meta")
        made.weight, made.weight_scale, made.weight_global_scale = weight
        made.bias = None if linear.bias is None else linear.bias.detach().clone()
        made.set_input_scale(input_scale)
        return made.train(linear.training)

    def set_input_scale(self, input_scale: Tensor | float | None) -> None:
        """Make the activations' global scale ``input_scale`` (448 · 6 / amax, one positive number) from now on, or
        measure it in each call (None). Computes ``alpha`` anew.

        Raises:
            ValueError: ``input_scale`` is not one positive number, or ``alpha`` with it is 0 or not finite in float32.
                The layer stays as it was.
        """
        if input_scale is not None:
            scale = torch.as_tensor(input_scale, dtype=torch.float32, device=self.weight_global_scale.device)
            if scale.numel() != 1 or not (scale.is_meta or 0 < scale.item() < float("inf")):
                raise ValueError(
                    f"NVFP4Linear: input_scale is {input_scale!r}; it takes one positive number, 448 * 6 / amax of the "
                    "activations."
                )
            scale = scale.detach().reshape(1).clone()
            alpha = _alpha(scale, self.weight_global_scale.detach())
            if not (alpha.is_meta or 0 < alpha.item() < float("inf")):
                raise ValueError(
                    f"NVFP4Linear: input_scale is {scale.item():g} and weight_global_scale "
                    f"{self.weight_global_scale.item():g}, whose alpha = 1 / (input_scale * weight_global_scale) is "
                    f"{alpha.item():g} in float32; input_scale takes 448 * 6 / amax of the activations."
                )
            self.input_scale, self.alpha = scale, alpha
        else:
            self.input_scale = self.alpha = None
        self._order_buffers()

    def _order_buffers(self) -> None:
        """Those that are None last: with one before a tensor, torch.export of this layer alone raises IndexError."""
        for name in sorted((*_FIXED, "bias"), key=lambda name: self._buffers[name] is None):
            self._buffers[name] = self._buffers.pop(name)

    def _compute_alpha(self) -> None:
        with torch.no_grad():
            known = self.input_scale
            self.alpha = None if known is None else _alpha(known, self.weight_global_scale)

    def forward(self, x: Tensor) -> Tensor:
        """x · Wᵀ + b.

        Args:
            x: (…, K), fp16, bf16 or float32. It is quantized as it is on a CPU, and float32 by way of bf16 elsewhere,
                since the CUDA kernels take no float32.

        Returns:
            (…, N) in x's dtype, also under autocast.

        Raises:
            TypeError: x has another dtype.
            ValueError: x's last dimension is not K.
            RuntimeError: x requires grad while grad mode is on. Rounding to NVFP4 has no gradient; call it under
                ``torch.no_grad()`` or with ``x.detach()``.
        """
        if x.dtype not in ACTIVATIONS:
            raise TypeError(f"NVFP4Linear: x is {x.dtype}; it takes torch.float16, torch.bfloat16 and torch.float32.")
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(
                f"NVFP4Linear: x has shape {tuple(x.shape)}; its last dimension must be in_features = "
                f"{self.in_features}."
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                "NVFP4Linear: x requires grad and grad mode is on, but rounding to NVFP4 has no gradient: it would be "
                "lost here. Call it under torch.no_grad() or torch.inference_mode(), or with x.detach()."
            )
        rows = x if x.dim() == 2 else x.reshape(-1, self.in_features)
        rows = _quantizable(rows).contiguous()
        input_scale, alpha = self.input_scale, self.alpha
        if input_scale is None or alpha is None:
            input_scale = ops.global_scale(rows)
            alpha = _alpha(input_scale, self.weight_global_scale)
        values, scales = ops.tunable_fp4_quantize(rows, input_scale, BLOCK, True)
        bias = self.bias
        if bias is not None and bias.dtype != x.dtype:
            bias = bias.to(x.dtype)
        result: Tensor
        if bias is not None and self.fuse_bias:
            result = ops.nvfp4_gemm(values, self.weight, scales, self.weight_scale, alpha, x.dtype, bias=bias)
        else:
            # Without the bias no keyword, either: users' graph patterns match six arguments.
            result = ops.nvfp4_gemm(values, self.weight, scales, self.weight_scale, alpha, x.dtype)
            if bias is not None:
                result = result + bias
        return result if x.dim() == 2 else result.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        scale = "dynamic" if self.input_scale is None else "static"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"input_scale={scale}{'' if self.fuse_bias else ', fuse_bias=False'}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "NVFP4Linear":
        before = {name: getattr(self, name) for name in _FIXED if getattr(self, name) is not None}
        cast: Any = super()._apply  # which torch leaves without types
        cast(fn, recurse)
        for name, tensor in before.items():
            device = getattr(self, name).device
            if getattr(self, name).dtype != tensor.dtype:  # fn casts: only its device counts
                moved = torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)
                setattr(self, name, moved)
        return self

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        # nn.Module would convert, and so make other bytes of them.
        wrong = []
        for name in _FIXED:
            given, own = state_dict.get(prefix + name), getattr(self, name)
            if isinstance(given, Tensor) and own is not None and given.dtype != own.dtype:
                wrong.append(f"{prefix}{name} is {given.dtype} in the state dict and {own.dtype} in NVFP4Linear.")
        if wrong:
            hint = "Values that are not quantized are converted with NVFP4Linear.from_linear or quantize_linears."
            lists[-1].append(" ".join((*wrong, hint)))
            return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
        self._compute_alpha()


class QuantizedLinears(list[str]):
    """The names that :func:`quantize_linears` replaced.

    Attributes:
        skipped: Why each other ``nn.Linear``, or instance of a subclass, stayed; by name.
    """

    def __init__(self, names: Iterable[str], skipped: dict[str, str]) -> None:
        super().__init__(names)
        self.skipped = skipped

    def __str__(self) -> str:
        lines = [f"{len(self)} linear layers quantized to NVFP4, {len(self.skipped)} left as they are"]
        return "\n".join(lines + [f"  {name}: {reason}" for name, reason in self.skipped.items()])


def quantize_linears(
    module: nn.Module,
    skip: Iterable[str] | Callable[[str, nn.Linear], bool] = (),
    input_scales: Mapping[str, Tensor | float] | None = None,
    *,
    fuse_bias: bool = True,
) -> QuantizedLinears:
    """Put an :class:`NVFP4Linear` in the place of each ``nn.Linear`` below ``module``.

    A layer that can be reached by several names becomes one layer at all of them, and layers that share a weight
    share its quantized form. What stays as it is, with the reason: what ``skip`` names; subclasses of ``nn.Linear``;
    layers whose K is no multiple of 16; whose weight another module keeps in use (an embedding), is not fp16, bf16 or
    float32, is on the meta device or not finite; layers of ``nn.TransformerEncoderLayer`` and
    ``nn.MultiheadAttention``, which read weights past the layer; and layers with what would be lost: hooks of any
    kind, parameters, buffers and child modules that ``nn.Linear`` does not have, and attributes that were set on the
    layer, such as a ``forward`` of its own (all but ``_is_hf_initialized`` of transformers and ``__overloads__`` of
    TorchScript, which are marks).

    Args:
        module: The model; not an ``nn.Linear`` itself.
        skip: Names or patterns (``fnmatch``: ``"*.lm_head"``; ``*`` matches dots, too), each of which stands for all
            below it as well; or a function of a name and its layer.
        input_scales: Static global scales of activations by name, see :meth:`NVFP4Linear.from_linear`; of a layer with
            several names, one is enough. Layers that are not in it measure theirs in each call.
        fuse_bias: As in :class:`NVFP4Linear`, for all of them.

    Returns:
        All names that were replaced, in the order of ``named_modules()``; what was not is in its ``skipped``.

    Raises:
        TypeError: ``module`` is an ``nn.Linear``, which cannot be replaced from within.
        ValueError: ``input_scales`` names something that is not replaced, has a scale that
            :meth:`NVFP4Linear.from_linear` refuses, or two that differ for one layer. Nothing was replaced then.
    """
    if isinstance(module, nn.Linear):
        raise TypeError("quantize_linears replaces layers below a module; for one layer: NVFP4Linear.from_linear.")
    scales = dict(input_scales or {})
    names = _linears_by_name(module)
    skipped = _reasons(module, names, skip)
    stays = {id(names[name]) for name in skipped}
    chosen = {name: linear for name, linear in names.items() if id(linear) not in stays}
    unknown = [name for name in scales if name not in chosen]
    if unknown:
        raise ValueError(
            f"quantize_linears: input_scales has {', '.join(unknown)}, which "
            + ("is" if len(unknown) == 1 else "are")
            + f" not replaced; replaced would be {', '.join(chosen) or 'nothing'}."
        )
    made: dict[int, NVFP4Linear] = {}
    weights: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
    for linear in chosen.values():
        if id(linear) not in made:
            own = _scale_of(linear, chosen, scales)
            if id(linear.weight) not in weights:
                weights[id(linear.weight)] = _quantized(linear.weight)
            made[id(linear)] = NVFP4Linear._of(linear, weights[id(linear.weight)], own, fuse_bias)
    for name, linear in chosen.items():
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, made[id(linear)])
    return QuantizedLinears(chosen, skipped)


def _scale_of(
    linear: nn.Linear, chosen: Mapping[str, nn.Linear], scales: Mapping[str, Tensor | float]
) -> Tensor | float | None:
    """What ``scales`` has for ``linear`` under any of its names; ValueError if they differ."""
    names = [name for name in scales if chosen[name] is linear]
    if not names:
        return None
    first, *others = names
    for other in others:
        one, another = (torch.as_tensor(scales[name], dtype=torch.float32).cpu() for name in (first, other))
        if not torch.equal(one.reshape(-1), another.reshape(-1)):
            raise ValueError(
                f"quantize_linears: input_scales has {scales[first]!r} for {first} and {scales[other]!r} for {other}, "
                "which are one layer."
            )
    return scales[first]


def _linears_by_name(module: nn.Module) -> dict[str, nn.Linear]:
    every = module.named_modules(remove_duplicate=False)
    return {name: child for name, child in every if isinstance(child, nn.Linear)}


def _reasons(
    module: nn.Module, names: dict[str, nn.Linear], skip: Iterable[str] | Callable[[str, nn.Linear], bool]
) -> dict[str, str]:
    """Why layers stay, by name; a layer that stays under one name does so under all."""
    asked = _asked(skip)
    read_past = {
        id(child)
        for owner in module.modules()
        if isinstance(owner, (nn.TransformerEncoderLayer, nn.MultiheadAttention))
        for child in owner.children()
    }
    reasons: dict[int, str] = {}
    for name, linear in names.items():
        if asked(name, linear):
            reasons[id(linear)] = "skip names it" if not callable(skip) else "skip returned True for it"
    for linear in names.values():
        if id(linear) in reasons:
            continue
        if type(linear) is not nn.Linear:
            reasons[id(linear)] = f"a subclass of nn.Linear, {_type_name(linear)}"
        elif id(linear) in read_past:
            reasons[id(linear)] = "nn.TransformerEncoderLayer and nn.MultiheadAttention read its weight past it"
        elif lost := _lost(linear):
            reasons[id(linear)] = lost
        elif refused := _refused_weight(linear):
            reasons[id(linear)] = refused
    for owner_name, owner in module.named_modules():
        # Whoever keeps a weight in use keeps all layers that share it.
        if isinstance(owner, nn.Linear) and id(owner) not in reasons:
            continue
        kept = {id(parameter) for parameter in owner._parameters.values() if parameter is not None}
        for linear in names.values():
            if linear is not owner and id(linear._parameters.get("weight")) in kept:
                reasons.setdefault(id(linear), f"{owner_name or 'the module itself'} uses its weight, too")
    return {name: reasons[id(linear)] for name, linear in names.items() if id(linear) in reasons}


def _lost(linear: nn.Linear) -> str:
    """What ``linear`` has, or lacks, beside an ``nn.Linear`` as it is made, which an ``NVFP4Linear`` would not take."""
    fresh = nn.Linear(1, 1, bias=linear._parameters.get("bias") is not None, device="meta")
    own, usual = vars(linear), vars(fresh)
    hooks = [name.strip("_") for name in usual if "hooks" in name and own.get(name)]
    if hooks:
        return f"it has hooks, which would be lost: {', '.join(hooks)}"
    more = [name for name in own if name not in usual and name not in _MARKS]
    less = [name for name in usual if name not in own]
    for kind in ("_parameters", "_buffers", "_modules"):
        has, had = own.get(kind, {}), usual[kind]
        more += [name for name in has if name not in had]
        less += [name for name in had if name not in has]
    if more:
        return f"it has what nn.Linear does not, which would be lost: {', '.join(more)}"
    return f"it lacks what nn.Linear has: {', '.join(less)}" if less else ""


def _asked(skip: Iterable[str] | Callable[[str, nn.Linear], bool]) -> Callable[[str, nn.Linear], bool]:
    if callable(skip):
        return skip
    patterns = [skip] if isinstance(skip, str) else list(skip)
    return lambda name, _: any(fnmatch.fnmatchcase(part, pattern) for pattern in patterns for part in _beginnings(name))


def _beginnings(name: str) -> Iterator[str]:
    """``a``, ``a.b`` and ``a.b.c`` of ``a.b.c``."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _refused_sizes(in_features: int, out_features: int) -> str:
    if out_features < 1 or in_features < 1:
        return f"in_features is {in_features} and out_features {out_features}; both must be positive"
    if in_features % BLOCK:
        return f"in_features is {in_features}, not a multiple of {BLOCK}, the elements that share a scale"
    return ""


def _refused_weight(linear: nn.Linear) -> str:
    weight = linear.weight
    if type(weight) is not nn.Parameter:
        return f"its weight is a {_type_name(weight)}, not a plain parameter"
    if weight.dtype not in ACTIVATIONS:
        return f"its weight is {weight.dtype}; torch.float16, torch.bfloat16 and torch.float32 can be quantized"
    sizes = _refused_sizes(linear.in_features, linear.out_features)
    if sizes:
        return sizes
    if weight.is_meta:
        return "its weight is on the meta device and has no data"
    return "" if bool(torch.isfinite(weight.detach()).all()) else "its weight has infinities or NaN"


@torch.no_grad()
def _quantized(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = _quantizable(weight.detach()).contiguous()
    scale = ops.global_scale(rows).reshape(1)
    values, scales = ops.tunable_fp4_quantize(rows, scale, BLOCK, True)
    return values, scales, scale


def _alpha(input_scale: Tensor, weight_global_scale: Tensor) -> Tensor:
    """1 / (input_scale · weight_global_scale), whose product may overflow where this does not."""
    return torch.reciprocal(input_scale) / weight_global_scale


def _quantizable(x: Tensor) -> Tensor:
    """Only CPU kernels read float32."""
    return x.to(torch.bfloat16) if x.dtype == torch.float32 and x.device.type != "cpu" else x


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
