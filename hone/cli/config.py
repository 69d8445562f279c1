"""`hone config`: shows and checks a configuration, compares two, explains a key, writes the reference pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hone.cli.preflight import load_and_check
from hone.config.differences import ABSENT, common_command, differences, read_names
from hone.config.load import preview
from hone.config.presets import DEFAULT_PRESET
from hone.config.suggest import nearest_choice
from hone.config.support import hydra_text
from hone.errors import UserError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # hone.cli.main words them
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look at configurations.",
)
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}
Command = Annotated[str, typer.Argument(help="ppo, sft, generate or eval.", metavar="COMMAND")]
Folder = Annotated[Path, typer.Argument(help="Gets config.md and config.zh.md.", metavar="FOLDER", file_okay=False)]


@app.command(context_settings=PASS_THROUGH)
def show(
    ctx: typer.Context,
    command: Command,
    changed: Annotated[bool, typer.Option("--changed", help="Only the keys that differ from their default.")] = False,
) -> None:
    """Print the resolved configuration.

    hone config show ppo trainer.total_epochs=1

    It is YAML that loads back; comments say where a value came from and what the default is.
    """
    from hone.config.marked_yaml import marked

    typer.echo(marked(command, preview(_known(command), ctx.args), changed_only=changed), nl=False)


@app.command(context_settings=PASS_THROUGH)
def check(ctx: typer.Context, command: Command) -> None:
    """Report all that keeps it from running.

    hone config check ppo -cp configs -cn math

    Data files and model folders are looked into as well, and nothing is loaded.
    """
    loaded = load_and_check(_known(command), ctx.args)
    for notice in loaded.notices:
        typer.echo(f"note: {notice}")
    typer.echo(f"The configuration of `hone {command}` can run.")


@app.command(context_settings=PASS_THROUGH)
def diff(ctx: typer.Context) -> None:
    """Print the keys in which two differ.

    hone config diff runs/a trainer.seed=1 runs/b

    A configuration is a YAML file, the folder of a run, a preset or a command; overrides follow the one they are for.
    """
    first, second = read_names(ctx.args)
    command = common_command(first, second)
    found = list(differences(first.tree(command), second.tree(command)))
    for key, a, b in found:
        typer.echo(f"{key}: {_shown(a)} -> {_shown(b)}")
    if not found:
        typer.echo("no key differs")


@app.command()
def explain(
    command: Command,
    key: Annotated[str, typer.Argument(help="A key, a section or the end of one; none lists all.", metavar="KEY")] = "",
) -> None:
    """Say what a key means and accepts.

    hone config explain ppo algorithm.adv_estimator
    """
    from hone.config.explain import answer

    typer.echo(answer(_known(command), key))


@app.command()
def docs(folder: Folder) -> None:
    """Write the reference pages of all keys.

    hone config docs docs
    """
    from hone.config.pages import pages

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
        typer.echo(str(folder / name))


def _shown(value: Any) -> str:
    return "(not set)" if value is ABSENT else hydra_text(value)


def _known(command: str) -> str:
    if command not in DEFAULT_PRESET:
        near = nearest_choice(command, DEFAULT_PRESET)
        hint = f"did you mean {near}?" if near else "expected " + ", ".join(DEFAULT_PRESET)
        raise UserError(f"no command {command!r} has a configuration; {hint}")
    return command


def run(argv: list[str]) -> None:
    app(argv, prog_name="hone config")
