"""What DUTYFREE and DUTYFREE_AUTO in the environment do to accelerate, and `dutyfree run`."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import dutyfree
from accelerated import restored

__all__ = ["restored"]  # a fixture for every test here


def in_a_process(source: str, *command: str, **environment: str) -> dict[str, Any]:
    """Runs a program that prints one line of JSON at its end."""
    finished = subprocess.run(
        [sys.executable, "-X", "faulthandler", *(command or ("-c", textwrap.dedent(source)))],
        env={**{key: value for key, value in os.environ.items() if not key.startswith("DUTYFREE")}, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


PROGRAM = """
import json, sys
import torch
library = torch.library.Library("program", "FRAGMENT")
library.define("op(Tensor x) -> Tensor")
library.impl("op", lambda x: x + 1, "CPU")
x = torch.ones(2)
values = [torch.ops.program.op(x).tolist(), torch.ops.aten.relu(x).tolist()]
import dutyfree
stats = dutyfree.stats()
paths = {name: [path for path, count in stats[name].calls.items() if count] if name in stats else []
         for name in ("program::op", "aten::relu")}
print(json.dumps({"values": values, "paths": paths, "argv": sys.argv[1:], "main": __name__}))
"""
TAKEN = {"program::op": ["direct"], "aten::relu": ["boxed"]}
NOT_TAKEN: dict[str, list[str]] = {"program::op": [], "aten::relu": []}


def test_dutyfree_off_accelerates_nothing() -> None:
    found = in_a_process(
        """
        import json, torch, dutyfree
        relu, before = torch.ops.aten.relu, torch.ops.aten.relu._op
        report = dutyfree.accelerate(relu.default)
        entry = report["aten::relu"]
        relu(torch.ones(2))
        print(json.dumps([entry.path, entry.reason, len(report), relu._op is before, len(dutyfree.stats()),
                          str(report), dutyfree.explain(relu, torch.ones(2)).path]))
        """,
        DUTYFREE="off",
    )
    assert found[:5] == ["pytorch", "DUTYFREE=off", 2, True, 0]  # type: ignore[index]
    assert "DUTYFREE=off" in found[5]  # type: ignore[index]
    assert found[6] == "pytorch"  # type: ignore[index]


def test_dutyfree_audit_finds_an_operator_that_lies() -> None:
    found = in_a_process(
        """
        import json, torch, dutyfree
        calls = []
        library = torch.library.Library("program", "FRAGMENT")
        for name, body in {
            "honest": lambda x: x + 1,
            "writes": lambda x: x.add_(1).clone(),
            "differs": lambda x: x + len(calls) + (calls.append(1) or 0),
            "random": lambda x: torch.rand_like(x),
            "raises": lambda x: (_ for _ in ()).throw(ValueError("from the body")),
        }.items():
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, body, "CPU")
        dutyfree.accelerate("program")
        dutyfree.accelerate("aten")
        results = {}
        for name in ("honest", "writes", "differs", "random", "raises"):
            for op in (getattr(torch.ops.program, name), getattr(torch.ops.program, name).default):
                try:
                    op(torch.ones(2)); text = "fine"
                except Exception as error:
                    text = f"{type(error).__name__}: {error}"
                results.setdefault(name, []).append(text)
        x = torch.ones(2)
        aten = [torch.ops.aten.add(x, 1).tolist(), torch.ops.aten.add_.Tensor(x, 1) is x, torch.rand(2).shape[0]]
        print(json.dumps([results, aten]))
        """,
        DUTYFREE="audit",
    )
    results, aten_results = found
    assert results["honest"] == results["random"] == ["fine", "fine"]  # type: ignore[index]
    assert all("AuditError" in text and "wrote" in text for text in results["writes"])  # type: ignore[index]
    assert all("AuditError" in text and "differs" in text for text in results["differs"])  # type: ignore[index]
    assert results["raises"] == ["ValueError: from the body"] * 2  # type: ignore[index]
    assert aten_results == [[2.0, 2.0], True, 2]


def test_dutyfree_auto_needs_no_change_to_the_program(tmp_path: Path) -> None:
    source = Path(dutyfree.__file__).parent.parent
    hook = tmp_path / "sitecustomize.py"  # runs the hook's line where an installed .pth would
    hook.write_text((source / "dutyfree_auto.pth").read_text())
    path = os.pathsep.join([str(tmp_path), str(source)])
    assert in_a_process(PROGRAM, DUTYFREE_AUTO="1", PYTHONPATH=path)["paths"] == TAKEN
    assert in_a_process(PROGRAM, DUTYFREE_AUTO="0", PYTHONPATH=path)["paths"] == NOT_TAKEN
    assert in_a_process(PROGRAM, DUTYFREE_AUTO="1", DUTYFREE="off", PYTHONPATH=path)["paths"] == NOT_TAKEN
    without_torch = (
        "import sys, json; print(json.dumps({'torch': 'torch' in sys.modules, 'ours': 'dutyfree' in sys.modules}))"
    )
    assert in_a_process(without_torch, DUTYFREE_AUTO="1", PYTHONPATH=path) == {"torch": False, "ours": False}


def test_dutyfree_run_runs_a_script_and_a_module(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    run = ("-c", "from dutyfree.cli import app; app()", "run")
    script = in_a_process("", *run, str(tmp_path / "program.py"), "a", "--stats", "-m")
    assert script["paths"] == TAKEN
    assert script["argv"] == ["a", "--stats", "-m"]
    assert script["main"] == "__main__"
    module = in_a_process("", *run, "-m", "program", "a", "--b", PYTHONPATH=str(tmp_path))
    assert module["paths"] == TAKEN
    assert module["argv"] == ["a", "--b"]
    assert module["main"] == "__main__"
    assert script["values"] == module["values"] == [[2.0, 2.0], [1.0, 1.0]]
