"""`hone data`: prepares data sets in the columns that training reads."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Prepare data sets as parquet files.")


@app.command()
def arithmetic(
    output: Annotated[Path, typer.Option(help="Folder that gets train.parquet and test.parquet.", file_okay=False)],
    train_size: Annotated[int, typer.Option(help="Rows of train.parquet.")] = 20000,
    test_size: Annotated[int, typer.Option(help="Rows of test.parquet; none of their questions is in train.")] = 200,
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = 0,
) -> None:
    """Word problems of one to three steps with totals from 0 to 20, which a tiny model can learn."""
    from hone.data.arithmetic import write_arithmetic

    train, test = write_arithmetic(output, train_size=train_size, test_size=test_size, seed=seed)
    typer.echo(f"{train}: {train_size} rows\n{test}: {test_size} rows")


@app.command()
def products(
    output: Annotated[
        Path, typer.Option(help="Folder that gets train.parquet, test.parquet, tools.yaml.", file_okay=False)
    ],
    train_size: Annotated[int, typer.Option(help="Rows of train.parquet.", min=1, max=200_000)] = 10000,
    test_size: Annotated[int, typer.Option(help="Rows of test.parquet.", min=1, max=100_000)] = 200,
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.", min=0)] = 0,
) -> None:
    """Products of two-digit numbers, some demonstrated with a call of the calculator that tools.yaml lists."""
    from hone.data.products import write_products

    train, test = write_products(output, train_size=train_size, test_size=test_size, seed=seed)
    typer.echo(f"{train}: {train_size} rows\n{test}: {test_size} rows")


@app.command()
def gsm8k(
    input: Annotated[Path, typer.Option(help="A local GSM8K file (jsonl or parquet) with question and answer.")],
    output: Annotated[Path, typer.Option(help="The parquet file to write.", dir_okay=False)],
    split: Annotated[str, typer.Option(help="Name of the split, kept in extra_info.")] = "train",
) -> None:
    """GSM8K with an instruction to end with `#### number`."""
    from hone.data.gsm8k import convert_gsm8k

    typer.echo(f"{output}: {convert_gsm8k(input, output, split=split)} rows")


def run(argv: list[str]) -> None:
    app(argv, prog_name="hone data")
