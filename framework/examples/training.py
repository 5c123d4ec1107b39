"""Examples of optimizers, schedules, initialisation, gradient utilities, data and autograd.

Text alone: framework/examples/__init__.py reads it.
"""

TABLE = """
# parameters of any shape
= optim.SGD
>>> w = fw.ones(1, requires_grad=True)
>>> optimizer = optim.SGD([w], lr=0.1, momentum=0.9)
>>> (w * w).sum().backward()
>>> optimizer.step()
>>> w.detach()
tensor([0.8000])
= optim.Adadelta
>>> w = fw.ones(1, requires_grad=True)
>>> optimizer = optim.Adadelta([w])
>>> (w * w).sum().backward()
>>> optimizer.step()
= optim.Adagrad
>>> w = fw.ones(1, requires_grad=True)
>>> optimizer = optim.Adagrad([w], lr=0.1)
>>> (w * w).sum().backward()
>>> optimizer.step()
>>> w.detach()
tensor([0.9000])
= optim.Adam
>>> w = fw.ones(1, requires_grad=True)
>>> optimizer = optim.Adam([w], lr=0.1)
>>> (w * w).sum().backward()
>>> optimizer.step()
>>> w.detach()
tensor([0.9000])
= optim.AdamW
>>> w = fw.ones(1, requires_grad=True)
>>> optimizer = optim.AdamW([w], lr=0.1)
>>> (w * w).sum().backward()
>>> optimizer.step()
>>> w.detach()
tensor([0.8990])
= optim.Optimizer
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=0.1)
>>> optimizer.param_groups[0]["lr"]
0.1
= optim.RMSprop
>>> w = fw.ones(1, requires_grad=True)
>>> optimizer = optim.RMSprop([w], lr=0.1)
>>> (w * w).sum().backward()
>>> optimizer.step()
>>> w.detach()
tensor([5.9605e-08])
# no tensors: a schedule sets "lr" in the optimizer's groups
= lr_scheduler.ChainedScheduler
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> parts = [optim.lr_scheduler.StepLR(optimizer, 1), optim.lr_scheduler.ConstantLR(optimizer)]
>>> schedule = optim.lr_scheduler.ChainedScheduler(parts)
= lr_scheduler.ConstantLR
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = optim.lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=2)
>>> schedule.get_last_lr()
[0.5]
= lr_scheduler.CosineAnnealingLR
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
>>> optimizer.step()
>>> schedule.step()
>>> round(schedule.get_last_lr()[0], 6)
0.5
= lr_scheduler.CosineAnnealingWarmRestarts
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=10)
>>> schedule.get_last_lr()
[1.0]
= lr_scheduler.ExponentialLR
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
>>> optimizer.step()
>>> schedule.step()
>>> schedule.get_last_lr()
[0.5]
= lr_scheduler.LRScheduler
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> isinstance(optim.lr_scheduler.StepLR(optimizer, 1), optim.lr_scheduler.LRScheduler)
True
= lr_scheduler.LambdaLR
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
>>> optimizer.step()
>>> schedule.step()
>>> schedule.get_last_lr()
[0.5]
= lr_scheduler.LinearLR
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=2)
>>> schedule.get_last_lr()
[0.5]
= lr_scheduler.MultiStepLR
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 3])
>>> optimizer.step()
>>> schedule.step()
>>> schedule.get_last_lr()
[0.1]
= lr_scheduler.MultiplicativeLR
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = optim.lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.5)
>>> optimizer.step()
>>> schedule.step()
>>> schedule.get_last_lr()
[0.5]
= lr_scheduler.OneCycleLR
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0, momentum=0.9)
>>> schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
>>> round(schedule.get_last_lr()[0], 4)
0.04
= lr_scheduler.PolynomialLR
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = optim.lr_scheduler.PolynomialLR(optimizer, total_iters=4)
>>> optimizer.step()
>>> schedule.step()
>>> schedule.get_last_lr()
[0.75]
= lr_scheduler.ReduceLROnPlateau
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
>>> schedule.step(1.0)
>>> schedule.step(1.0)
>>> schedule.get_last_lr()
[0.1]
= lr_scheduler.SequentialLR
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> first = optim.lr_scheduler.ConstantLR(optimizer, 0.1, 2)
>>> second = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
>>> schedule = optim.lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[2])
>>> schedule.get_last_lr()
[0.1]
= lr_scheduler.StepLR
>>> optimizer = optim.SGD([fw.ones(1, requires_grad=True)], lr=1.0)
>>> schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
>>> optimizer.step()
>>> schedule.step()
>>> schedule.get_last_lr()
[0.1]
# a tensor of any shape is filled, unless it says otherwise
= init.calculate_gain
>>> nn.init.calculate_gain("relu")
1.4142135623730951
= init.constant_
>>> nn.init.constant_(fw.empty(2), 3.0)
tensor([3., 3.])
= init.eye_
>>> nn.init.eye_(fw.empty(2, 2))
tensor([[1., 0.],
        [0., 1.]])
= init.kaiming_normal_
>>> nn.init.kaiming_normal_(fw.empty(3, 4)).shape
framework.Size([3, 4])
= init.kaiming_uniform_
>>> nn.init.kaiming_uniform_(fw.empty(3, 4)).shape
framework.Size([3, 4])
= init.normal_
>>> nn.init.normal_(fw.empty(3), std=0.02).shape
framework.Size([3])
= init.ones_
>>> nn.init.ones_(fw.empty(2))
tensor([1., 1.])
= init.trunc_normal_
>>> nn.init.trunc_normal_(fw.empty(3)).shape
framework.Size([3])
= init.uniform_
>>> nn.init.uniform_(fw.empty(3)).shape
framework.Size([3])
= init.xavier_normal_
>>> nn.init.xavier_normal_(fw.empty(3, 4)).shape
framework.Size([3, 4])
= init.xavier_uniform_
>>> nn.init.xavier_uniform_(fw.empty(3, 4)).shape
framework.Size([3, 4])
= init.zeros_
>>> nn.init.zeros_(fw.empty(2))
tensor([0., 0.])
# parameters of any shape
= nn_utils.clear_gradients
>>> w = fw.ones(1, requires_grad=True)
>>> w.sum().backward()
>>> nn.utils.clear_gradients([w], True)
>>> print(w.grad)
None
= nn_utils.clip_grad_norm_
>>> w = fw.ones(1, requires_grad=True)
>>> (4 * w).sum().backward()
>>> nn.utils.clip_grad_norm_([w], 1.0)
tensor(4.)
>>> w.grad
tensor([1.0000])
= nn_utils.clip_grad_value_
>>> w = fw.ones(1, requires_grad=True)
>>> (4 * w).sum().backward()
>>> nn.utils.clip_grad_value_([w], 1.0)
>>> w.grad
tensor([1.])
= nn_utils.clip_grads_with_norm_
>>> w = fw.ones(1, requires_grad=True)
>>> (4 * w).sum().backward()
>>> nn.utils.clip_grads_with_norm_([w], 1.0, fw.tensor(4.0))
>>> w.grad
tensor([1.0000])
= nn_utils.get_total_norm
>>> nn.utils.get_total_norm([fw.tensor([3.0]), fw.tensor([4.0])])
tensor(5.)
= nn_utils.parameters_to_vector
>>> nn.utils.parameters_to_vector([fw.ones(2, 2), fw.zeros(1)])
tensor([1., 1., 1., 1., 0.])
= nn_utils.vector_to_parameters
>>> w = fw.zeros(2, 2)
>>> nn.utils.vector_to_parameters(fw.arange(4.0), [w])
>>> w
tensor([[0., 1.],
        [2., 3.]])
# sequences [length, ...] to [longest, batch, ...], with batch_first [batch, longest, ...]
= rnn.pad_sequence
>>> nn.utils.rnn.pad_sequence([fw.ones(2), fw.ones(1)], batch_first=True)
tensor([[1., 1.],
        [1., 0.]])
= rnn.unpad_sequence
>>> nn.utils.rnn.unpad_sequence(fw.ones(2, 3), fw.tensor([2, 1]), batch_first=True)
[tensor([1., 1.]), tensor([1.])]
# items of a data set become batches [batch, ...]
= data.BatchSampler
>>> list(data.BatchSampler(data.SequentialSampler(range(5)), 2, drop_last=False))
[[0, 1], [2, 3], [4]]
= data.ConcatDataset
>>> len(data.ConcatDataset([data.TensorDataset(fw.ones(3)), data.TensorDataset(fw.ones(2))]))
5
= data.DataLoader
>>> loader = data.DataLoader(data.TensorDataset(fw.arange(5)), batch_size=2)
>>> [x.tolist() for (x,) in loader]
[[0, 1], [2, 3], [4]]
= data.Dataset
>>> isinstance(data.TensorDataset(fw.ones(3)), data.Dataset)
True
= data.IterableDataset
>>> issubclass(data.IterableDataset, data.Dataset)
True
= data.RandomSampler
>>> sorted(data.RandomSampler(range(3)))
[0, 1, 2]
= data.Sampler
>>> isinstance(data.SequentialSampler(range(3)), data.Sampler)
True
= data.SequentialSampler
>>> list(data.SequentialSampler(range(3)))
[0, 1, 2]
= data.Subset
>>> data.Subset(data.TensorDataset(fw.arange(5)), [0, 4])[1]
(tensor(4),)
= data.SubsetRandomSampler
>>> sorted(data.SubsetRandomSampler([4, 2]))
[2, 4]
= data.TensorDataset
>>> data.TensorDataset(fw.arange(3), fw.ones(3))[1]
(tensor(1), tensor(1.))
= data.default_collate
>>> data.default_collate([(fw.ones(2), 0), (fw.zeros(2), 1)])
[tensor([[1., 1.],
        [0., 0.]]), tensor([0, 1])]
= data.random_split
>>> [len(part) for part in data.random_split(data.TensorDataset(fw.ones(5)), [3, 2])]
[3, 2]
"""
