"""Whole training steps compiled: parameters, optimizer state, buffers and generators end as eager's, step
after step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import framework as fw
import framework.nn.functional as F
from framework import nn, optim
from framework.nn.utils import clip_grad_norm_, clip_grad_value_
from framework.optim import lr_scheduler
from tests.framework.capture_check import Twins, World, check

BATCHES = 4


class Task:
    """A model, its optimizer, and a training step over them."""

    def __init__(
        self, optimizer: Callable[[Any], optim.Optimizer], model: Callable[[], nn.Module] | None = None
    ) -> None:
        self.model = model() if model else nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.optimizer = optimizer(self.model.parameters())

    def look(self) -> Any:
        """Everything training changes."""
        return (
            dict(self.model.named_parameters()),
            dict(self.model.named_buffers()),
            [dict(self.optimizer.state[p]) for p in self.model.parameters() if p in self.optimizer.state],
            [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups],
        )

    def step(self, x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def twins_of(
    make: Callable[[], Task], step: Callable[[Task], Callable[..., Any]] | None = None
) -> tuple[Twins, list[Task]]:
    """Twin worlds of a task, and the tasks (eager's first)."""
    tasks: list[Task] = []

    def world() -> World:
        task = make()
        tasks.append(task)
        return step(task) if step else task.step, task.look

    return Twins(world, rtol=2e-5), tasks


def batch(seed: int, rows: int = 5) -> tuple[fw.Tensor, fw.Tensor]:
    generator = fw.Generator()
    generator.manual_seed(seed)
    return fw.randn(rows, 4, generator=generator), fw.randint(0, 3, (rows,), generator=generator)


def train(twins: Twins, steps: int = BATCHES, first: int = 0) -> None:
    for i in range(first, first + steps):
        twins.call(*batch(i))


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "maximize": lambda p: optim.SGD(p, lr=0.01, maximize=True),
    "adam": lambda p: optim.Adam(p, lr=0.05),
    "adam decay": lambda p: optim.Adam(p, lr=0.05, weight_decay=0.1),
    "amsgrad": lambda p: optim.Adam(p, lr=0.05, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.05, weight_decay=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01),
    "rmsprop centered": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.01),
    "adadelta": lambda p: optim.Adadelta(p, lr=1.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str) -> None:
    twins, _ = twins_of(lambda: Task(OPTIMIZERS[name]))
    train(twins)
    twins.expect("replay")
    # A first step makes the optimizer's state; afterwards nothing new may appear.
    assert len(twins.compiled.variants) <= 2
    compilations = len(twins.compiled.history)
    train(twins, first=BATCHES)
    assert len(twins.compiled.history) == compilations


@pytest.mark.parametrize("scheduler", ["step", "cosine", "one cycle", "lambda", "plateau"])
def test_schedulers_change_numbers_without_compiling(scheduler: str) -> None:
    makers: dict[str, Callable[[optim.Optimizer], Any]] = {
        "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
        "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
        "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=30),
        "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (epoch + 1)),
        "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    }
    twins, tasks = twins_of(lambda: Task(OPTIMIZERS["adamw" if scheduler != "one cycle" else "momentum"]))
    schedulers = [makers[scheduler](task.optimizer) for task in tasks]
    for i in range(10):
        twins.call(*batch(i))
        for s in schedulers:
            s.step(1.0) if scheduler == "plateau" else s.step()
        if i == 2:
            compilations = len(twins.compiled.history)
    assert len(twins.compiled.history) == compilations
    twins.expect("replay")


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("lr", (0.1, 0.0, 3e-4)),
        ("betas", ((0.5, 0.9), (0.0, 0.999))),
        ("weight_decay", (0.2, 0.3)),
        ("eps", (1e-3,)),
    ],
)
def test_options_changed_by_hand(option: str, values: tuple[Any, ...]) -> None:
    twins, tasks = twins_of(lambda: Task(OPTIMIZERS["adamw"]))
    train(twins)
    compilations = len(twins.compiled.history)
    for number, value in enumerate(values):
        for task in tasks:
            task.optimizer.param_groups[0][option] = value
        train(twins, 2, first=10 * number)
    # A first beta of 0 takes another branch of the running mean.
    assert len(twins.compiled.history) - compilations <= (1 if option == "betas" else 0)


def test_weight_decay_that_becomes_zero_and_back() -> None:
    twins, tasks = twins_of(lambda: Task(OPTIMIZERS["momentum"]))
    for decay in (0.01, 0.0, 0.01, 0.0, 0.02):
        for task in tasks:
            task.optimizer.param_groups[0]["weight_decay"] = decay
        train(twins, 2)
    assert len(twins.compiled.variants) <= 4


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_both_ways(to_none: bool) -> None:
    def step(task: Task) -> Callable[..., Any]:
        def run(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
            loss = F.cross_entropy(task.model(x), y)
            loss.backward()
            task.optimizer.step()
            task.optimizer.zero_grad(set_to_none=to_none)
            return loss.detach()

        return run

    twins, _ = twins_of(lambda: Task(OPTIMIZERS["adam"]), step)
    train(twins)
    twins.expect("replay")


@pytest.mark.replays
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_accumulate_over_calls(to_none: bool) -> None:
    def step(task: Task) -> Callable[..., Any]:
        def run(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
            loss = F.cross_entropy(task.model(x), y) / 3
            loss.backward()
            return loss.detach()

        return run

    twins, tasks = twins_of(lambda: Task(OPTIMIZERS["sgd"]), step)
    for i in range(9):
        twins.call(*batch(i))
        if i % 3 == 2:
            for task in tasks:
                task.optimizer.step()
                task.optimizer.zero_grad(set_to_none=to_none)
    twins.expect("replay")
    assert len(twins.compiled.variants) == 2


def test_micro_batches_inside_one_call() -> None:
    def step(task: Task) -> Callable[..., Any]:
        def run(x: fw.Tensor, y: fw.Tensor) -> list[fw.Tensor]:
            task.optimizer.zero_grad()
            losses = []
            for part in range(2):
                loss = F.cross_entropy(task.model(x[part::2]), y[part::2]) / 2
                loss.backward()
                losses.append(loss.detach())
            task.optimizer.step()
            return losses

        return run

    twins, _ = twins_of(lambda: Task(OPTIMIZERS["adam"]), step)
    train(twins)
    twins.expect("replay")


@pytest.mark.parametrize(
    "clip",
    [
        lambda p: clip_grad_norm_(p, 0.05),
        lambda p: clip_grad_norm_(p, 1e9, norm_type=1.0),
        lambda p: clip_grad_value_(p, 0.01),
    ],
)
def test_gradient_clipping(clip: Any) -> None:
    def step(task: Task) -> Callable[..., Any]:
        def run(x: fw.Tensor, y: fw.Tensor) -> Any:
            task.optimizer.zero_grad()
            F.cross_entropy(task.model(x), y).backward()
            norm = clip(task.model.parameters())
            task.optimizer.step()
            return norm

        return run

    twins, _ = twins_of(lambda: Task(OPTIMIZERS["sgd"]), step)
    train(twins)
    twins.expect("replay")


def test_a_step_skipped_when_the_loss_is_not_finite() -> None:
    def step(task: Task) -> Callable[..., Any]:
        def run(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
            task.optimizer.zero_grad()
            loss = F.cross_entropy(task.model(x), y)
            if fw.isfinite(loss):
                loss.backward()
                task.optimizer.step()
            return loss.detach()

        return run

    twins, _ = twins_of(lambda: Task(OPTIMIZERS["sgd"]), step)
    for i in range(6):
        x, y = batch(i)
        twins.call(x * (float("inf") if i % 2 else 1.0), y)


def dropout_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.25), nn.Linear(32, 3))


def test_dropout_draws_the_masks_eager_draws() -> None:
    twins, tasks = twins_of(lambda: Task(OPTIMIZERS["sgd"], dropout_model))
    train(twins)
    for mode in (False, True, False):
        for task in tasks:
            task.model.train(mode)
        train(twins, 2)
    assert len(twins.compiled.variants) <= 3


def test_dropout_draws_anew_on_each_call() -> None:
    model = nn.Dropout(0.5)
    compiled = fw.compile(lambda x: (model(x), model(x)))
    fw.manual_seed(3)
    masks = [m.tolist() for _ in range(4) for m in compiled(fw.ones(64))]
    assert len({tuple(m) for m in masks}) == 8
    fw.manual_seed(3)
    assert [m.tolist() for _ in range(4) for m in compiled(fw.ones(64))] == masks


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_everything(p: float) -> None:
    twins, _ = twins_of(
        lambda: Task(OPTIMIZERS["sgd"], lambda: nn.Sequential(nn.Dropout(p), nn.Linear(4, 3)))
    )
    train(twins)


def test_a_probability_that_varies() -> None:
    twins, tasks = twins_of(lambda: Task(OPTIMIZERS["sgd"], dropout_model))
    for number in range(20):
        for task in tasks:
            task.model[1].p = 0.02 * (number + 1)
        twins.call(*batch(number))
    twins.expect("replay", variants=1)


def test_a_probability_that_is_none() -> None:
    model = nn.Dropout(0.5)
    compiled = fw.compile(lambda x: model(x) * 1.0)
    for p in (0.5, 0.0, 1.0, 0.25):
        model.p = p
        compiled(fw.ones(3))
    model.p = 2.0
    with pytest.raises(ValueError, match="between 0 and 1"):
        compiled(fw.ones(3))


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("dtype", [fw.float16, fw.bfloat16, fw.float32, fw.float64, fw.int64], ids=str)
def test_dropout_keeps_the_dtype(dtype: fw.dtype, shape: tuple[int, ...]) -> None:
    model = nn.Dropout(0.3)
    check(lambda x: model(x) * 2.0, (fw.ones(shape, dtype=dtype),))


def test_every_generator_function() -> None:
    own = [fw.Generator(), fw.Generator()]
    worlds = iter(own)

    def make() -> World:
        generator = next(worlds)
        generator.manual_seed(5)

        def draw(x: fw.Tensor) -> Any:
            return (
                fw.rand(3),
                fw.randn(2, 2),
                fw.rand(4, generator=generator),
                fw.bernoulli(fw.full((8,), 0.5)),
                x + fw.rand_like(x),
            )

        return draw, lambda: generator.get_state()

    twins = Twins(make)
    for _ in range(3):
        twins.call(fw.ones(3))
    twins.expect("replay", 1)


def test_batch_norm_counts_and_averages() -> None:
    twins, tasks = twins_of(
        lambda: Task(
            OPTIMIZERS["adam"],
            lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)),
        )
    )
    train(twins)
    for mode in (False, True):
        for task in tasks:
            task.model.train(mode)
        train(twins, 3)
    assert tasks[1].model[1].num_batches_tracked.item() == BATCHES + 3  # type: ignore[index]
    twins.expect("replay")


def test_parameters_frozen_and_thawed() -> None:
    twins, tasks = twins_of(lambda: Task(OPTIMIZERS["adam"]))
    train(twins, 2)
    for wanted in (False, True):
        for task in tasks:
            task.model[0].weight.requires_grad_(wanted)  # type: ignore[index]
        train(twins, 2)


def test_a_parameter_group_added_later() -> None:
    def make() -> Task:
        task = Task(OPTIMIZERS["momentum"])
        task.extra = nn.Parameter(fw.ones(3))  # type: ignore[attr-defined]
        return task

    def step(task: Task) -> Callable[..., Any]:
        def run(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
            task.optimizer.zero_grad()
            loss = F.cross_entropy(task.model(x) * task.extra, y)  # type: ignore[attr-defined]
            loss.backward()
            task.optimizer.step()
            return task.extra.detach().clone()  # type: ignore[attr-defined]

        return run

    twins, tasks = twins_of(make, step)
    train(twins, 2)
    for task in tasks:
        task.optimizer.add_param_group({"params": [task.extra], "lr": 0.5})  # type: ignore[attr-defined]
    train(twins, 3)


def test_states_loaded_between_calls() -> None:
    twins, tasks = twins_of(lambda: Task(OPTIMIZERS["adamw"]))
    train(twins, 2)
    saved = [
        ({k: v.clone() for k, v in t.model.state_dict().items()}, t.optimizer.state_dict()) for t in tasks
    ]
    train(twins, 2)
    for task, (weights, options) in zip(tasks, saved, strict=True):
        task.model.load_state_dict(weights)
        task.optimizer.load_state_dict(options)
    train(twins, 2)


def test_memory_exchanged_between_calls() -> None:
    twins, tasks = twins_of(lambda: Task(OPTIMIZERS["adam"]))
    train(twins, 2)
    for task in tasks:
        task.model[0].weight.data = fw.ones(6, 4)  # type: ignore[index]
    train(twins, 2)
    for task in tasks:
        with fw.no_grad():
            task.model[0].weight.mul_(0.5)  # type: ignore[index]
    train(twins, 2)
    for task in tasks:
        task.model[0] = nn.Linear(4, 6)  # type: ignore[index]
        with fw.no_grad():
            for p in task.model[0].parameters():  # type: ignore[index]
                p.fill_(0.25)
    train(twins, 2)


def test_gradients_set_by_hand_between_calls() -> None:
    def step(task: Task) -> Callable[..., Any]:
        return lambda: task.optimizer.step()

    twins, tasks = twins_of(lambda: Task(OPTIMIZERS["sgd"]), step)
    for value in (1.0, 2.0, None, 3.0):
        for task in tasks:
            for p in task.model.parameters():
                p.grad = None if value is None else fw.full(tuple(p.shape), value)
        twins.call()


def test_two_models_trained_by_one_step() -> None:
    def make() -> World:
        first, second = Task(OPTIMIZERS["adam"]), Task(OPTIMIZERS["momentum"])

        def step(x: fw.Tensor, y: fw.Tensor) -> Any:
            fake = first.model(x)
            loss = F.cross_entropy(fake.detach(), y) + F.cross_entropy(second.model(x), y)
            second.optimizer.zero_grad()
            loss.backward()
            second.optimizer.step()
            first.optimizer.zero_grad()
            other = F.mse_loss(first.model(x), second.model(x).detach())
            other.backward()
            first.optimizer.step()
            return loss.detach(), other.detach()

        return step, lambda: (first.look(), second.look())

    twins = Twins(make)
    train(twins)
    twins.expect("replay")


def test_tied_weights_embedding_and_layer_norm() -> None:
    def make() -> World:
        table = nn.Embedding(7, 6)
        norm = nn.LayerNorm(6)
        parameters = [*table.parameters(), *norm.parameters()]
        optimizer = optim.AdamW(parameters, lr=0.05)

        def step(tokens: fw.Tensor) -> fw.Tensor:
            optimizer.zero_grad()
            hidden = F.gelu(norm(table(tokens)))
            loss = F.cross_entropy(hidden @ table.weight.t(), tokens)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, lambda: parameters

    twins = Twins(make)
    for i in range(BATCHES):
        twins.call(fw.tensor([0, 3, 3, 6, i]))
    twins.expect("replay")


def test_capture_itself_runs_no_backward() -> None:
    # The program runs once per call: were the capture real too, the first step would count twice.
    twins, tasks = twins_of(
        lambda: Task(
            OPTIMIZERS["adam"],
            lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 3)),
        )
    )
    twins.call(*batch(0))
    twins.expect("replay")
    state = tasks[1].optimizer.state
    assert all(s["step"] == 1 for s in state.values())
