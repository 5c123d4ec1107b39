"""Examples of products, of functions that move elements, and of those that make tensors.

Text alone: framework/examples/__init__.py reads it.
"""

TABLE = """
# [..., m, k] times [..., k, n] is [..., m, n]
= matmul
>>> fw.matmul(fw.ones(5, 2, 3), fw.ones(3, 4)).shape
framework.Size([5, 2, 4])
= bmm
>>> fw.bmm(fw.ones(5, 2, 3), fw.ones(5, 3, 4)).shape
framework.Size([5, 2, 4])
= mm
>>> fw.mm(fw.tensor([[1.0, 2.0]]), fw.tensor([[3.0], [4.0]]))
tensor([[11.]])
= addmm
>>> fw.addmm(fw.ones(2, 2), fw.ones(2, 3), fw.ones(3, 2), beta=10)
tensor([[13., 13.],
        [13., 13.]])
= baddbmm
>>> fw.baddbmm(fw.zeros(5, 2, 4), fw.ones(5, 2, 3), fw.ones(5, 3, 4)).shape
framework.Size([5, 2, 4])
# [m, k] times [k] is [m]
= mv
>>> fw.mv(fw.tensor([[1.0, 2.0], [3.0, 4.0]]), fw.tensor([1.0, 1.0]))
tensor([3., 7.])
= addmv
>>> fw.addmv(fw.ones(2), fw.tensor([[1.0, 2.0], [3.0, 4.0]]), fw.tensor([1.0, 1.0]))
tensor([4., 8.])
# [n] and [n] give a number
= dot
>>> fw.dot(fw.tensor([1.0, 2.0]), fw.tensor([3.0, 4.0]))
tensor(11.)
= vdot
>>> fw.vdot(fw.tensor([1.0, 2.0]), fw.tensor([3.0, 4.0]))
tensor(11.)
# [m] and [n] give [m, n]
= outer
>>> fw.outer(fw.tensor([1, 2]), fw.tensor([1, 10]))
tensor([[ 1, 10],
        [ 2, 20]])
= addr
>>> fw.addr(fw.zeros(2, 2), fw.tensor([1.0, 2.0]), fw.tensor([1.0, 10.0]))
tensor([[ 1., 10.],
        [ 2., 20.]])
# last dimensions of equal size; [..., k] and [m, k] give [..., m]
= inner
>>> fw.inner(fw.tensor([1.0, 2.0]), fw.tensor([[1.0, 0.0], [0.0, 1.0]]))
tensor([1., 2.])
# sizes multiply: [2] and [3] give [6]
= kron
>>> fw.kron(fw.tensor([1, 10]), fw.tensor([1, 2, 3]))
tensor([ 1,  2,  3, 10, 20, 30])
# the equation says; the last `dims` of a and the first of b go
= einsum
>>> fw.einsum("ij,jk->ik", fw.ones(2, 3), fw.ones(3, 4)).shape
framework.Size([2, 4])
= tensordot
>>> fw.tensordot(fw.ones(2, 3, 4), fw.ones(3, 4, 5), dims=2).shape
framework.Size([2, 5])
# [..., p, d] and [..., r, d] give [..., p, r]
= cdist
>>> fw.cdist(fw.tensor([[0.0, 0.0]]), fw.tensor([[3.0, 4.0], [0.0, 1.0]]))
tensor([[5., 1.]])
# size 3 along `dim`
= cross
>>> fw.cross(fw.tensor([1, 0, 0]), fw.tensor([0, 1, 0]), dim=0)
tensor([0, 0, 1])
# [n] to [n, n], and [n, n] to [n]
= diag
>>> fw.diag(fw.tensor([1, 2]))
tensor([[1, 0],
        [0, 2]])
>>> fw.diag(fw.tensor([[1, 2], [3, 4]]))
tensor([1, 4])
= diag_embed
>>> fw.diag_embed(fw.tensor([1, 2]), offset=1)
tensor([[0, 1, 0],
        [0, 0, 2],
        [0, 0, 0]])
= diagflat
>>> fw.diagflat(fw.tensor([1, 2]))
tensor([[1, 0],
        [0, 2]])
= diagonal
>>> fw.diagonal(fw.tensor([[1, 2], [3, 4]]))
tensor([1, 4])
= trace
>>> fw.trace(fw.tensor([[1, 2], [3, 4]]))
tensor(5)
= block_diag
>>> fw.block_diag(fw.ones(1, 1), 2 * fw.ones(1, 2))
tensor([[1., 0., 0.],
        [0., 2., 2.]])
# [..., m, n]; the result has the shape of the input
= tril
>>> fw.tril(fw.ones(3, 3))
tensor([[1., 0., 0.],
        [1., 1., 0.],
        [1., 1., 1.]])
= triu
>>> fw.triu(fw.ones(3, 3), diagonal=1)
tensor([[0., 1., 1.],
        [0., 0., 1.],
        [0., 0., 0.]])
# dimensions change places
= adjoint
>>> fw.adjoint(fw.zeros(5, 2, 3)).shape
framework.Size([5, 3, 2])
= movedim
>>> fw.movedim(fw.zeros(2, 3, 4), 0, -1).shape
framework.Size([3, 4, 2])
= permute
>>> fw.permute(fw.zeros(2, 3, 4), (2, 0, 1)).shape
framework.Size([4, 2, 3])
= t
>>> fw.t(fw.tensor([[1, 2], [3, 4]]))
tensor([[1, 3],
        [2, 4]])
= transpose
>>> fw.transpose(fw.zeros(2, 3, 4), 0, 1).shape
framework.Size([3, 2, 4])
# the same elements in another shape
= flatten
>>> fw.flatten(fw.zeros(2, 3, 4), start_dim=1).shape
framework.Size([2, 12])
= ravel
>>> fw.ravel(fw.tensor([[1, 2], [3, 4]]))
tensor([1, 2, 3, 4])
= reshape
>>> fw.reshape(fw.arange(6), (2, -1))
tensor([[0, 1, 2],
        [3, 4, 5]])
= squeeze
>>> fw.squeeze(fw.zeros(1, 3, 1)).shape
framework.Size([3])
= unflatten
>>> fw.unflatten(fw.zeros(2, 6), 1, (2, 3)).shape
framework.Size([2, 2, 3])
= unsqueeze
>>> fw.unsqueeze(fw.zeros(3), 0).shape
framework.Size([1, 3])
= atleast_1d
>>> fw.atleast_1d(fw.tensor(3.0))
tensor([3.])
= atleast_2d
>>> fw.atleast_2d(fw.ones(3)).shape
framework.Size([1, 3])
= atleast_3d
>>> fw.atleast_3d(fw.ones(3)).shape
framework.Size([1, 3, 1])
= as_strided
>>> fw.as_strided(fw.arange(6), (2, 3), (1, 2))
tensor([[0, 2, 4],
        [1, 3, 5]])
# sizes of 1 grow
= broadcast_to
>>> fw.broadcast_to(fw.tensor([1, 2]), (2, 2))
tensor([[1, 2],
        [1, 2]])
= broadcast_shapes
>>> fw.broadcast_shapes((2, 1), (3,))
framework.Size([2, 3])
= broadcast_tensors
>>> [x.shape for x in fw.broadcast_tensors(fw.ones(2, 1), fw.ones(3))]
[framework.Size([2, 3]), framework.Size([2, 3])]
= meshgrid
>>> [x.tolist() for x in fw.meshgrid(fw.arange(2), fw.arange(3), indexing="ij")]
[[[0, 0, 0], [1, 1, 1]], [[0, 1, 2], [0, 1, 2]]]
# sizes along `dim` add up; the others are equal
= cat
>>> fw.cat([fw.tensor([1, 2]), fw.tensor([3])])
tensor([1, 2, 3])
= dstack
>>> fw.dstack([fw.ones(2), fw.ones(2)]).shape
framework.Size([1, 2, 2])
= hstack
>>> fw.hstack([fw.tensor([1, 2]), fw.tensor([3])])
tensor([1, 2, 3])
= stack
>>> fw.stack([fw.tensor([1, 2]), fw.tensor([3, 4])])
tensor([[1, 2],
        [3, 4]])
= vstack
>>> fw.vstack([fw.tensor([1, 2]), fw.tensor([3, 4])])
tensor([[1, 2],
        [3, 4]])
# `dim` is cut into parts
= chunk
>>> fw.chunk(fw.arange(5), 2)
(tensor([0, 1, 2]), tensor([3, 4]))
= dsplit
>>> [x.shape for x in fw.dsplit(fw.zeros(1, 2, 4), 2)]
[framework.Size([1, 2, 2]), framework.Size([1, 2, 2])]
= hsplit
>>> [x.shape for x in fw.hsplit(fw.zeros(2, 4), 2)]
[framework.Size([2, 2]), framework.Size([2, 2])]
= split
>>> fw.split(fw.arange(5), 2)
(tensor([0, 1]), tensor([2, 3]), tensor([4]))
>>> fw.split(fw.arange(5), [1, 4])
(tensor([0]), tensor([1, 2, 3, 4]))
= split_with_sizes
>>> fw.split_with_sizes(fw.arange(5), [1, 4])
(tensor([0]), tensor([1, 2, 3, 4]))
= tensor_split
>>> fw.tensor_split(fw.arange(5), 2)
(tensor([0, 1, 2]), tensor([3, 4]))
= unbind
>>> fw.unbind(fw.tensor([[1, 2], [3, 4]]))
(tensor([1, 2]), tensor([3, 4]))
= vsplit
>>> [x.shape for x in fw.vsplit(fw.zeros(4, 2), 2)]
[framework.Size([2, 2]), framework.Size([2, 2])]
# a part along `dim`
= narrow
>>> fw.narrow(fw.arange(5), 0, 1, 3)
tensor([1, 2, 3])
= select
>>> fw.select(fw.tensor([[1, 2], [3, 4]]), 0, 1)
tensor([3, 4])
# any shape; the result has the shape of the input
= flip
>>> fw.flip(fw.tensor([[1, 2], [3, 4]]), dims=(0,))
tensor([[3, 4],
        [1, 2]])
= fliplr
>>> fw.fliplr(fw.tensor([[1, 2], [3, 4]]))
tensor([[2, 1],
        [4, 3]])
= flipud
>>> fw.flipud(fw.tensor([[1, 2], [3, 4]]))
tensor([[3, 4],
        [1, 2]])
= roll
>>> fw.roll(fw.tensor([1, 2, 3]), 1)
tensor([3, 1, 2])
= rot90
>>> fw.rot90(fw.tensor([[1, 2], [3, 4]]))
tensor([[2, 4],
        [1, 3]])
= select_scatter
>>> fw.select_scatter(fw.zeros(2, 2), fw.ones(2), 0, 1)
tensor([[0., 0.],
        [1., 1.]])
= slice_scatter
>>> fw.slice_scatter(fw.zeros(4), fw.ones(2), start=1, end=3)
tensor([0., 1., 1., 0.])
= index_put
>>> fw.index_put(fw.zeros(3), (fw.tensor([0, 2]),), fw.tensor([1.0, 2.0]))
tensor([1., 0., 2.])
= index_add
>>> fw.index_add(fw.zeros(3), 0, fw.tensor([0, 0, 2]), fw.ones(3))
tensor([2., 0., 1.])
= index_copy
>>> fw.index_copy(fw.zeros(3), 0, fw.tensor([0, 2]), fw.tensor([1.0, 2.0]))
tensor([1., 0., 2.])
= index_fill
>>> fw.index_fill(fw.zeros(3), 0, fw.tensor([0, 2]), 5.0)
tensor([5., 0., 5.])
= masked_fill
>>> fw.masked_fill(fw.tensor([1.0, 2.0]), fw.tensor([True, False]), -fw.inf)
tensor([-inf, 2.])
= masked_scatter
>>> fw.masked_scatter(fw.zeros(3), fw.tensor([True, False, True]), fw.tensor([1.0, 2.0]))
tensor([1., 0., 2.])
= scatter
>>> fw.scatter(fw.zeros(3), 0, fw.tensor([2, 0]), fw.tensor([1.0, 2.0]))
tensor([2., 0., 1.])
= scatter_add
>>> fw.scatter_add(fw.zeros(3), 0, fw.tensor([0, 0]), fw.tensor([1.0, 2.0]))
tensor([3., 0., 0.])
# repeated: [3] twice is [6]
= tile
>>> fw.tile(fw.tensor([1, 2]), (2, 2))
tensor([[1, 2, 1, 2],
        [1, 2, 1, 2]])
= repeat_interleave
>>> fw.repeat_interleave(fw.tensor([1, 2]), 2)
tensor([1, 1, 2, 2])
# the result has the shape of the index
= gather
>>> fw.gather(fw.tensor([[1, 2], [3, 4]]), 1, fw.tensor([[0], [1]]))
tensor([[1],
        [4]])
= take
>>> fw.take(fw.tensor([[1, 2], [3, 4]]), fw.tensor([0, 3]))
tensor([1, 4])
= take_along_dim
>>> fw.take_along_dim(fw.tensor([[3, 1]]), fw.tensor([[1, 0]]), dim=1)
tensor([[1, 3]])
# `dim` gets the size of the index, or what is chosen
= index_select
>>> fw.index_select(fw.tensor([[1, 2], [3, 4]]), 0, fw.tensor([1]))
tensor([[3, 4]])
= masked_select
>>> fw.masked_select(fw.tensor([1, 2, 3]), fw.tensor([True, False, True]))
tensor([1, 3])
# what is asked for
= arange
>>> fw.arange(5)
tensor([0, 1, 2, 3, 4])
>>> fw.arange(1, 2, 0.25)
tensor([1.0000, 1.2500, 1.5000, 1.7500])
= clone
>>> fw.clone(fw.tensor([1, 2]))
tensor([1, 2])
= empty
>>> fw.empty(2, 3).shape
framework.Size([2, 3])
= empty_like
>>> fw.empty_like(fw.ones(2, 3)).shape
framework.Size([2, 3])
= eye
>>> fw.eye(2)
tensor([[1., 0.],
        [0., 1.]])
= full
>>> fw.full((2, 2), 7.0)
tensor([[7., 7.],
        [7., 7.]])
= full_like
>>> fw.full_like(fw.zeros(2), 7.0)
tensor([7., 7.])
= linspace
>>> fw.linspace(0, 1, 5)
tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
= logspace
>>> fw.logspace(0, 2, 3)
tensor([  1.,  10., 100.])
= ones
>>> fw.ones(2, 3)
tensor([[1., 1., 1.],
        [1., 1., 1.]])
= ones_like
>>> fw.ones_like(fw.zeros(2))
tensor([1., 1.])
= scalar_tensor
>>> fw.scalar_tensor(3.0)
tensor(3.)
= tril_indices
>>> fw.tril_indices(2, 2)
tensor([[0, 1, 1],
        [0, 0, 1]])
= triu_indices
>>> fw.triu_indices(2, 2)
tensor([[0, 0, 1],
        [0, 1, 1]])
= zeros
>>> fw.zeros(2, 3)
tensor([[0., 0., 0.],
        [0., 0., 0.]])
= zeros_like
>>> fw.zeros_like(fw.ones(2))
tensor([0., 0.])
# the shape of the data
= tensor
>>> fw.tensor([[1, 2], [3, 4]])
tensor([[1, 2],
        [3, 4]])
>>> fw.tensor([1.0, 2.0], requires_grad=True)
tensor([1., 2.], requires_grad=True)
= as_tensor
>>> fw.as_tensor([1.0, 2.0])
tensor([1., 2.])
= from_numpy
>>> fw.from_numpy(np.arange(3))
tensor([0, 1, 2])
= from_dlpack
>>> fw.from_dlpack(np.arange(3))
tensor([0, 1, 2])
= frombuffer
>>> fw.frombuffer(bytearray(b"abc"), dtype=fw.uint8)
tensor([97, 98, 99], dtype=framework.uint8)
= BFloat16Tensor
>>> fw.BFloat16Tensor([1, 2])
tensor([1., 2.], dtype=framework.bfloat16)
= BoolTensor
>>> fw.BoolTensor([True, False])
tensor([ True, False])
= ByteTensor
>>> fw.ByteTensor([1, 2])
tensor([1, 2], dtype=framework.uint8)
= CharTensor
>>> fw.CharTensor([1, 2])
tensor([1, 2], dtype=framework.int8)
= DoubleTensor
>>> fw.DoubleTensor([1, 2])
tensor([1., 2.], dtype=framework.float64)
= FloatTensor
>>> fw.FloatTensor([1, 2])
tensor([1., 2.])
= HalfTensor
>>> fw.HalfTensor([1, 2])
tensor([1., 2.], dtype=framework.float16)
= IntTensor
>>> fw.IntTensor([1, 2])
tensor([1, 2], dtype=framework.int32)
= LongTensor
>>> fw.LongTensor([1, 2])
tensor([1, 2])
= ShortTensor
>>> fw.ShortTensor([1, 2])
tensor([1, 2], dtype=framework.int16)
= Tensor
>>> x = fw.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad
tensor([[2., 4.],
        [6., 8.]])
= Size
>>> fw.Size([2, 3]).numel()
6
# what is asked for, or the shape of the input
= Generator
>>> g = fw.Generator().manual_seed(0)
>>> fw.randint(0, 10, (3,), generator=g).shape
framework.Size([3])
= bernoulli
>>> fw.bernoulli(fw.tensor([0.0, 1.0]))
tensor([0., 1.])
= get_rng_state
>>> before = fw.get_rng_state()
>>> x = fw.rand(3)
>>> fw.set_rng_state(before)
>>> fw.equal(x, fw.rand(3))
True
= set_rng_state
>>> before = fw.get_rng_state()
>>> x = fw.rand(3)
>>> fw.set_rng_state(before)
>>> fw.equal(x, fw.rand(3))
True
= initial_seed
>>> g = fw.manual_seed(3)
>>> fw.initial_seed()
3
= manual_seed
>>> g = fw.manual_seed(3)
>>> x = fw.rand(2)
>>> g = fw.manual_seed(3)
>>> fw.equal(x, fw.rand(2))
True
= multinomial
>>> fw.multinomial(fw.tensor([0.0, 1.0]), 3, replacement=True)
tensor([1, 1, 1])
= normal
>>> fw.normal(0.0, 1.0, (2, 3)).shape
framework.Size([2, 3])
= rand
>>> fw.rand(2, 3).shape
framework.Size([2, 3])
= rand_like
>>> fw.rand_like(fw.ones(2, 3)).shape
framework.Size([2, 3])
= randint
>>> fw.randint(0, 10, (2, 3)).shape
framework.Size([2, 3])
= randint_like
>>> fw.randint_like(fw.ones(2, 3), 0, 10).shape
framework.Size([2, 3])
= randn
>>> fw.randn(2, 3).shape
framework.Size([2, 3])
= randn_like
>>> fw.randn_like(fw.ones(2, 3)).shape
framework.Size([2, 3])
= randperm
>>> fw.randperm(5).sort().values
tensor([0, 1, 2, 3, 4])
= seed
>>> isinstance(fw.seed(), int)
True
# no tensors
= can_cast
>>> fw.can_cast(fw.int64, fw.float32), fw.can_cast(fw.float32, fw.int64)
(True, False)
= promote_types
>>> fw.promote_types(fw.int32, fw.float32)
framework.float32
= result_type
>>> fw.result_type(fw.ones(2, dtype=fw.int32), 1.5)
framework.float32
= device
>>> fw.device("cpu")
device(type='cpu')
= dtype
>>> fw.float32.itemsize, fw.float32.is_floating_point
(4, True)
= finfo
>>> fw.finfo(fw.float32).eps
1.1920928955078125e-07
= iinfo
>>> fw.iinfo(fw.int8).max
127
= enable_grad
>>> x = fw.ones(2, requires_grad=True)
>>> with fw.no_grad(), fw.enable_grad():
...     print((x * 2).requires_grad)
True
= inference_mode
>>> x = fw.ones(2, requires_grad=True)
>>> with fw.inference_mode():
...     print((x * 2).requires_grad)
False
= is_grad_enabled
>>> fw.is_grad_enabled()
True
= no_grad
>>> x = fw.ones(2, requires_grad=True)
>>> with fw.no_grad():
...     print((x * 2).requires_grad)
False
= set_grad_enabled
>>> x = fw.ones(2, requires_grad=True)
>>> with fw.set_grad_enabled(False):
...     print((x * 2).requires_grad)
False
= get_default_dtype
>>> fw.get_default_dtype()
framework.float32
= get_float32_matmul_precision
>>> fw.get_float32_matmul_precision()
'highest'
= set_float32_matmul_precision
>>> fw.set_float32_matmul_precision("highest")
>>> fw.get_float32_matmul_precision()
'highest'
= set_default_dtype
>>> fw.set_default_dtype(fw.float64)
>>> fw.tensor([1.0]).dtype
framework.float64
>>> fw.set_default_dtype(fw.float32)
= get_printoptions
>>> fw.get_printoptions()["precision"]
4
= set_printoptions
>>> fw.set_printoptions(precision=2)
>>> fw.tensor([fw.pi])
tensor([3.14])
>>> fw.set_printoptions(profile="default")
"""
