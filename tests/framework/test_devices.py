"""Tensors on a GPU, eagerly: on a stand-in for CuPy, beside the same on the CPU."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import framework as fw
import framework.nn.functional as F
from framework import nn
from kernels.gpu import arrays
from tests import cupy_standin


@pytest.fixture(autouse=True, scope="module")
def devices() -> Iterator[None]:
    with cupy_standin.installed():
        yield


def same(there: Any, here: Any) -> None:
    """A tensor on a GPU has the type and the bits of one on the CPU."""
    assert there.is_cuda and not here.is_cuda
    assert there.dtype is here.dtype and tuple(there.shape) == tuple(here.shape)
    assert there.cpu().detach().numpy().tobytes() == here.detach().contiguous().numpy().tobytes()


# Making

MADE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tensor": lambda d: fw.tensor([[1.5, 2], [3, -0.0]], **d),
    "tensor_of_ints": lambda d: fw.tensor(range(5), **d),
    "as_tensor": lambda d: fw.as_tensor(np.arange(6.0).reshape(2, 3), **d),
    "zeros": lambda d: fw.zeros(2, 3, **d),
    "ones": lambda d: fw.ones((2, 3), dtype=fw.float64, **d),
    "empty": lambda d: fw.empty(4, **d),
    "full": lambda d: fw.full((2, 2), 7, **d),
    "full_bool": lambda d: fw.full((2, 2), True, **d),
    "full_bfloat16": lambda d: fw.full((3,), 1.1, dtype=fw.bfloat16, **d),
    "arange": lambda d: fw.arange(2, 11, 3, **d),
    "arange_float": lambda d: fw.arange(0.0, 1.0, 0.3, **d),
    "linspace": lambda d: fw.linspace(-1, 2, 7, **d),
    "logspace": lambda d: fw.logspace(0, 2, 5, **d),
    "eye": lambda d: fw.eye(3, 4, **d),
    "tril_indices": lambda d: fw.tril_indices(3, 4, **d),
    "scalar_tensor": lambda d: fw.scalar_tensor(3, **d),
    "rand": lambda d: fw.rand(5, 7, **d),
    "rand_float64": lambda d: fw.rand(5, dtype=fw.float64, **d),
    "randn": lambda d: fw.randn(33, **d),
    "randn_float64": lambda d: fw.randn(5, dtype=fw.float64, **d),
    "randn_bfloat16": lambda d: fw.randn(5, dtype=fw.bfloat16, **d),
    "randint": lambda d: fw.randint(-3, 9, (4, 4), **d),
    "randint_wide": lambda d: fw.randint(0, 2**40, (4,), **d),
    "randperm": lambda d: fw.randperm(11, **d),
    "normal": lambda d: fw.normal(1.0, 2.0, (3, 3), **d),
    "construct": lambda d: fw.Tensor([1, 2, 3], **d),
}


@pytest.mark.parametrize("name", MADE)
def test_made_on_a_gpu(name: str) -> None:
    make = MADE[name]
    fw.manual_seed(5)
    here = make({})
    after = fw.get_rng_state()
    fw.manual_seed(5)
    there = make({"device": "cuda:1"})
    same(there, here)
    assert there.device == fw.device("cuda", 1) and there.get_device() == 1
    assert fw.equal(fw.get_rng_state(), after)


@pytest.mark.parametrize(
    "like",
    [
        fw.zeros_like,
        fw.ones_like,
        fw.empty_like,
        fw.rand_like,
        fw.randn_like,
        lambda t: fw.full_like(t, 3),
        lambda t: fw.randint_like(t, 9),
        lambda t: t.new_zeros(3),
        lambda t: t.new_tensor([1, 2]),
        lambda t: t.new_full((2,), 5),
        lambda t: fw.bernoulli(t),
        lambda t: t.clone().uniform_(2, 3),
        lambda t: t.clone().normal_(),
        lambda t: t.clone().exponential_(),
        lambda t: t.clone().random_(0, 9),
        lambda t: t.clone().bernoulli_(0.3),
        lambda t: F.dropout(t, 0.4),
        lambda t: fw.multinomial(t, 2),
    ],
)
def test_made_like_a_tensor_on_a_gpu(like: Callable[[Any], Any]) -> None:
    x = fw.tensor([[0.2, 0.9, 0.5], [0.1, 1.0, 0.6]])
    fw.manual_seed(3)
    here = like(x)
    fw.manual_seed(3)
    there = like(x.cuda(1))
    same(there, here)
    assert there.device == fw.device("cuda:1")


# Moving


def test_moves() -> None:
    x = fw.randn(3, 4)
    there = x.to("cuda")
    assert there.device == fw.device("cuda:0") and there.to("cuda:0") is there and x.cpu() is x
    same(there, x)
    same(x.t().cuda(), x.t())
    same(x.to("cuda", fw.float64), x.double())
    same(x.to(device="cuda", dtype=fw.float16, non_blocking=True), x.half())
    same(x.to(there), x)
    same(x.double().to(there), x)
    same(x.type_as(there), x)
    same(x.to(1), x)
    same(there.to("cuda:1"), x)
    assert there.to("cuda:1").device.index == 1 and there.cuda("cuda:1").device.index == 1
    assert there.to("cpu").device == fw.device("cpu") and fw.equal(there.to("cpu"), x)
    assert there.to(there.device, copy=True) is not there
    assert x.pin_memory().is_pinned() and not x.is_pinned()
    same(x.pin_memory().cuda(non_blocking=True), x)
    with fw.cuda.device(1):
        assert x.to("cuda").device.index == 1 and fw.zeros(2, device="cuda").device.index == 1
    y = fw.zeros(3, 4)
    assert fw.equal(y.copy_(there), x)
    same(fw.zeros(3, 4, device="cuda").copy_(x), x)


def test_gradients_flow_back_from_where_they_went() -> None:
    x = fw.randn(5, requires_grad=True)
    w = fw.randn(5, device="cuda", requires_grad=True)
    (x.cuda() * w).sum().backward()
    assert not x.grad.is_cuda and w.grad.is_cuda
    assert fw.equal(x.grad, w.detach().cpu()) and fw.equal(w.grad.cpu(), x.detach())
    y = fw.zeros(5, device="cuda")
    y.copy_(x)
    x.grad = None
    (y * 3).sum().backward()
    assert fw.equal(x.grad, fw.full((5,), 3.0))
    (g,) = fw.autograd.grad((x.cuda() ** 3).sum(), x, create_graph=True)
    (h,) = fw.autograd.grad(g.sum(), x)
    np.testing.assert_allclose(h.numpy(), 6 * x.detach().numpy(), rtol=1e-5)
    assert not g.is_cuda


# Using

USED: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x, y: (x + y) * 2 - x / (y.abs() + 1),
    "reversed": lambda x, y: 3 - x,
    "compared": lambda x, y: (x < y) & (x != 0),
    "in_place": lambda x, y: x.clone().add_(y).mul_(0.5).clamp_(-1, 1),
    "reduced": lambda x, y: x.sum() + y.mean(0) + x.std() + y.amax(1, keepdim=True),
    "product": lambda x, y: x @ y.t(),
    "viewed": lambda x, y: x.t().reshape(-1)[::2] + y.flip(0).flatten()[1::2],
    "joined": lambda x, y: fw.cat([x, y], 1) if x.shape[1] else fw.stack([x, y]),
    "indexed": lambda x, y: x[1:, [0, 2]] + y[fw.tensor([0, 1]), 1:2],
    "masked": lambda x, y: x[x > 0],
    "assigned": lambda x, y: _assigned(x.clone(), y),
    "picked": lambda x, y: x.gather(1, y.argsort(1)),
    "sorted": lambda x, y: x.sort(1).values,
    "topk": lambda x, y: x.topk(2, 1).indices,
    "where": lambda x, y: fw.where(x > 0, x, y),
    "unique": lambda x, y: fw.unique((x * 2).round()),
    "nonzero": lambda x, y: (x > 0).nonzero(),
    "softmax": lambda x, y: F.softmax(x, 1) + F.log_softmax(y, 0),
    "normed": lambda x, y: F.layer_norm(x, (x.shape[-1],)),
    "gelu": lambda x, y: F.gelu(x) + F.silu(y),
    "loss": lambda x, y: F.cross_entropy(x, y.argmax(1)),
    "one_hot": lambda x, y: F.one_hot(y.argmax(1), 7),
    "triangles": lambda x, y: x.tril() + x.triu(1),
    "diagonal": lambda x, y: x.diagonal() + fw.diag_embed(y[0]).sum(),
    "einsum": lambda x, y: fw.einsum("ij,kj->ik", x, y) + fw.einsum("ii", x[:, :3]),
    "scattered": lambda x, y: x.scatter(1, y.argsort(1), y),
    "added_at": lambda x, y: x.scatter_add(1, y.argsort(1), y),
    "inverse": lambda x, y: fw.atan2(x, y) + fw.asinh(x),
    "max_pooled": lambda x, y: F.max_pool2d(x[None, None], 2, 1, ceil_mode=True),
    "average_pooled": lambda x, y: F.avg_pool2d(y[None, None], 2, 1, padding=1, count_include_pad=False),
    "convolved": lambda x, y: F.conv2d(x[None, None], y[None, None, :2, :2], padding=1),
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], y[None], is_causal=True),
    "repeated": lambda x, y: x.repeat(2, 1).repeat_interleave(2, 0),
    "strided": lambda x, y: x.as_strided((2, 2), (1, 3), 1).clone(),
    "integers": lambda x, y: (x * 9).int() // 4 + (y * 9).int() % 3,
    "interpolated": lambda x, y: fw.lerp(x, y, 0.3) + fw.quantile(x, 0.4),
}  # fmt: skip


def _assigned(x: Any, y: Any) -> Any:
    x[0] = y[1]
    x[:, 1] = 5
    x[x > 1] = 0.5
    x[[0, 2], [1, 0]] = y[0, :2]
    return x


@pytest.mark.parametrize("name", USED)
def test_used_on_a_gpu(name: str) -> None:
    function = USED[name]
    fw.manual_seed(8)
    operands = [fw.randn(3, 4), fw.randn(3, 4)]
    here = function(*operands)
    there = function(*(x.cuda() for x in operands))
    same(there, here)
    if not here.dtype.is_floating_point:
        return
    leaves = [x.clone().requires_grad_() for x in operands]
    leaves_there = [x.cuda().requires_grad_() for x in operands]
    out = function(*leaves)
    if not out.requires_grad:
        return
    out.sum().backward()
    function(*leaves_there).sum().backward()
    for a, b in zip(leaves_there, leaves, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if b.grad is not None:
            same(a.grad, b.grad)


def test_numbers_of_the_cpu_go_with_any_tensor() -> None:
    x = fw.ones(3, device="cuda")
    for y in (x * fw.tensor(2.0), fw.tensor(2.0) * x, fw.where(x > 0, fw.tensor(2.0), x)):
        same(y, fw.full((3,), 2.0))
    x[0] = fw.tensor(7.0)
    assert x.tolist() == [7, 1, 1] and x[fw.tensor([0])].item() == 7


def test_values_come_back_when_asked_for() -> None:
    x = fw.tensor(2.5, device="cuda")
    assert (float(x), x.item(), int(x), bool(x)) == (2.5, 2.5, 2, True)
    assert fw.tensor([1, 2], device="cuda").tolist() == [1, 2]
    assert f"{x:.1f}" == "2.5" and [float(v) for v in fw.ones(2, device="cuda")] == [1, 1]
    assert fw.allclose(fw.ones(2, device="cuda"), fw.ones(2, device="cuda"))


def test_printing_names_the_device() -> None:
    assert repr(fw.tensor([1.0, 2.0], device="cuda")) == "tensor([1., 2.], device='cuda:0')"
    made = fw.tensor([1], dtype=fw.int32, device="cuda:1")
    assert repr(made) == "tensor([1], device='cuda:1', dtype=framework.int32)"
    assert "device='cuda:0', requires_grad=True" in repr(fw.ones(2, device="cuda", requires_grad=True))


# Errors

MIXED = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: x + y,
        lambda x, y: y < x,
        lambda x, y: x @ y.t(),
        lambda x, y: fw.cat([x, y]),
        lambda x, y: fw.where(x > 0, x, y),
        lambda x, y: x.add_(y),
        lambda x, y: F.linear(x, y),
        lambda x, y: x.gather(0, fw.zeros(1, 2, dtype=fw.int64)),
        lambda x, y: fw.atan2(x, y),
    ],
)
def test_tensors_of_two_devices_do_not_meet(call: Callable[..., Any]) -> None:
    x, y = fw.ones(2, 2, device="cuda"), fw.ones(2, 2)
    with pytest.raises(RuntimeError, match=MIXED):
        call(x, y)
    assert x.tolist() == [[1, 1], [1, 1]]


def test_two_gpus_do_not_meet() -> None:
    with pytest.raises(RuntimeError, match=r"at least two devices, cuda:[01] and cuda:[01]!"):
        fw.ones(2, device="cuda:0") + fw.ones(2, device="cuda:1")


def test_other_errors() -> None:
    x = fw.ones(2, device="cuda", requires_grad=True)
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.detach().numpy()
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        np.asarray(x.detach())
    assert x.numpy(force=True).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="assigned grad has data located on a different device"):
        x.grad = fw.ones(2)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        fw.ones(2, device="cuda:7")
    with pytest.raises(RuntimeError, match="'mps' is not available"):
        fw.ones(2, device="mps")
    with pytest.raises(RuntimeError, match="cannot pin 'cuda:0' memory"):
        x.detach().pin_memory()
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        x.detach()[fw.tensor([5], device="cuda")]
    with pytest.raises(RuntimeError, match="division or remainder by zero"):
        fw.tensor([4], device="cuda") // fw.tensor([0], device="cuda")
    with pytest.raises(RuntimeError, match="broadcast"):
        x + fw.ones(3, device="cuda")


# Other libraries, files


def test_memory_is_shared_with_other_libraries() -> None:
    x = fw.arange(6.0, device="cuda:1").reshape(2, 3)
    assert x.__dlpack_device__() == (2, 1)
    y = fw.from_dlpack(x)
    assert y.device == x.device and y.data_ptr() == x.data_ptr()
    interface = x.__cuda_array_interface__
    assert interface["shape"] == (2, 3) and interface["data"][0] == x.data_ptr()
    with fw.cuda.device(1):
        z = fw.as_tensor(_Foreign(interface))
        copied = fw.tensor(_Foreign(interface))
    x[0, 0] = 9
    assert y[0, 0] == 9 and z[0, 0] == 9 and copied[0, 0] == 0 and z.device.index == 1
    assert not hasattr(fw.ones(2), "__cuda_array_interface__")
    with pytest.raises(BufferError, match="require gradient"):
        x.requires_grad_().__dlpack__()
    with pytest.raises(RuntimeError, match="requires grad"):
        _ = x.__cuda_array_interface__


class _Foreign:
    def __init__(self, interface: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = interface


def test_copies_and_pickles_stay_on_their_device() -> None:
    x = fw.randn(3, 4, device="cuda:1")[:, 1:].requires_grad_()
    for made in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert made.device == x.device and made.requires_grad and made.data_ptr() != x.data_ptr()
        same(made, x.detach().cpu())
    assert copy.copy(x).data_ptr() == x.data_ptr()


def test_files_say_where_memory_was() -> None:
    base = fw.randn(6, device="cuda:1")
    saved = {"a": base, "b": base[2:4], "c": fw.ones(2), "d": nn.Parameter(base.clone())}
    file = io.BytesIO()
    fw.save(saved, file)

    def loaded(location: Any = None) -> dict[str, Any]:
        file.seek(0)
        return fw.load(file, location)

    back = loaded()
    assert [back[k].device.type for k in "abcd"] == ["cuda", "cuda", "cpu", "cuda"] and back[
        "a"
    ].device.index == 1
    back["a"][2] = 50
    assert back["b"][0] == 50 and back["d"].requires_grad
    assert {t.device.type for t in loaded("cpu").values()} == {"cpu"}
    assert {str(t.device) for t in loaded("cuda:0").values()} == {"cuda:0"}
    assert {str(t.device) for t in loaded({"cuda:1": "cuda:0"}).values()} == {"cuda:0", "cpu"}
    assert {t.device.type for t in loaded(lambda storage, location: storage).values()} == {"cpu"}
    assert fw.equal(loaded(fw.device("cpu"))["b"], base[2:4].cpu())


def test_a_file_of_a_gpu_is_loaded_without_one() -> None:
    file = io.BytesIO()
    fw.save(fw.ones(2, device="cuda"), file)
    engine, arrays.Known.engine = arrays.Known.engine, None
    try:
        file.seek(0)
        assert fw.load(file, "cpu").tolist() == [1, 1]
        if not fw.cuda.is_available():
            file.seek(0)
            with pytest.raises(RuntimeError, match="map_location='cpu'"):
                fw.load(file)
    finally:
        arrays.Known.engine = engine


# Modules, training


def model() -> nn.Module:
    fw.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.BatchNorm1d(9), nn.Dropout(0.3), nn.Linear(9, 4))


@pytest.mark.parametrize(
    "make", [fw.optim.AdamW, fw.optim.Adagrad, fw.optim.RMSprop, lambda p: fw.optim.SGD(p, 0.1, 0.9, 0.1)]
)
def test_training_gives_the_bits_of_the_cpu(make: Callable[..., Any]) -> None:
    here, there = model(), model().cuda()
    assert {p.device.type for p in there.parameters()} == {"cuda"} == {b.device.type for b in there.buffers()}
    fw.manual_seed(1)
    x, y = fw.randn(8, 6), fw.randint(0, 4, (8,))
    runs = []
    for net, place in ((here, "cpu"), (there, "cuda")):
        optimizer = make(net.parameters())
        fw.manual_seed(2)
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x.to(place)), y.to(place))
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        runs.append((loss.item(), optimizer))
    assert runs[0][0] == runs[1][0]
    for a, b in zip(there.state_dict().values(), here.state_dict().values(), strict=True):
        same(a, b)
    state = runs[1][1].state_dict()["state"]
    assert {t.device.type for values in state.values() for t in values.values()} == {"cuda"}
    # State of the CPU is taken to the parameters' device.
    runs[1][1].load_state_dict(runs[0][1].state_dict())
    moved = runs[1][1].state.values()
    assert {t.device.type for values in moved for t in values.values()} == {"cuda"}
    there.load_state_dict(here.state_dict())
    assert there.cpu() is there and {p.device.type for p in there.parameters()} == {"cpu"}


def test_a_module_is_made_on_a_gpu_and_moved_with_its_gradients() -> None:
    fw.manual_seed(0)
    here = nn.Linear(3, 2)
    fw.manual_seed(0)
    there = nn.Linear(3, 2, device="cuda")
    same(there.weight, here.weight)
    there(fw.ones(1, 3, device="cuda")).sum().backward()
    there.to("cuda:1", fw.float64)
    assert str(there.weight.grad.device) == "cuda:1" and there.weight.grad.dtype is fw.float64


def test_a_loader_pins_its_batches() -> None:
    data = fw.utils.data.TensorDataset(fw.arange(6.0), fw.arange(6))
    for pinned in (True, False):
        for batch in fw.utils.data.DataLoader(data, batch_size=4, pin_memory=pinned):
            assert [x.is_pinned() for x in batch] == [pinned] * 2
            same(batch[0].cuda(non_blocking=True), batch[0])
    there = fw.utils.data.TensorDataset(data.tensors[0].cuda())
    assert [x.device.type for (x,) in fw.utils.data.DataLoader(there, batch_size=4, pin_memory=True)] == [
        "cuda"
    ] * 2


# fw.cuda


def test_the_namespace() -> None:
    cuda = fw.cuda
    assert cuda.is_available() and cuda.device_count() == 2 and cuda.current_device() == 0
    assert cuda.get_device_name() == "stand-in" and cuda.get_device_capability(1) == (9, 0)
    assert cuda.get_device_properties("cuda:0").total_memory == 1 << 34
    cuda.set_device(1)
    assert cuda.current_device() == 1 and fw.device("cuda").index is None
    cuda.set_device("cuda:0")
    cuda.synchronize()
    with pytest.raises(ValueError, match="Expected a cuda device"):
        cuda.synchronize("cpu")
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    other = cuda.Stream()
    with cuda.stream(other):
        assert cuda.current_stream() == other
        first.record()
        fw.ones(3, device="cuda").add(1)
        last.record()
    assert cuda.current_stream() == cuda.default_stream() != other
    last.synchronize()
    assert last.query() and first.elapsed_time(last) > 0
    other.wait_stream(cuda.current_stream())
    with pytest.raises(ValueError, match="enable_timing"):
        first.elapsed_time(cuda.Event())
    cuda.manual_seed_all(7)
    a = fw.rand(3, device="cuda")
    cuda.manual_seed(7)
    same(a, fw.rand(3))


def test_memory_is_counted() -> None:
    cuda = fw.cuda
    before = cuda.memory_allocated(1)
    cuda.reset_peak_memory_stats(1)
    x = fw.zeros(1 << 20, device="cuda:1")
    y = x + 1
    assert cuda.memory_allocated(1) == before + (8 << 20) == cuda.max_memory_allocated(1)
    view = y[5:]
    del x, y
    assert cuda.memory_allocated(1) == before + (4 << 20)
    del view
    assert cuda.memory_allocated(1) == before < cuda.max_memory_allocated(1)
    reserved = cuda.memory_reserved(1)
    cuda.empty_cache()
    assert cuda.memory_reserved(1) < reserved <= cuda.max_memory_reserved(1)
    assert cuda.memory_stats(1)["allocated_bytes.all.current"] == before
    assert sum(cuda.mem_get_info(1)) > cuda.mem_get_info(1)[1]
