"""Okapi BM25 over passages in memory (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework")."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

K1, B = 1.2, 0.75  # Lucene's
# A Chinese or Japanese character is a word: there are no spaces between them.
WORD = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]|[^\W_\u3040-\u30ff\u4e00-\u9fff]+")


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


class BM25:
    """score(q, d) = sum over the words w of q of idf(w) * f (k1 + 1) / (f + k1 (1 - b + b |d| / mean |d|)), f the count
    of w in d, idf(w) = ln(1 + (N - n + 1/2) / (n + 1/2)), n of N passages having w."""

    def __init__(self, passages: Sequence[str]) -> None:
        lengths = np.zeros(len(passages))
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for index, passage in enumerate(passages):
            counts = Counter(words(passage))
            lengths[index] = sum(counts.values())
            for word, count in counts.items():
                found[word].append((index, count))
        self.size = len(passages)
        norms = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9)) if len(passages) else lengths
        self.postings = {word: self._posting(np.array(pairs), norms) for word, pairs in found.items()}

    def _posting(self, pairs: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(passages that have the word, what it adds to their scores)."""
        index, count = pairs[:, 0], pairs[:, 1]
        idf = np.log1p((self.size - len(index) + 0.5) / (len(index) + 0.5))
        return index, (idf * count * (K1 + 1) / (count + norms[index])).astype(np.float32)

    def search(self, query: str, k: int) -> list[int]:
        """The best k passages that have a word of the query, best first; equal ones in their order."""
        scores = np.zeros(self.size, dtype=np.float32)
        for word in words(query):
            if word in self.postings:
                index, added = self.postings[word]
                scores[index] += added
        best = np.argsort(-scores, kind="stable")[:k]
        return [int(i) for i in best if scores[i] > 0]
