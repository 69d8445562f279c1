"""A plan to be read: tables for a person, one object for a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from rich.console import Console
from rich.table import Table

from hone.trainers.planning.disk import Disk
from hone.trainers.planning.due import DueSteps
from hone.trainers.planning.memory import Phase
from hone.trainers.planning.passes import Pass
from hone.trainers.planning.plan import Plan
from hone.trainers.planning.warnings import warnings_of

MIB, GIB = 2**20, 2**30
FEW_STEPS = 4  # of a list of steps that are named


def show(plan: Plan, console: Console) -> None:
    console.print(f"\n[bold]hone {plan.command}[/bold]: {_headline(plan)}\n")
    for table in (_run(plan), _step(plan), _models(plan), _phases(plan), _disk(plan)):
        console.print(table)
    console.print(_verdict(plan), markup=False, style="bold")
    for remark in plan.remarks:
        console.print(f"note: {remark}", markup=False, style="dim")
    for warning in warnings_of(plan):
        console.print(f"warning: {warning}", markup=False, style="bold red")


def size(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB / 2 else f"{count / MIB:.1f} MiB"


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _headline(plan: Plan) -> str:
    places, kind = plan.places, plan.machine.kind
    where = f"{places.ranks} ranks on {places.nodes} machine(s)" if places.ranks > 1 else "one process"
    return f"{plan.steps.left} training steps in {where}, on {kind}"


def _run(plan: Plan) -> Table:
    table = Table("", "", show_header=False, box=None, pad_edge=False)
    steps, batches = plan.steps, plan.batches
    table.add_row("data", f"{steps.rows:,} rows, {steps.validation_rows:,} to validate with")
    done = f", of which {steps.done:,} are done" if steps.done else ""
    each = f"{steps.steps_per_epoch:,} steps an epoch"
    table.add_row("steps", f"{steps.total:,}{done}: {steps.epochs:.2f} epochs of {each}")
    table.add_row(
        "a step", f"{batches.rows:,} rows, {batches.sequences:,} sequences, at most {batches.most_tokens:,} tokens"
    )
    for role, update in plan.updates.items():
        warm = f", the learning rate rises for {update.warmup:,}" if update.warmup else ""
        table.add_row(f"{role}", f"{update.total:,} optimiser steps in all, {update.optimizer_steps:,} a step{warm}")
    table.add_row("validations", _named(steps.validations))
    table.add_row("checkpoints", _named(steps.saves))
    for label, text in _places(plan):
        table.add_row(label, text)
    return table


def _named(steps: DueSteps) -> str:
    if not steps:
        return "none"
    shown = [str(step) for step in islice(steps, FEW_STEPS)]
    if len(steps) > FEW_STEPS:
        shown = [*shown[:-1], "...", str(steps.newest)]
    return f"{len(steps):,}: after step {', '.join(shown)}"


def _places(plan: Plan) -> Iterator[tuple[str, str]]:
    places = plan.places
    who = "this process" if places.ranks == 1 else f"each of ranks 0 to {places.ranks - 1}"
    spread = f" ({places.ranks_per_node} a machine)" if places.nodes > 1 else ""
    yield who + spread, ", ".join(places.roles)
    yield "the command", ", ".join(places.driver)
    for what, groups in (("weights held by", places.shard_groups), ("sequences shared by", places.sequence_groups)):
        if groups:
            yield what, ", ".join(f"{role}: {count} ranks" for role, count in groups.items())


def _step(plan: Plan) -> Table:
    title = "A training step, of the rank with most to do"
    table = _table(title, "pass", "sequences", "micro-batches", "fullest: sequences", "its tokens", "optimiser steps")
    for name, one in plan.passes.items():
        table.add_row(name, *_pass(one), "")
    for role, update in plan.updates.items():
        times = f"{update.mini_batches} x {update.epochs}"
        table.add_row(f"update {role}, a mini-batch of {update.mini_batch:,}", *_pass(update.share), times)
    return table


def _pass(one: Pass) -> tuple[str, str, str, str]:
    micro = one.fullest
    count = f"{one.micro_batches:,}" if one.exact else f"<= {one.micro_batches:,}"
    return f"{one.sequences:,}", count, f"{len(micro.lengths):,}", f"{one.tokens:,}"


def _models(plan: Plan) -> Table:
    table = _table("Held by a rank", "role", "parameters", "trained", "weights", "gradients", "optimiser", "when idle")
    for model in plan.models:
        held, offload = model.storage, model.offload
        away = [name for name, off in (("weights", offload.weights), ("optimiser", offload.optimizer_state)) if off]
        idle = "all on the CPU" if model.cpu_policy else f"{' and '.join(away)} on the CPU" if away else ""
        sizes = (size(held.weights), size(held.gradients), size(held.optimizer))
        table.add_row(model.role, f"{held.parameters:,}", f"{held.trained:,}", *sizes, idle)
    return table


def _phases(plan: Plan) -> Table:
    table = _table("Memory of a rank, phase by phase", "phase", "most", "of which", "on the CPU")
    table.columns[2].justify = "left"
    for phase in plan.phases:
        parts = ", ".join(f"{name} {size(count)}" for name, count in phase.device.items())
        style = "bold" if phase is plan.largest else None
        most = f"{'> ' if phase.unknown else ''}{size(phase.peak)}"
        table.add_row(phase.name, most, parts, size(phase.host_peak) if phase.host_peak else "", style=style)
    return table


def _disk(plan: Plan) -> Table:
    table = _table(f"Disk: {plan.disk.folder}", "role", "a checkpoint", "of which", "kept", "at most")
    table.columns[2].justify = "left"
    for role, disk in plan.disk.roles.items():
        parts = ", ".join(f"{name} {size(count)}" for name, count in disk.files.items())
        table.add_row(role, size(disk.checkpoint), parts, f"{disk.kept:,}", size(disk.most))
    if plan.disk.trajectories:
        table.add_row("trajectories", "", "about, at the longest", "", size(plan.disk.trajectories))
    return table


def _verdict(plan: Plan) -> str:
    machine, many = plan.machine, plan.places.ranks_per_node
    who = "a rank" if machine.kind == "cuda" else f"a machine's {many} ranks" if many > 1 else "the process"
    if machine.memory is None:
        there = "how much there is, is not known here: state it with --memory-gib"
    else:
        there = f"{'stated' if machine.stated else 'there are'} {size(machine.memory)}: " + _fit(plan)
    base = f"{size(machine.process)} of it before any model"
    return (
        f"memory: {who} needs about {size(plan.needed)} ({plan.largest.name}; {base}); {there}\n"
        f"disk: about {size(plan.disk.needed)} at most; {size(plan.disk.free)} are free"
    )


def _fit(plan: Plan) -> str:
    return "it does not fit" if not plan.fits else "it hardly fits" if plan.tight else "it fits"


def as_dict(plan: Plan) -> dict[str, Any]:
    """Bytes throughout. Names are those of the classes in this folder."""
    machine, places, steps = plan.machine, plan.places, plan.steps
    return {
        "command": plan.command,
        "fits": plan.fits,
        "warnings": list(warnings_of(plan)),
        "notes": plan.remarks,
        "machine": {"device": machine.kind, "memory": machine.memory, "needed": plan.needed, "process": machine.process,
                    "host_memory": machine.host, "host_needed": plan.host_needed},
        "places": {**vars(places), "ranks": places.ranks},
        "steps": {**vars(steps), "left": steps.left, "epochs": steps.epochs,
                  "validations": _due_dict(steps.validations), "saves": _due_dict(steps.saves)},
        "step": vars(plan.batches),
        "passes": {name: _pass_dict(one) for name, one in plan.passes.items()},
        "updates": {
            role: {"mini_batch": u.mini_batch, "mini_batches": u.mini_batches, "epochs": u.epochs,
                   "optimizer_steps": u.optimizer_steps, "total": u.total, "warmup": u.warmup, **_pass_dict(u.share)}
            for role, u in plan.updates.items()
        },
        "models": {model.role: vars(model.storage) | {"offload": vars(model.offload)} for model in plan.models},
        "phases": {phase.name: _phase_dict(phase) for phase in plan.phases},
        "disk": _disk_dict(plan.disk),
    }  # fmt: skip


def _pass_dict(one: Pass) -> Mapping[str, Any]:
    micro = one.fullest
    fullest = {"sequences": len(micro.lengths), "tokens": one.tokens, "trained": micro.trained}
    return {"rank_sequences": one.sequences, "micro_batches": one.micro_batches, "exact": one.exact, "fullest": fullest}


def _due_dict(steps: DueSteps) -> dict[str, Any]:
    """How many there are, and the first and the last of them; between them they come every `every` steps."""
    first = next(iter(steps), None)
    last = steps.newest if steps else None
    return {"count": len(steps), "first": first, "last": last, "every": steps.every if steps.every > 0 else None}


def _phase_dict(phase: Phase) -> dict[str, Any]:
    return {"peak": phase.peak, "device": phase.device, "host": phase.host, "unknown": phase.unknown}


def _disk_dict(disk: Disk) -> dict[str, Any]:
    roles = {
        role: {"files": one.files, "checkpoint": one.checkpoint, "saves": one.saves, "kept": one.kept, "most": one.most}
        for role, one in disk.roles.items()
    }
    rest = {"trajectories": disk.trajectories, "needed": disk.needed, "free": disk.free}
    return {"folder": str(disk.folder), "checkpoint": disk.checkpoint, "roles": roles, **rest}
