"""`hone`: the front door. Each command hands its arguments to its own module, which is imported only then."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from hone.cli.interrupts import one_at_a_time
from hone.disk import FULL
from hone.errors import UserError
from hone.user_code import quote

GRAMMAR = """
\b
Arguments are overrides in Hydra's grammar:
  a.b=1          set a key           ~a.b   back to the default
  +a.b=1         add a key           a.b='[1,2]'  a list
  ++a.b=1        set or add a key    a.b='"1"'    text
\b
and a YAML file to start from:
  --config-path DIR --config-name NAME   (short: -cp DIR -cn NAME)
"""
HELP = {
    "ppo": f"""Train with reinforcement learning (PPO, GRPO, RLOO, ...).
{GRAMMAR}
Presets for --config-name and for a file's defaults list: ppo_trainer (default), ppo_megatron_trainer.

\b
Examples:
  hone ppo data.train_files=train.parquet data.val_files=test.parquet \\
      actor_rollout_ref.model.path=./model actor_rollout_ref.rollout.name=hf \\
      algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 \\
      trainer.n_gpus_per_node=1 trainer.logger=[console]
  hone ppo --config-path configs --config-name math trainer.total_epochs=2
""",
    "sft": f"""Fine-tune on demonstrations.
{GRAMMAR}
Preset for --config-name and for a file's defaults list: sft_trainer (default).

\b
Examples:
  hone sft data.train_files=train.parquet model.partial_pretrain=./model
  hone sft --config-path configs --config-name math optim.lr=2e-5
""",
    "generate": f"""Generate responses for a file of prompts.
{GRAMMAR}
Preset for --config-name and for a file's defaults list: generation (default).

\b
Examples:
  hone generate model.path=./model data.path=test.parquet data.output_path=out.parquet
  hone generate --config-path configs --config-name math rollout.temperature=0.7 data.n_samples=4
""",
    "eval": f"""Score a file of responses.
{GRAMMAR}
Preset for --config-name and for a file's defaults list: evaluation (default).

\b
Examples:
  hone eval data.path=out.parquet
  hone eval data.path=out.parquet custom_reward_function.path=reward.py output_path=metrics.json
""",
}
FORWARDED = {
    "data": "Prepare data sets.",
    "model": "Make model folders.",
    "config": "Show, check and explain configurations.",
    "plan": "Say what a run will do and take, without loading weights.",
    "demo": "Train a tiny model from nothing, end to end.",
}
MODULES = {"eval": "evaluate"}  # a command and its module share their name otherwise
PLACE_ERRORS = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


class SuggestingGroup(TyperGroup):
    """Names the nearest command when one is mistyped."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:
            raise UserError(_unknown_command(cmd_name, self.list_commands(ctx)))
        return command


def _unknown_command(name: str, commands: Sequence[str]) -> str:
    from hone.config.suggest import nearest_choice

    near = nearest_choice(name, commands)
    return f"there is no command {name}; " + (
        f"did you mean {near}?" if near else "expected one of " + ", ".join(commands)
    )


app = typer.Typer(
    cls=SuggestingGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train language models with reinforcement learning.",
)


def run_command(name: str, argv: list[str]) -> None:
    """Imports a command's module and runs it."""
    try:
        with one_at_a_time():
            import_module(f"hone.cli.{MODULES.get(name, name)}").run(argv)
    except SystemExit as end:
        if name in HELP:  # these never end like this themselves
            raise UserError(f"something in the run called exit: {quote(end, _innermost(end))}") from end
        raise
    except KeyboardInterrupt:  # caught here, since typer would end without a word
        print("hone: interrupted", file=sys.stderr)
        sys.exit(130)


def _innermost(problem: BaseException) -> str:
    return traceback.extract_tb(problem.__traceback__)[-1].filename


def _add_command(name: str, text: str, *, own_help: bool) -> None:
    def command(ctx: typer.Context) -> None:
        run_command(name, ctx.args)

    register = app.command(name, help=text, add_help_option=own_help, context_settings=PASS_THROUGH)
    register(command)


for _name, _text in HELP.items():
    _add_command(_name, _text, own_help=True)
for _name, _text in FORWARDED.items():
    _add_command(_name, _text, own_help=False)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs `hone`. A mistake of the user's ends with one message and code 2, an interrupt with code 130."""
    try:
        app(list(sys.argv[1:] if argv is None else argv), prog_name="hone")
    except UserError as error:
        print(f"hone: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno in FULL:
            remedy = "make room there, or name another place"
        elif isinstance(error, PLACE_ERRORS):
            remedy = "name a place that can be read and written"
        else:
            raise
        print(f"hone: {error.filename}: {error.strerror}; {remedy}", file=sys.stderr)
        sys.exit(2)
