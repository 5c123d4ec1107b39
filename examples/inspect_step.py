"""Look inside a training step: train a small transformer for two steps, then save a page of its kernels.

    python examples/inspect_step.py [report.html] [--measure]

The page works without a network. `--measure` times each kernel beside what this machine can do, for the
roofline; the first time, the machine itself is measured for some seconds.
"""

from __future__ import annotations

import argparse

import framework as fw
import framework.nn.functional as F
from framework import nn

VOCABULARY, CONTEXT, WIDTH = 32, 16, 32


class Reader(nn.Module):
    """Guesses the next token of a text from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text: fw.Tensor) -> fw.Tensor:
        hidden = self.tokens(text)
        ahead = fw.ones(CONTEXT, CONTEXT, dtype=fw.bool).triu(1)
        hidden = self.block(hidden, src_mask=ahead)
        return self.head(hidden)


def main() -> None:
    """Train two steps, and save the page."""
    parser = argparse.ArgumentParser(description="Save a page that shows what a training step became.")
    parser.add_argument("path", nargs="?", default="report.html")
    parser.add_argument("--measure", action="store_true", help="time each kernel")
    options = parser.parse_args()
    fw.manual_seed(0)
    model = Reader()
    optimizer = fw.optim.AdamW(model.parameters(), lr=1e-3)

    @fw.compile
    def step(text: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        guess = model(text[:, :-1])
        loss = F.cross_entropy(guess.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        print(f"loss {step(fw.randint(0, VOCABULARY, (8, CONTEXT + 1))).item():.4f}")
    print(f"saved {step.explain(measure=options.measure).save(options.path)}")


if __name__ == "__main__":
    main()
