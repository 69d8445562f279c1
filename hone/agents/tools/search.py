"""A search over passages of the user's: rows of a parquet or json file with a `text` and perhaps a `title`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hone.agents.tools.bm25 import BM25
from hone.agents.tools.tool import Schema, Tool
from hone.data.files import ENDINGS, read_rows
from hone.errors import UserError

KEYS = ("corpus", "top_k", "text_key", "title_key")


class Search(Tool):
    """config: corpus (a file or a list of files), top_k passages per query, and the columns text_key and title_key. The
    index is made at the first search."""

    schema: Schema | None = {
        "name": "search",
        "description": "Finds passages that have the words of a query.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "Words to look for."}},
            "required": ["query"],
        },
    }
    keeps_time = True  # the first call makes the index, and the others wait for it

    def __init__(self, config: Mapping[str, Any], schema: Schema) -> None:
        super().__init__(config, schema)
        if unknown := [name for name in config if name not in KEYS]:
            raise UserError(f"search has no {', '.join(unknown)}; config takes {', '.join(KEYS)}")
        corpus = config.get("corpus")
        listed: list[Any] = corpus if isinstance(corpus, list) else [corpus]
        if not listed or not all(isinstance(path, str) and Path(path).expanduser().is_file() for path in listed):
            raise UserError(f"search needs config.corpus, files of passages that are there, and finds {corpus!r}")
        self.files = [Path(path).expanduser() for path in listed]
        if other := [path for path in self.files if path.suffix not in ENDINGS]:
            raise UserError(f"search: {other[0]} is no file of passages: expected an ending of {', '.join(ENDINGS)}")
        self.top_k = config.get("top_k", 3)
        if not isinstance(self.top_k, int) or isinstance(self.top_k, bool) or self.top_k < 1:
            raise UserError(f"search: top_k is {self.top_k!r}: expected an integer >= 1")
        self.text_key, self.title_key = config.get("text_key", "text"), config.get("title_key", "title")
        self.lock = threading.Lock()
        self.passages: list[str] = []
        self.index: BM25 | None = None

    def execute(self, state: Any, arguments: dict[str, Any]) -> str:
        with self.lock:
            if self.index is None:
                self.passages = self._read()
                self.index = BM25(self.passages)
        found = self.index.search(str(arguments["query"]), self.top_k)
        return "\n".join(f"[{rank}] {self.passages[i]}" for rank, i in enumerate(found, 1)) or "nothing found"

    def _read(self) -> list[str]:
        rows = read_rows([str(path) for path in self.files])
        passages = []
        for row in rows:
            title = row.get(self.title_key)
            text = row.text(self.text_key, "config.text_key of the search tool")
            passages.append(f"{title}: {text}" if title else text)
        return passages
