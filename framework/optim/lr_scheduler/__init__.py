"""Learning-rate schedules, under PyTorch's names."""

from framework.examples import attach as _attach
from framework.examples import training as _training
from framework.optim.lr_scheduler.base import LRScheduler
from framework.optim.lr_scheduler.cycles import CosineAnnealingWarmRestarts, OneCycleLR
from framework.optim.lr_scheduler.decay import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from framework.optim.lr_scheduler.plateau import ReduceLROnPlateau
from framework.optim.lr_scheduler.sequence import ChainedScheduler, SequentialLR

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

_attach(globals(), _training.TABLE, "lr_scheduler")
