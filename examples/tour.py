"""A tour of Tracefuse: from one tensor to the source of a kernel, in the order in which the house is built.

Read it from top to bottom, or run it: `python examples/tour.py`. Every claim it makes, it checks.
"""

from __future__ import annotations

import numpy as np

import framework as fw
import framework.nn.functional as F
from framework import nn


def chapter(title: str) -> None:
    """Print a heading."""
    print(f"\n=== {title} {'=' * (70 - len(title))}")


# ------------------------------------------------------------------------------------------------------------
chapter("1. A tensor")
# A tensor is an n-dimensional array with a dtype. Every operation runs at once, and prints.
x = fw.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
print(x, x.shape, x.dtype)

# Shapes broadcast and dtypes promote as in PyTorch: an integer tensor and a float tensor give a float tensor.
print(x + fw.tensor([10, 20, 30]))

# Indexing, transposing and reshaping make views. They share memory: writing through one shows in the other.
column = x[:, 0]
column.mul_(10)
print(x)

# NumPy is one step away in both directions, without a copy.
array = x.numpy()
array[0, 0] = 1
assert float(x[0, 0]) == 1 and np.shares_memory(array, fw.from_numpy(array).numpy())

# Random numbers come from a counter-based generator: one seed, one sequence, in eager and in compiled code.
fw.manual_seed(0)
noise = fw.randn(3)
fw.manual_seed(0)
assert fw.equal(noise, fw.randn(3))

# ------------------------------------------------------------------------------------------------------------
chapter("2. Gradients")
# A tensor that requires a gradient remembers how later ones came from it.
w = fw.tensor([1.0, -2.0, 3.0], requires_grad=True)
loss = (w * w).sum()
print(loss)

# `backward()` walks from the loss back to the leaves. The gradient of a sum of squares is twice the values.
loss.backward()
print(w.grad)
assert fw.equal(w.grad, 2 * w.detach())

# A gradient is itself made of operations, so it can be differentiated again: x³ has 3x² and then 6x.
t = fw.tensor(2.0, requires_grad=True)
(first,) = fw.autograd.grad(t**3, t, create_graph=True)
(second,) = fw.autograd.grad(first, t)
print("x³ at 2 has derivatives", float(first), "and", float(second))
assert float(second) == 12

# Where no gradient is wanted, `no_grad` stops the remembering.
with fw.no_grad():
    assert not (w * 2).requires_grad

# ------------------------------------------------------------------------------------------------------------
chapter("3. A module")


# A module owns parameters and other modules, and says in `forward` how they act on an input.
class Classifier(nn.Module):
    """Two linear maps with a GELU between them."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.into = nn.Linear(inputs, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: fw.Tensor) -> fw.Tensor:
        """Scores (batch, classes) of inputs (batch, inputs)."""
        return self.out(F.gelu(self.into(x)))


fw.manual_seed(1)
model = Classifier(8, 32, 3)
print(model)
print({name: tuple(p.shape) for name, p in model.named_parameters()})

# ------------------------------------------------------------------------------------------------------------
chapter("4. A training step")
# Something to learn: in which of three directions a point lies furthest.
inputs = fw.randn(256, 8)
classes = inputs[:, :3].argmax(1)
optimizer = fw.optim.AdamW(model.parameters(), lr=1e-2)


# The step is written the ordinary way: clear, forward, backward, update.
def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
    """One AdamW update on a batch; returns the loss before it."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


start = {name: value.clone() for name, value in model.state_dict().items()}
eager_losses = [float(step(inputs, classes)) for _ in range(20)]
print(f"eager: loss {eager_losses[0]:.4f} -> {eager_losses[-1]:.4f}")
assert eager_losses[-1] < eager_losses[0] / 2

# ------------------------------------------------------------------------------------------------------------
chapter("5. The same step, compiled")
# `compile` records the step once: forward, backward and optimizer, all of it ordinary tensor code. Later
# calls replay one native program. It can be used as a decorator too: @fw.compile above `def step`.
model.load_state_dict(start)
optimizer = fw.optim.AdamW(model.parameters(), lr=1e-2)
compiled = fw.compile(step)
compiled_losses = [float(compiled(inputs, classes)) for _ in range(20)]
print(f"compiled: loss {compiled_losses[0]:.4f} -> {compiled_losses[-1]:.4f}")

# The numbers are eager's, to rounding: the sums of a matrix product are added in another order.
np.testing.assert_allclose(compiled_losses, eager_losses, rtol=1e-4)

# Nothing was frozen. A learning rate is read anew on every call; with a rate of zero nothing moves.
optimizer.param_groups[0]["lr"] = 0.0
before = model.out.bias.detach().clone()
compiled(inputs, classes)
assert fw.equal(before, model.out.bias) and len(compiled.variants) == 1

# Another batch size is another program, made when it is first seen; both are kept.
compiled(inputs[:100], classes[:100])
assert len(compiled.variants) == 2

# ------------------------------------------------------------------------------------------------------------
chapter("6. Looking inside")
# `explain` tells what became of the function: what must stay true for a replay, and every kernel with the
# operations that were fused into it, the bytes it touches, and the lines they come from.
print(compiled.explain())

# ------------------------------------------------------------------------------------------------------------
chapter("7. A kernel")


# A softmax is five operations in the framework. The scheduler makes one kernel of them: a row stays in
# registers and cache from its first reading until it is written.
@fw.compile
def softmax(x: fw.Tensor) -> fw.Tensor:
    """Rows that are positive and sum to one."""
    return F.softmax(x, dim=1)


rows = fw.randn(64, 100)
np.testing.assert_allclose(softmax(rows).numpy(), F.softmax(rows, dim=1).numpy(), rtol=1e-5)
assert len(softmax.kernels) == 1

# This is its text: plain Python over raw pointers, which Numba turned into vectorised machine code.
kernel = softmax.kernels[0]
print(kernel)
print(kernel.source)
