"""The REPL session of docs/repl.md: types lines into a real console, and writes down what it answers.

`python docs/session.py` writes the page anew. Text between the parts of the session is here too.
"""

from __future__ import annotations

import code
import contextlib
import io
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PARTS = [
    (
        "A session from the first tensor to a fixed NaN and a beaten baseline. It was typed into a real\n"
        "console by `python docs/session.py`, which wrote this page. Of tracebacks frames inside Tracefuse\n"
        "are left out; the times are those of that run, on two virtual cores that did other work as well.\n\n"
        "## Tensors and gradients",
        """
import framework as fw
import framework.nn.functional as F
x = fw.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
y = (x @ x).sum()
y
y.backward()
x.grad
""",
    ),
    (
        "## Help\n\nEvery public name has shapes and an example.",
        """
print(fw.logsumexp.__doc__)
fw.ones(2, 3) @ fw.ones(2, 3)
""",
    ),
    (
        "## A loss that becomes NaN\n\n"
        "A mixture of two Gaussians is fitted to numbers, in a step that is compiled.",
        """
g = fw.manual_seed(0)
data = fw.cat([fw.randn(500) - 40, fw.randn(500) + 40])
means = fw.tensor([-1.0, 1.0], requires_grad=True)
optimizer = fw.optim.Adam([means], lr=0.5)
def density(x, mean):
    return fw.exp(-0.5 * (x - mean) ** 2) / (2 * fw.pi) ** 0.5

@fw.compile
def step(data):
    optimizer.zero_grad()
    mixed = 0.5 * density(data, means[0]) + 0.5 * density(data, means[1])
    loss = -mixed.log().mean()
    loss.backward()
    optimizer.step()
    return loss

for i in range(3): print(step(data).item(), means.tolist())

""",
    ),
    (
        "The means are lost. Make them anew, and ask where the first infinity comes from.",
        """
means.data = fw.tensor([-1.0, 1.0])
optimizer = fw.optim.Adam([means], lr=0.5)
with fw.config(check_finite=True): step(data)

means
""",
    ),
    (
        "Far from both means the density is 0 in float32, and its logarithm `-inf`. The step was stopped\n"
        "before it changed anything. The way out is to stay with logarithms: `logsumexp` needs no density.",
        """
def log_density(x, mean):
    return -0.5 * (x - mean) ** 2 - 0.5 * fw.log(fw.tensor(2 * fw.pi))

@fw.compile
def step(data):
    optimizer.zero_grad()
    both = fw.stack([log_density(data, means[0]), log_density(data, means[1])])
    loss = -(fw.logsumexp(both, 0) - fw.log(fw.tensor(2.0))).mean()
    loss.backward()
    optimizer.step()
    return loss

with fw.config(check_finite=True): print(step(data).item())

for i in range(300): loss = step(data)

loss, means
""",
    ),
    (
        "## A beaten baseline\n\n"
        "The baseline is the step as it was written: `fw.config.disable` runs it eagerly.",
        """
import timeit
def best(run): return min(timeit.repeat(run, number=20, repeat=10)) / 20 * 1e6

with fw.config(disable=True): eager = best(lambda: step(data))

compiled = best(lambda: step(data))
print(f"eager {eager:.0f} µs, compiled {compiled:.0f} µs: {eager / compiled:.1f} times as fast")
print(step.explain())
""",
    ),
    (
        "## Where the time goes",
        """
with fw.profile() as p: loss = step(data)

print(p.table())
""",
    ),
]


class Console(code.InteractiveConsole):
    """A console that is typed into by a program, and shows what it was typed."""

    def showtraceback(self) -> None:
        """Print the error of the line that was typed, without the frames that are ours."""
        error = traceback.TracebackException(*sys.exc_info())  # type: ignore[arg-type]
        error.stack = traceback.StackSummary.from_list([f for f in error.stack if f.filename == "<stdin>"])
        self.write("".join(error.format()))

    def play(self, text: str) -> str:
        """Type `text`; what the screen shows."""
        screen = io.StringIO()
        more = False
        with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
            for line in [*text.strip("\n").splitlines(), ""]:
                if not line and not more:
                    continue
                screen.write(f"{'... ' if more else '>>> '}{line}".rstrip() + "\n")
                more = self.push(line)
        return screen.getvalue()


def page() -> str:
    """The whole page."""
    console = Console({"__name__": "__main__"}, filename="<stdin>")
    parts = ["# A session\n"]
    for words, text in PARTS:
        shown = console.play(text).rstrip().removesuffix("\n...").rstrip()
        parts.append(f"{words}\n\n```pycon\n{shown}\n```\n")
    return "\n".join(parts).replace(str(ROOT), "tracefuse")


if __name__ == "__main__":
    (ROOT / "docs" / "repl.md").write_text(page())
