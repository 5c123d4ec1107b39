"""The models of the training steps, in the names that PyTorch and Tracefuse share.

`lib` is the module `torch` or `framework`; names of submodules are those of the work's weights.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from benchmarks.works.training import Cnn, Gpt, Lstm, Mlp, Training


def build(lib: Any, work: Training) -> Any:
    """The module of a work."""
    return _MODELS[type(work)](lib, work)


def _mlp(lib: Any, work: Mlp) -> Any:
    nn = lib.nn
    layers = [layer for a, b in pairwise(work.widths) for layer in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers[:-1])


def _cnn(lib: Any, work: Cnn) -> Any:
    nn, F = lib.nn, lib.nn.functional  # noqa: N806

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(work.channels[0], work.channels[1], 3)
            self.second = nn.Conv2d(work.channels[1], work.channels[2], 3)
            self.hidden = nn.Linear(work.features, work.widths[0])
            self.head = nn.Linear(*work.widths)

        def forward(self, x: Any) -> Any:
            x = F.relu(self.second(F.relu(self.first(x))))
            x = F.max_pool2d(x, 2).flatten(1)
            return self.head(F.relu(self.hidden(x)))

    return Net()


def _gpt(lib: Any, work: Gpt) -> Any:
    nn, F = lib.nn, lib.nn.functional  # noqa: N806
    width, heads = work.width, work.heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.projection = nn.Linear(width, width)
            self.mlp_norm = nn.LayerNorm(width)
            self.widen = nn.Linear(width, 4 * width)
            self.narrow = nn.Linear(4 * width, width)

        def attend(self, x: Any) -> Any:
            batch, time, _ = x.shape
            q, k, v = (
                part.view(batch, time, heads, width // heads).transpose(1, 2)
                for part in self.qkv(x).chunk(3, -1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.projection(mixed.transpose(1, 2).reshape(batch, time, width))

        def forward(self, x: Any) -> Any:
            x = x + self.attend(self.attention_norm(x))
            return x + self.narrow(F.gelu(self.widen(self.mlp_norm(x))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(work.vocabulary, width)
            self.positions = nn.Parameter(lib.empty(work.context, width))
            self.blocks = nn.Sequential(*(Block() for _ in range(work.layers)))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, work.vocabulary)

        def forward(self, x: Any) -> Any:
            x = self.blocks(self.tokens(x) + self.positions[: x.shape[1]])
            return self.head(self.norm(x)).flatten(0, 1)

    return Decoder()


def _lstm(lib: Any, work: Lstm) -> Any:
    nn, width = lib.nn, work.width

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input = nn.Linear(width, 4 * width)
            self.hidden = nn.Linear(width, 4 * width, bias=False)

        def forward(self, x: Any) -> Any:
            h = c = x.new_zeros((x.shape[1], width))
            for now in x.unbind(0):
                i, f, g, o = (self.input(now) + self.hidden(h)).chunk(4, 1)
                c = lib.sigmoid(f) * c + lib.sigmoid(i) * lib.tanh(g)
                h = lib.sigmoid(o) * lib.tanh(c)
            return h

    return Cell()


_MODELS: dict[type[Training], Any] = {Mlp: _mlp, Cnn: _cnn, Gpt: _gpt, Lstm: _lstm}
