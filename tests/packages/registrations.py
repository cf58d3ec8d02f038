"""The operators that a package's sources name when they register them, whether or not this machine runs those lines."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

# Functions that take "namespace::name", by the last part of the name that they are called by.
_REGISTERING = {"custom_op", "_custom_op", "triton_op", "register_custom_op_impl", "register_custom_op"}


def named_in_sources(package: ModuleType) -> set[str]:
    """``"namespace::name"`` of each, unless the source makes the name as it runs."""
    (folder,) = package.__path__
    return {name for path in Path(folder).rglob("*.py") for name in _named_in(path)}


def _named_in(path: Path) -> Iterator[str]:
    source = path.read_text()
    if "torch.library" not in source and "_custom_op" not in source:
        return
    tree = ast.parse(source)
    namespaces = dict(_libraries(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            callee, text = _last_name(node.func), _text(node)
            if callee in _REGISTERING and "::" in text:
                yield text
            # lib.define("name(Tensor x) -> Tensor")
            elif callee == "define" and text and isinstance(node.func, ast.Attribute):
                yield f"{namespaces[_last_name(node.func.value)]}::{text.partition('(')[0]}"
        elif isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                library = _library_of(decorator, namespaces)
                if library:
                    yield f"{namespaces[library]}::{node.name.removeprefix('_')}"


def _library_of(decorator: ast.expr, namespaces: dict[str, str]) -> str:
    """The library of torchao's decorator, which names an operator after the function.

    It is written ``@_register_custom_op(library, False)``, or as ``@register_custom_op``, made from the file's library.
    """
    if isinstance(decorator, ast.Call):
        library = _last_name(decorator.args[0]) if decorator.args else ""
        return library if _last_name(decorator.func) == "_register_custom_op" and library in namespaces else ""
    return next(iter(namespaces)) if _last_name(decorator) == "register_custom_op" else ""


def _libraries(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The variables that hold a Library, each with its namespace."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and _last_name(node.value.func) == "Library"
        ):
            yield _last_name(node.targets[0]), _text(node.value)


def _last_name(node: ast.AST) -> str:
    return getattr(node, "attr", None) or getattr(node, "id", "")


def _text(call: ast.Call) -> str:
    """The first argument, where it is a text in the source."""
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
