"""`hone config`: shows a resolved configuration, checks one, explains a key."""

from __future__ import annotations

from typing import Annotated

import typer

from hone.cli.preflight import check_before_start
from hone.config import load
from hone.config.load import preview
from hone.config.overrides import unknown_key
from hone.config.presets import DEFAULT_PRESET, PRESETS
from hone.config.schema.walk import KeyDoc, document
from hone.config.suggest import nearest_choice
from hone.config.support import hydra_text
from hone.errors import UserError

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Look at configurations.")
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}
Command = Annotated[str, typer.Argument(help="ppo, sft, generate or eval.", metavar="COMMAND")]


@app.command(context_settings=PASS_THROUGH)
def show(ctx: typer.Context, command: Command) -> None:
    """Print the resolved configuration as YAML: `hone config show ppo trainer.total_epochs=1`."""
    typer.echo(preview(_known(command), ctx.args).to_yaml(), nl=False)


@app.command(context_settings=PASS_THROUGH)
def check(ctx: typer.Context, command: Command) -> None:
    """Report everything that keeps a configuration from running: `hone config check ppo -cp configs -cn math`."""
    loaded = load(_known(command), ctx.args)
    check_before_start(loaded.config)
    for notice in loaded.notices:
        typer.echo(f"note: {notice}")
    typer.echo(f"The configuration of `hone {command}` can run.")


@app.command()
def explain(
    command: Command,
    key: Annotated[str, typer.Argument(help="A key or section; none lists every key.", metavar="KEY")] = "",
) -> None:
    """Say what a key means, what it accepts and its default: `hone config explain ppo algorithm.adv_estimator`."""
    schema = PRESETS[DEFAULT_PRESET[_known(command)]].schema
    docs = document(schema)
    if key and key not in docs:
        raise UserError(str(unknown_key(schema, key)))
    if key and not docs[key].section:
        typer.echo(_full(docs[key]))
        return
    for doc in docs.values():
        if doc.key.startswith(f"{key}." if key else "") and not doc.section:
            typer.echo(_line(doc))


def _full(doc: KeyDoc) -> str:
    return f"{doc.key}\n  {doc.meaning}\n  accepts: {doc.expected}\n  default: {hydra_text(doc.default)}"


def _line(doc: KeyDoc) -> str:
    return f"{doc.key}={hydra_text(doc.default)}\n    {doc.meaning}"


def _known(command: str) -> str:
    if command not in DEFAULT_PRESET:
        near = nearest_choice(command, DEFAULT_PRESET)
        hint = f"did you mean {near}?" if near else "expected " + ", ".join(DEFAULT_PRESET)
        raise UserError(f"no command {command!r} has a configuration; {hint}")
    return command


def run(argv: list[str]) -> None:
    app(argv, prog_name="hone config")
