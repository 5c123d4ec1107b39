"""Examples of what only tensors have: attributes, conversions, and methods that are no functions.

Text alone: framework/examples/__init__.py reads it.
"""

TABLE = """
# any shape
= H
>>> fw.tensor([[1, 2], [3, 4]]).H
tensor([[1, 3],
        [2, 4]])
= T
>>> fw.tensor([[1, 2], [3, 4]]).T
tensor([[1, 3],
        [2, 4]])
= mT
>>> fw.zeros(5, 2, 3).mT.shape
framework.Size([5, 3, 2])
= backward
>>> x = fw.tensor([3.0], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad
tensor([6.])
= bfloat16
>>> fw.ones(2).bfloat16()
tensor([1., 1.], dtype=framework.bfloat16)
= bool
>>> fw.tensor([0, 2]).bool()
tensor([False,  True])
= byte
>>> fw.tensor([1.9]).byte()
tensor([1], dtype=framework.uint8)
= char
>>> fw.tensor([1.9]).char()
tensor([1], dtype=framework.int8)
= contiguous
>>> fw.zeros(2, 3).t().contiguous().is_contiguous()
True
= cpu
>>> fw.ones(2).cpu()
tensor([1., 1.])
= cuda
>>> fw.ones(2).is_cuda
False
= data
>>> x = fw.ones(2, requires_grad=True)
>>> x.data.requires_grad
False
= data_ptr
>>> x = fw.ones(2)
>>> x.data_ptr() == x.view(2, 1).data_ptr()
True
= detach
>>> x = fw.ones(2, requires_grad=True)
>>> x.detach().requires_grad
False
= device
>>> fw.ones(2).device
device(type='cpu')
= dim
>>> fw.zeros(2, 3).dim()
2
= double
>>> fw.ones(2).double()
tensor([1., 1.], dtype=framework.float64)
= dtype
>>> fw.arange(2).dtype
framework.int64
= element_size
>>> fw.ones(2).element_size()
4
= expand
>>> fw.tensor([[1], [2]]).expand(2, 3)
tensor([[1, 1, 1],
        [2, 2, 2]])
= expand_as
>>> fw.tensor([[1], [2]]).expand_as(fw.zeros(2, 3)).shape
framework.Size([2, 3])
= float
>>> fw.tensor([1, 2]).float()
tensor([1., 2.])
= grad
>>> x = fw.tensor([3.0], requires_grad=True)
>>> (2 * x).sum().backward()
>>> x.grad
tensor([2.])
= grad_fn
>>> (fw.ones(2, requires_grad=True) * 2).grad_fn.name()
'MulBackward0'
= half
>>> fw.ones(2).half()
tensor([1., 1.], dtype=framework.float16)
= int
>>> fw.tensor([1.9, -1.9]).int()
tensor([ 1, -1], dtype=framework.int32)
= is_complex
>>> fw.ones(2).is_complex()
False
= is_contiguous
>>> fw.zeros(2, 3).t().is_contiguous()
False
= is_cuda
>>> fw.ones(2).is_cuda
False
= is_floating_point
>>> fw.ones(2).is_floating_point()
True
= is_leaf
>>> x = fw.ones(2, requires_grad=True)
>>> x.is_leaf, (x * 2).is_leaf
(True, False)
= is_pinned
>>> fw.ones(2).is_pinned()
False
= get_device
>>> fw.ones(2).get_device()
-1
= is_signed
>>> fw.ones(2, dtype=fw.uint8).is_signed()
False
= is_sparse
>>> fw.ones(2).is_sparse
False
= item
>>> fw.tensor([3.5]).item()
3.5
= itemsize
>>> fw.ones(2).itemsize
4
= layout
>>> fw.ones(2).layout
'strided'
= long
>>> fw.tensor([1.9]).long()
tensor([1])
= nbytes
>>> fw.zeros(2, 3).nbytes
24
= ndim
>>> fw.zeros(2, 3).ndim
2
= ndimension
>>> fw.zeros(2, 3).ndimension()
2
= nelement
>>> fw.zeros(2, 3).nelement()
6
= new_empty
>>> fw.ones(2, dtype=fw.float64).new_empty(3).dtype
framework.float64
= new_full
>>> fw.ones(2).new_full((2,), 7)
tensor([7., 7.])
= new_ones
>>> fw.ones(2, dtype=fw.int32).new_ones(3)
tensor([1, 1, 1], dtype=framework.int32)
= new_tensor
>>> fw.ones(2).new_tensor([1, 2])
tensor([1., 2.])
= new_zeros
>>> fw.ones(2).new_zeros(3)
tensor([0., 0., 0.])
= numel
>>> fw.zeros(2, 3).numel()
6
= numpy
>>> fw.ones(2).numpy()
array([1., 1.], dtype=float32)
= output_nr
>>> fw.ones(2).output_nr
0
= pin_memory
>>> fw.ones(2).pin_memory()
tensor([1., 1.])
= register_hook
>>> x = fw.ones(1, requires_grad=True)
>>> handle = x.register_hook(lambda g: g * 10)
>>> x.sum().backward()
>>> x.grad
tensor([10.])
= register_post_accumulate_grad_hook
>>> x = fw.ones(1, requires_grad=True)
>>> handle = x.register_post_accumulate_grad_hook(lambda t: print("grad", t.grad))
>>> x.sum().backward()
grad tensor([1.])
= repeat
>>> fw.tensor([1, 2]).repeat(2, 2)
tensor([[1, 2, 1, 2],
        [1, 2, 1, 2]])
= requires_grad
>>> fw.ones(2, requires_grad=True).requires_grad
True
= requires_grad_
>>> fw.ones(2).requires_grad_()
tensor([1., 1.], requires_grad=True)
= reshape_as
>>> fw.arange(6).reshape_as(fw.zeros(2, 3)).shape
framework.Size([2, 3])
= retain_grad
>>> x = fw.ones(1, requires_grad=True)
>>> y = x * 2
>>> y.retain_grad()
>>> y.sum().backward()
>>> y.grad
tensor([1.])
= retains_grad
>>> fw.ones(2).retains_grad
False
= shape
>>> fw.zeros(2, 3).shape
framework.Size([2, 3])
= short
>>> fw.tensor([1.9]).short()
tensor([1], dtype=framework.int16)
= size
>>> fw.zeros(2, 3).size(), fw.zeros(2, 3).size(1)
(framework.Size([2, 3]), 3)
= storage_offset
>>> fw.arange(5)[2:].storage_offset()
2
= stride
>>> fw.zeros(2, 3).stride(), fw.zeros(2, 3).t().stride()
((3, 1), (1, 3))
= to
>>> fw.tensor([1, 2]).to(fw.float64)
tensor([1., 2.], dtype=framework.float64)
= tolist
>>> fw.tensor([[1, 2], [3, 4]]).tolist()
[[1, 2], [3, 4]]
= type
>>> fw.ones(2).type()
'framework.FloatTensor'
= type_as
>>> fw.tensor([1, 2]).type_as(fw.ones(1))
tensor([1., 2.])
= unfold
>>> fw.arange(5).unfold(0, 3, 1)
tensor([[0, 1, 2],
        [1, 2, 3],
        [2, 3, 4]])
= view
>>> fw.arange(6).view(2, 3)
tensor([[0, 1, 2],
        [3, 4, 5]])
= view_as
>>> fw.arange(6).view_as(fw.zeros(2, 3)).shape
framework.Size([2, 3])
= where
>>> fw.tensor([1.0, 2.0]).where(fw.tensor([True, False]), 0.0)
tensor([1., 0.])
= copy_
>>> fw.zeros(2).copy_(fw.tensor([1.0, 2.0]))
tensor([1., 2.])
= fill_
>>> fw.zeros(2).fill_(3)
tensor([3., 3.])
= zero_
>>> fw.ones(2).zero_()
tensor([0., 0.])
= detach_
>>> (fw.ones(2, requires_grad=True) * 2).detach_().requires_grad
False
= squeeze_
>>> fw.zeros(1, 2).squeeze_().shape
framework.Size([2])
= unsqueeze_
>>> fw.zeros(2).unsqueeze_(0).shape
framework.Size([1, 2])
= transpose_
>>> fw.zeros(2, 3).transpose_(0, 1).shape
framework.Size([3, 2])
= t_
>>> fw.zeros(2, 3).t_().shape
framework.Size([3, 2])
= bernoulli_
>>> fw.zeros(3).bernoulli_(1.0)
tensor([1., 1., 1.])
= exponential_
>>> (fw.zeros(3).exponential_() > 0).all()
tensor(True)
= log_normal_
>>> (fw.zeros(3).log_normal_() > 0).all()
tensor(True)
= normal_
>>> fw.zeros(3).normal_().shape
framework.Size([3])
= random_
>>> fw.zeros(3).random_(0, 1)
tensor([0., 0., 0.])
= uniform_
>>> (fw.zeros(3).uniform_() < 1).all()
tensor(True)
"""
