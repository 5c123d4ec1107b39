"""Examples of functions on numbers: elementwise ones, reductions, comparisons, searches.

Text alone: framework/examples/__init__.py reads it.
"""

TABLE = """
# any shape; the result has the shape of the input
= abs
>>> fw.abs(fw.tensor([-1.5, 2.0]))
tensor([1.5000, 2.0000])
= acos
>>> fw.acos(fw.tensor([-1.0, 0.0, 1.0]))
tensor([3.1416, 1.5708, 0.0000])
= acosh
>>> fw.acosh(fw.tensor([1.0, 2.0]))
tensor([0.0000, 1.3170])
= asin
>>> fw.asin(fw.tensor([0.0, 1.0]))
tensor([0.0000, 1.5708])
= asinh
>>> fw.asinh(fw.tensor([0.0, 1.0]))
tensor([0.0000, 0.8814])
= atan
>>> fw.atan(fw.tensor([0.0, 1.0]))
tensor([0.0000, 0.7854])
= atanh
>>> fw.atanh(fw.tensor([0.0, 0.5]))
tensor([0.0000, 0.5493])
= bitwise_not
>>> fw.bitwise_not(fw.tensor([0, 5, -1]))
tensor([-1, -6,  0])
= ceil
>>> fw.ceil(fw.tensor([1.2, -1.2]))
tensor([ 2., -1.])
= cos
>>> fw.cos(fw.tensor([0.0, fw.pi]))
tensor([ 1., -1.])
= cosh
>>> fw.cosh(fw.tensor([0.0, 1.0]))
tensor([1.0000, 1.5431])
= deg2rad
>>> fw.deg2rad(fw.tensor([0.0, 180.0]))
tensor([0.0000, 3.1416])
= digamma
>>> fw.digamma(fw.tensor([1.0, 2.0]))
tensor([-0.5772,  0.4228])
= erf
>>> fw.erf(fw.tensor([0.0, 1.0]))
tensor([0.0000, 0.8427])
= erfc
>>> fw.erfc(fw.tensor([0.0, 1.0]))
tensor([1.0000, 0.1573])
= erfinv
>>> fw.erfinv(fw.tensor([0.0, 0.5]))
tensor([0.0000, 0.4769])
= exp
>>> fw.exp(fw.tensor([0.0, 1.0]))
tensor([1.0000, 2.7183])
= exp2
>>> fw.exp2(fw.tensor([0.0, 3.0]))
tensor([1., 8.])
= expm1
>>> fw.expm1(fw.tensor([0.0, 1.0]))
tensor([0.0000, 1.7183])
= fill
>>> fw.fill(fw.zeros(2), 7.0)
tensor([7., 7.])
= floor
>>> fw.floor(fw.tensor([1.8, -1.2]))
tensor([ 1., -2.])
= frac
>>> fw.frac(fw.tensor([1.25, -1.25]))
tensor([ 0.2500, -0.2500])
= isfinite
>>> fw.isfinite(fw.tensor([1.0, fw.inf, fw.nan]))
tensor([ True, False, False])
= isinf
>>> fw.isinf(fw.tensor([1.0, fw.inf, fw.nan]))
tensor([False,  True, False])
= isnan
>>> fw.isnan(fw.tensor([1.0, fw.inf, fw.nan]))
tensor([False, False,  True])
= isneginf
>>> fw.isneginf(fw.tensor([fw.inf, -fw.inf]))
tensor([False,  True])
= isposinf
>>> fw.isposinf(fw.tensor([fw.inf, -fw.inf]))
tensor([ True, False])
= lgamma
>>> fw.lgamma(fw.tensor([1.0, 4.0]))
tensor([0.0000, 1.7918])
= log
>>> fw.log(fw.tensor([1.0, fw.e]))
tensor([0., 1.])
= log10
>>> fw.log10(fw.tensor([1.0, 1000.0]))
tensor([0., 3.])
= log1p
>>> fw.log1p(fw.tensor([0.0, 1.0]))
tensor([0.0000, 0.6931])
= log2
>>> fw.log2(fw.tensor([1.0, 8.0]))
tensor([0., 3.])
= logical_not
>>> fw.logical_not(fw.tensor([True, False]))
tensor([False,  True])
= logit
>>> fw.logit(fw.tensor([0.5, 0.9]))
tensor([0.0000, 2.1972])
= nan_to_num
>>> fw.nan_to_num(fw.tensor([fw.nan, 1.0]))
tensor([0., 1.])
= neg
>>> fw.neg(fw.tensor([1.0, -2.0]))
tensor([-1.,  2.])
= positive
>>> fw.positive(fw.tensor([1.0, -2.0]))
tensor([ 1., -2.])
= rad2deg
>>> fw.rad2deg(fw.tensor([0.0, fw.pi]))
tensor([  0., 180.])
= reciprocal
>>> fw.reciprocal(fw.tensor([2.0, 4.0]))
tensor([0.5000, 0.2500])
= relu
>>> fw.relu(fw.tensor([-1.0, 2.0]))
tensor([0., 2.])
= round
>>> fw.round(fw.tensor([0.5, 1.5, -2.7]))
tensor([ 0.,  2., -3.])
= rsqrt
>>> fw.rsqrt(fw.tensor([4.0, 16.0]))
tensor([0.5000, 0.2500])
= sgn
>>> fw.sgn(fw.tensor([-3.0, 0.0, 2.0]))
tensor([-1.,  0.,  1.])
= sigmoid
>>> fw.sigmoid(fw.tensor([0.0, 2.0]))
tensor([0.5000, 0.8808])
= signbit
>>> fw.signbit(fw.tensor([-1.0, 0.0]))
tensor([ True, False])
= sin
>>> fw.sin(fw.tensor([0.0, fw.pi / 2]))
tensor([0., 1.])
= sinh
>>> fw.sinh(fw.tensor([0.0, 1.0]))
tensor([0.0000, 1.1752])
= sqrt
>>> fw.sqrt(fw.tensor([4.0, 9.0]))
tensor([2., 3.])
= square
>>> fw.square(fw.tensor([2.0, -3.0]))
tensor([4., 9.])
= tan
>>> fw.tan(fw.tensor([0.0, 1.0]))
tensor([0.0000, 1.5574])
= tanh
>>> fw.tanh(fw.tensor([0.0, 1.0]))
tensor([0.0000, 0.7616])
= trunc
>>> fw.trunc(fw.tensor([1.8, -1.8]))
tensor([ 1., -1.])
# operands broadcast: [2, 1] and [3] give [2, 3]
= add
>>> fw.add(fw.tensor([[1], [2]]), fw.tensor([10, 20, 30]))
tensor([[11, 21, 31],
        [12, 22, 32]])
= addcdiv
>>> fw.addcdiv(fw.tensor([1.0]), fw.tensor([6.0]), fw.tensor([3.0]), value=10)
tensor([21.])
= addcmul
>>> fw.addcmul(fw.tensor([1.0]), fw.tensor([6.0]), fw.tensor([3.0]), value=10)
tensor([181.])
= atan2
>>> fw.atan2(fw.tensor([1.0, -1.0]), fw.tensor([1.0, 1.0]))
tensor([ 0.7854, -0.7854])
= bitwise_and
>>> fw.bitwise_and(fw.tensor([6, 5]), 3)
tensor([2, 1])
= bitwise_left_shift
>>> fw.bitwise_left_shift(fw.tensor([1, 2]), 3)
tensor([ 8, 16])
= bitwise_or
>>> fw.bitwise_or(fw.tensor([6, 5]), 3)
tensor([7, 7])
= bitwise_right_shift
>>> fw.bitwise_right_shift(fw.tensor([8, 16]), 3)
tensor([1, 2])
= bitwise_xor
>>> fw.bitwise_xor(fw.tensor([6, 5]), 3)
tensor([5, 6])
= clamp
>>> fw.clamp(fw.tensor([-2.0, 0.5, 3.0]), min=0, max=1)
tensor([0.0000, 0.5000, 1.0000])
= clamp_max
>>> fw.clamp_max(fw.tensor([-2.0, 3.0]), 1)
tensor([-2.,  1.])
= clamp_min
>>> fw.clamp_min(fw.tensor([-2.0, 3.0]), 0)
tensor([0., 3.])
= copysign
>>> fw.copysign(fw.tensor([1.0, 2.0]), fw.tensor([-1.0, 1.0]))
tensor([-1.,  2.])
= div
>>> fw.div(fw.tensor([7, -7]), 2)
tensor([ 3.5000, -3.5000])
>>> fw.div(fw.tensor([7, -7]), 2, rounding_mode="floor")
tensor([ 3, -4])
= eq
>>> fw.eq(fw.tensor([1, 2]), fw.tensor([1, 3]))
tensor([ True, False])
= float_power
>>> fw.float_power(fw.tensor([2, 3]), 2)
tensor([4., 9.], dtype=framework.float64)
= floor_divide
>>> fw.floor_divide(fw.tensor([7, -7]), 2)
tensor([ 3, -4])
= fmax
>>> fw.fmax(fw.tensor([1.0, fw.nan]), fw.tensor([0.0, 2.0]))
tensor([1., 2.])
= fmin
>>> fw.fmin(fw.tensor([1.0, fw.nan]), fw.tensor([0.0, 2.0]))
tensor([0., 2.])
= fmod
>>> fw.fmod(fw.tensor([7.0, -7.0]), 3)
tensor([ 1., -1.])
= ge
>>> fw.ge(fw.tensor([1, 2, 3]), 2)
tensor([False,  True,  True])
= gt
>>> fw.gt(fw.tensor([1, 2, 3]), 2)
tensor([False, False,  True])
= heaviside
>>> fw.heaviside(fw.tensor([-1.0, 0.0, 2.0]), fw.tensor([0.5]))
tensor([0.0000, 0.5000, 1.0000])
= hypot
>>> fw.hypot(fw.tensor([3.0]), fw.tensor([4.0]))
tensor([5.])
= ldexp
>>> fw.ldexp(fw.tensor([1.0, 3.0]), fw.tensor([2, 3]))
tensor([ 4., 24.])
= le
>>> fw.le(fw.tensor([1, 2, 3]), 2)
tensor([ True,  True, False])
= lerp
>>> fw.lerp(fw.tensor([0.0, 10.0]), fw.tensor([10.0, 20.0]), 0.25)
tensor([ 2.5000, 12.5000])
= logaddexp
>>> fw.logaddexp(fw.tensor([0.0]), fw.tensor([0.0]))
tensor([0.6931])
= logical_and
>>> fw.logical_and(fw.tensor([True, False]), fw.tensor([True, True]))
tensor([ True, False])
= logical_or
>>> fw.logical_or(fw.tensor([True, False]), fw.tensor([False, False]))
tensor([ True, False])
= logical_xor
>>> fw.logical_xor(fw.tensor([True, False]), fw.tensor([True, True]))
tensor([False,  True])
= lt
>>> fw.lt(fw.tensor([1, 2, 3]), 2)
tensor([ True, False, False])
= maximum
>>> fw.maximum(fw.tensor([1.0, 5.0]), fw.tensor([3.0, 2.0]))
tensor([3., 5.])
= minimum
>>> fw.minimum(fw.tensor([1.0, 5.0]), fw.tensor([3.0, 2.0]))
tensor([1., 2.])
= mul
>>> fw.mul(fw.tensor([[1], [2]]), fw.tensor([10, 20, 30]))
tensor([[10, 20, 30],
        [20, 40, 60]])
= ne
>>> fw.ne(fw.tensor([1, 2]), fw.tensor([1, 3]))
tensor([False,  True])
= pow
>>> fw.pow(fw.tensor([1.0, 2.0, 3.0]), 2)
tensor([1., 4., 9.])
= remainder
>>> fw.remainder(fw.tensor([7.0, -7.0]), 3)
tensor([1., 2.])
= rsub
>>> fw.rsub(fw.tensor([1, 2]), 10)
tensor([9, 8])
= sub
>>> fw.sub(fw.tensor([5, 6]), fw.tensor([1, 2]), alpha=2)
tensor([3, 2])
= where
>>> fw.where(fw.tensor([True, False]), fw.tensor([1.0, 2.0]), 0.0)
tensor([1., 0.])
= xlogy
>>> fw.xlogy(fw.tensor([0.0, 2.0]), fw.tensor([0.0, fw.e]))
tensor([0., 2.])
# any shape; `dim` goes, or stays with size 1 where `keepdim`; without `dim` the result has no dimensions
= all
>>> fw.all(fw.tensor([[True, False], [True, True]]), dim=1)
tensor([False,  True])
= amax
>>> fw.amax(fw.tensor([[1.0, 4.0], [3.0, 2.0]]), dim=1)
tensor([4., 3.])
= amin
>>> fw.amin(fw.tensor([[1.0, 4.0], [3.0, 2.0]]), dim=0)
tensor([1., 2.])
= aminmax
>>> fw.aminmax(fw.tensor([1.0, 4.0, 3.0]))
(tensor(1.), tensor(4.))
= any
>>> fw.any(fw.tensor([[True, False], [False, False]]), dim=1)
tensor([ True, False])
= argmax
>>> fw.argmax(fw.tensor([[1.0, 4.0], [3.0, 2.0]]), dim=1)
tensor([1, 0])
= argmin
>>> fw.argmin(fw.tensor([[1.0, 4.0], [3.0, 2.0]]), dim=1)
tensor([0, 1])
= count_nonzero
>>> fw.count_nonzero(fw.tensor([[1, 0], [2, 3]]), dim=1)
tensor([1, 2])
= logsumexp
>>> fw.logsumexp(fw.tensor([[0.0, 0.0], [1.0, 1.0]]), dim=1)
tensor([0.6931, 1.6931])
= max
>>> fw.max(fw.tensor([1.0, 4.0, 3.0]))
tensor(4.)
>>> fw.max(fw.tensor([[1, 4], [3, 2]]), dim=1)
framework.return_types.max(
values=tensor([4, 3]),
indices=tensor([1, 0]))
= mean
>>> fw.mean(fw.tensor([[1.0, 3.0], [5.0, 7.0]]), dim=1, keepdim=True)
tensor([[2.],
        [6.]])
= median
>>> fw.median(fw.tensor([3.0, 1.0, 2.0]))
tensor(2.)
= min
>>> fw.min(fw.tensor([[1, 4], [3, 2]]), dim=1)
framework.return_types.min(
values=tensor([1, 2]),
indices=tensor([0, 1]))
= nanmean
>>> fw.nanmean(fw.tensor([1.0, fw.nan, 3.0]))
tensor(2.)
= nanmedian
>>> fw.nanmedian(fw.tensor([1.0, fw.nan, 3.0]))
tensor(1.)
= nansum
>>> fw.nansum(fw.tensor([1.0, fw.nan, 3.0]))
tensor(4.)
= norm
>>> fw.norm(fw.tensor([[3.0, 4.0], [6.0, 8.0]]), dim=1)
tensor([ 5., 10.])
= prod
>>> fw.prod(fw.tensor([1.0, 2.0, 3.0]))
tensor(6.)
= quantile
>>> fw.quantile(fw.tensor([0.0, 1.0, 2.0, 3.0]), 0.5)
tensor(1.5000)
= std
>>> fw.std(fw.tensor([1.0, 2.0, 3.0]))
tensor(1.)
= std_mean
>>> fw.std_mean(fw.tensor([1.0, 2.0, 3.0]))
(tensor(1.), tensor(2.))
= sum
>>> fw.sum(fw.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=0)
tensor([4., 6.])
= var
>>> fw.var(fw.tensor([1.0, 2.0, 3.0]))
tensor(1.)
= var_mean
>>> fw.var_mean(fw.tensor([1.0, 2.0, 3.0]))
(tensor(1.), tensor(2.))
= kthvalue
>>> fw.kthvalue(fw.tensor([3.0, 1.0, 2.0]), 2)
framework.return_types.kthvalue(
values=tensor(2.),
indices=tensor(2))
# any shape; the result has the shape of the input
= cummax
>>> fw.cummax(fw.tensor([1.0, 3.0, 2.0]), dim=0)
framework.return_types.cummax(
values=tensor([1., 3., 3.]),
indices=tensor([0, 1, 1]))
= cummin
>>> fw.cummin(fw.tensor([3.0, 1.0, 2.0]), dim=0)
framework.return_types.cummin(
values=tensor([3., 1., 1.]),
indices=tensor([0, 1, 1]))
= cumprod
>>> fw.cumprod(fw.tensor([1.0, 2.0, 3.0]), dim=0)
tensor([1., 2., 6.])
= cumsum
>>> fw.cumsum(fw.tensor([1.0, 2.0, 3.0]), dim=0)
tensor([1., 3., 6.])
= logcumsumexp
>>> fw.logcumsumexp(fw.tensor([0.0, 0.0]), dim=0)
tensor([0.0000, 0.6931])
= log_softmax
>>> fw.log_softmax(fw.tensor([[0.0, 0.0]]), dim=1)
tensor([[-0.6931, -0.6931]])
= softmax
>>> fw.softmax(fw.tensor([[0.0, 1.0], [2.0, 2.0]]), dim=1)
tensor([[0.2689, 0.7311],
        [0.5000, 0.5000]])
= sort
>>> fw.sort(fw.tensor([3.0, 1.0, 2.0]))
framework.return_types.sort(
values=tensor([1., 2., 3.]),
indices=tensor([1, 2, 0]))
= argsort
>>> fw.argsort(fw.tensor([3.0, 1.0, 2.0]))
tensor([1, 2, 0])
= msort
>>> fw.msort(fw.tensor([3.0, 1.0, 2.0]))
tensor([1., 2., 3.])
# `k` elements are left along `dim`
= topk
>>> fw.topk(fw.tensor([3.0, 1.0, 2.0]), 2)
framework.return_types.topk(
values=tensor([3., 2.]),
indices=tensor([0, 2]))
# two shapes that broadcast; the result is a number or a bool
= allclose
>>> fw.allclose(fw.tensor([1.0]), fw.tensor([1.0 + 1e-7]))
True
= dist
>>> fw.dist(fw.tensor([0.0, 0.0]), fw.tensor([3.0, 4.0]))
tensor(5.)
= equal
>>> fw.equal(fw.tensor([1, 2]), fw.tensor([1, 2]))
True
= isclose
>>> fw.isclose(fw.tensor([1.0, 2.0]), fw.tensor([1.0, 2.1]))
tensor([ True, False])
# any
= is_complex
>>> fw.is_complex(fw.ones(2))
False
= is_floating_point
>>> fw.is_floating_point(fw.ones(2)), fw.is_floating_point(fw.arange(2))
(True, False)
= is_nonzero
>>> fw.is_nonzero(fw.tensor([3.0]))
True
= is_tensor
>>> fw.is_tensor(fw.ones(2)), fw.is_tensor([1, 2])
(True, False)
= isin
>>> fw.isin(fw.tensor([1, 2, 3]), fw.tensor([2, 3, 4]))
tensor([False,  True,  True])
= numel
>>> fw.numel(fw.zeros(2, 3))
6
# any shape to [n], what is found
= argwhere
>>> fw.argwhere(fw.tensor([[0, 1], [2, 0]]))
tensor([[0, 1],
        [1, 0]])
= nonzero
>>> fw.nonzero(fw.tensor([0, 5, 0, 7]))
tensor([[1],
        [3]])
= unique
>>> fw.unique(fw.tensor([3, 1, 3, 2]))
tensor([1, 2, 3])
>>> fw.unique(fw.tensor([3, 1, 3]), return_counts=True)
(tensor([1, 3]), tensor([1, 2]))
= unique_consecutive
>>> fw.unique_consecutive(fw.tensor([1, 1, 2, 2, 1]))
tensor([1, 2, 1])
= bincount
>>> fw.bincount(fw.tensor([0, 1, 1, 3]))
tensor([1, 2, 0, 1])
= histc
>>> fw.histc(fw.tensor([0.0, 1.0, 1.5, 2.0]), bins=2, min=0, max=2)
tensor([1., 3.])
# values of any shape; the result has their shape
= bucketize
>>> fw.bucketize(fw.tensor([0.5, 3.0]), fw.tensor([1.0, 2.0, 3.0]))
tensor([0, 2])
= searchsorted
>>> fw.searchsorted(fw.tensor([1.0, 2.0, 3.0]), fw.tensor([0.5, 3.0]))
tensor([0, 2])
"""
