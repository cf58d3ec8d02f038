"""The tables of docs/ltx2.md: the published figures beside this project's, and what becomes of them with more ranks."""

from __future__ import annotations

from typing import Any

from dutyfree.bench.ltx2 import published
from dutyfree.bench.ltx2.cases import EAGER, OPTIONS, REGISTRATION_TITLES, TIMED, TRACE, title_of
from dutyfree.bench.ltx2.ranks import RANKS, expected_max_normal, fitted
from dutyfree.bench.ltx2.report import device_of, model_cases, published_run
from dutyfree.bench.results import Results, Row
from dutyfree.workloads.ltx2.trace import GEMM_CALLS, QUANTIZE_CALLS
from table_parts import header, note


def ltx2_tax_table(content: dict[str, Any]) -> str:
    """A call's tax and a step's of 2,100 calls, published and measured here."""
    results = Results.from_json(content)
    calls = sum(results.facts["calls"].values())
    lines = header(["registration", "tax a call, µs: theirs", "ours", f"{calls:,} calls, ms: theirs", "ours"])
    for name in TIMED[1:]:
        row = found(results, TRACE, name)
        theirs = published.TAX_US.get(name)
        cells = [
            REGISTRATION_TITLES[name],
            "" if theirs is None else f"{theirs:.2f}",
            f"{row.tax_us / calls:.2f}",
            "" if theirs is None else f"{theirs * published.CALLS / 1000:.1f}",
            f"{row.tax_us / 1000:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    plain = found(results, TRACE, "plain").us / 1000
    return "\n".join(lines + note(content, f"The plain functions take {plain:.2f} ms."))


def ltx2_modes_table(content: dict[str, Any]) -> str:
    """A step's host time by mode, and the part of it that the operators take."""
    results = Results.from_json(content)
    columns = ["host time a step, ms", "calls × µs", "the operators' share", "the tax's share"]
    lines = header(["mode, registration", *columns])
    for case in [case for case in model_cases(results) if case in (EAGER, *OPTIONS)]:
        theirs, facts = published.HOST_TIMES[case], results.facts[case]
        each = f"{published.CALLS:,} × {published.OPERATOR_US:.0f}"
        lines.append(
            f"| **{title_of(case)}**, theirs: `custom_op` | {theirs.host_ms:.0f} | {each} | {theirs.share:.1%} | |"
        )
        for name in TIMED:
            row = found(results, case, name)
            calls = sum(results.facts[EAGER]["calls"][name].values())
            us = (row.us - facts["absent_us"]) / calls
            tax = f"{row.tax_us / row.us:.1%}" if name != "plain" else ""
            share = f"{facts['share'][name]:.1%}"
            lines.append(
                f"| {REGISTRATION_TITLES[name]} | {row.us / 1000:.1f} | {calls:,} × {us:.1f} | {share} | {tax} |"
            )
    absent = ", ".join(
        f"{title_of(case)} {results.facts[case]['absent_us'] / 1000:.1f}"
        for case in model_cases(results)
        if case in (EAGER, *OPTIONS)
    )
    return "\n".join(lines + note(content, f"A step without the operators, ms: {absent}."))


def ltx2_runs_table(content: dict[str, Any]) -> str:
    """Runs from end to end."""
    results = Results.from_json(content)
    steps = results.facts["steps"]
    columns = [f"s a run of {steps} steps", "ms a step", "calls a step", "from `custom_op`", "latents"]
    lines = header(["run, registration", *columns])
    for case in model_cases(results):
        facts, theirs = results.facts[case], published_run(case)
        lines.append(f"| **{title_of(case)}** | | | | | |")
        if theirs is not None:
            calls = f"{QUANTIZE_CALLS:,} + {GEMM_CALLS:,}"
            of = f"theirs, {theirs.gpus} × B200"
            for name, seconds, change in (
                ("`custom_op`", theirs.before_s, ""),
                ("`fast_custom_op`", theirs.after_s, f"{theirs.change:+.1%}"),
            ):
                ms = seconds / published.STEPS * 1000
                lines.append(f"| {of}: {name} | {seconds:.2f} | {ms:.1f} | {calls} | {change} | |")
        for name in TIMED:
            row = found(results, case, name)
            seconds = facts["seconds_a_run"][name]
            change = f"{seconds / facts['seconds_a_run']['custom_op'] - 1:+.1%}" if name != "custom_op" else ""
            calls = " + ".join(f"{n:,}" for n in facts.get("calls", results.facts[EAGER]["calls"])[name].values())
            latents = facts.get("difference", {}).get(name)
            equal = "equal" if latents is None else f"within {latents['largest']:.2g}"
            lines.append(
                f"| {REGISTRATION_TITLES[name]} | {seconds:.2f} | {row.us / 1000:.1f} | {calls} | {change} | {equal} |"
            )
    seconds_of = "Seconds a run are a step's in the median turn, of several processes in the median, times the steps."
    return "\n".join(lines + note(content, seconds_of))


def ltx2_ranks_table(content: dict[str, Any]) -> str:
    """What cheaper calls save where N ranks wait for each other: the model, what was published, and draws from here."""
    results, model = Results.from_json(content), fitted()
    slowest = results.facts[EAGER]["expected_max_us"]
    columns = ["m(N)", "step(N), ms", "change, c = 0", "change, all wait", "published"]
    ours = ["here: slowest of N, `custom_op`, ms", "`fast_custom_op`", "change"]
    lines = header(["ranks", *columns, *ours])
    for ranks in RANKS:
        run = published.RUNS.get(ranks)
        before, after = (slowest[name][str(ranks)] / 1000 for name in ("custom_op", "dutyfree"))
        cells = [
            str(ranks),
            f"{expected_max_normal(ranks):.2f}",
            f"{model.step_ms(ranks):.0f}",
            f"{model.change(ranks, waiting=False):.1%}",
            f"{model.change(ranks):.1%}",
            "" if run is None else f"{run.change:.1%}",
            f"{before:.1f}",
            f"{after:.1f}",
            f"{after / before - 1:+.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    taxes = ", ".join(f"{name} {found(results, EAGER, name).tax_us / 1000:.1f}" for name in ("custom_op", "dutyfree"))
    constants = (
        f"a = {model.fixed_ms:.0f} ms, b = {model.divided_ms:.0f} ms, s = {model.saved_ms:.1f} ms, "
        f"c = {model.variation:.2f}."
    )
    return "\n".join(lines + note(content, constants, f"A step's tax in this run, ms: {taxes}."))


def found(results: Results, case: str, name: str) -> Row:
    row = results.find(case, name, device_of(results, case))
    if row is None:
        raise ValueError(f"the results have no row {case}, {name}")
    return row
