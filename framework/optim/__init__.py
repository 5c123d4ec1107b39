"""Optimizers and learning-rate schedules, under PyTorch's names."""

from framework.examples import attach as _attach
from framework.examples import training as _training
from framework.optim import lr_scheduler
from framework.optim.adadelta import Adadelta
from framework.optim.adagrad import Adagrad
from framework.optim.adam import Adam, AdamW
from framework.optim.optimizer import Optimizer
from framework.optim.rmsprop import RMSprop
from framework.optim.sgd import SGD

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Optimizer", "RMSprop", "lr_scheduler"]

_attach(globals(), _training.TABLE, "optim")
