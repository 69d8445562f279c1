"""`hone model`: makes model folders."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def model() -> None:
    """Make model folders."""


@app.command()
def tiny(
    output: Annotated[Path, typer.Option(help="Folder for the model and its tokenizer.", file_okay=False)],
    corpus: Annotated[Path, typer.Option(help="Data file whose prompts and answers the tokenizer is trained on.")],
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
    hidden: Annotated[int, typer.Option(help="Hidden size.")] = 128,
    layers: Annotated[int, typer.Option(help="Layers.")] = 2,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 4,
    kv_heads: Annotated[int, typer.Option(help="Key-value heads.")] = 2,
    mlp: Annotated[int, typer.Option(help="Size of the MLP.")] = 384,
    vocab: Annotated[int, typer.Option(help="Most tokens, special ones and the 256 bytes included.")] = 512,
    tools: Annotated[bool, typer.Option("--tools", help="Give the chat template a place for calls of tools.")] = False,
) -> None:
    """A random Qwen3 of about 0.45 million parameters with a tokenizer for the words of a data file."""
    from hone.models.tiny import make_tiny_model

    make_tiny_model(
        output,
        texts=corpus_texts(corpus),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        mlp=mlp,
        vocab=vocab,
        seed=seed,
        tools=tools,
    )
    typer.echo(f"{output}: tiny Qwen3 and its tokenizer")


def corpus_texts(corpus: Path) -> Iterator[str]:
    """The prompts of a data file, and its answers where it has them."""
    from hone.data.chat import as_messages
    from hone.data.files import read_rows

    rows, use = read_rows(corpus), "the text to train the tokenizer on"
    rows.require("prompt", use)
    for row in rows:
        yield from (message["content"] for message in as_messages(row.value("prompt", use), row.where))
        if isinstance(row.get("answer"), str):
            yield row["answer"]


def run(argv: list[str]) -> None:
    app(argv, prog_name="hone model")
