"""What operators find by a layer's name: a graph holds the name, and no tensor of the cache."""

from torch import Tensor

_caches: dict[str, list[tuple[Tensor, Tensor]]] = {}
_experts: dict[str, tuple[Tensor, Tensor, int]] = {}


def reset() -> None:
    """Forget the keys and values of all layers."""
    for entries in _caches.values():
        entries.clear()


def cache_of(layer: str) -> list[tuple[Tensor, Tensor]]:
    """The keys and values that a layer has seen, oldest first."""
    return _caches.setdefault(layer, [])


def set_experts(layer: str, up: Tensor, down: Tensor, per_token: int) -> None:
    """``up``: [experts, hidden, inner]; ``down``: [experts, inner, hidden]; ``per_token`` of them see each token."""
    _experts[layer] = (up, down, per_token)


def experts_of(layer: str) -> tuple[Tensor, Tensor, int]:
    return _experts[layer]
