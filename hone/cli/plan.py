"""`hone plan`: what a run will do, and the memory and disk that it will take, without loading weights."""

from __future__ import annotations

import json
from typing import Annotated, Literal, cast

import typer

from hone.cli.begin import begin
from hone.errors import UserError

COMMANDS = ("ppo", "sft")
app = typer.Typer(add_completion=False, rich_markup_mode=None)
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}


@app.command(context_settings=SETTINGS, options_metavar="[ppo|sft] [OVERRIDES] [OPTIONS]")
def plan(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; notices go to stderr.")] = False,
    memory_gib: Annotated[
        float | None,
        typer.Option(help="Memory in GiB to hold the run to: of one GPU, or of a machine that computes on CPUs."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cuda or cpu: plan for a machine that has it. By default trainer.device of here.")
    ] = None,
) -> None:
    """Say what `hone ppo` (or `hone sft`) with the same arguments will do: steps, batches, roles, memory and disk.

    hone plan ppo actor_rollout_ref.model.path=./model trainer.n_gpus_per_node=8 --device cuda --memory-gib 80
    """
    command, argv = _command(ctx.args)
    if device not in (None, "cuda", "cpu"):
        raise UserError(f"--device={device}: expected cuda or cpu")
    if memory_gib is not None and not 0 < memory_gib < float("inf"):
        raise UserError(f"--memory-gib={memory_gib:g}: expected a number > 0; leave it out to take what there is here")
    from hone.tracking.console import console

    console.stderr = as_json
    loaded = begin(command, argv, here=False)
    from hone.cli.processes import dealing_of
    from hone.trainers.planning import plan_of
    from hone.trainers.planning.machine import machine_for
    from hone.trainers.planning.report import as_dict, show

    machine = machine_for(loaded.config.trainer.device, device=device, memory_gib=memory_gib)
    found = plan_of(cast(Literal["ppo", "sft"], command), loaded, machine, dealing_of(loaded.config))
    if as_json:
        typer.echo(json.dumps(as_dict(found), indent=1))
    else:
        show(found, console)


def _command(argv: list[str]) -> tuple[str, list[str]]:
    """The command to plan, ppo where none is named, and its own arguments."""
    if argv and argv[0] in COMMANDS:
        return argv[0], argv[1:]
    if argv and "=" not in argv[0] and not argv[0].startswith(("-", "~")):
        raise UserError(f"there is no plan of {argv[0]!r}; expected {' or '.join(COMMANDS)}, then overrides")
    return "ppo", argv


def run(argv: list[str]) -> None:
    app(argv, prog_name="hone plan", standalone_mode=False)
