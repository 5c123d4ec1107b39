"""Tensors: making them, their type and layout, views that share memory, conversion."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import framework as fw

ROOT = Path(fw.__file__).parents[1]


def test_inferred_dtypes() -> None:
    assert fw.tensor([1, 2]).dtype is fw.int64
    assert fw.tensor([1, 2.5]).dtype is fw.float32
    assert fw.tensor([True]).dtype is fw.bool
    assert fw.tensor(np.ones(2)).dtype is fw.float64
    assert fw.tensor([]).dtype is fw.float32
    assert fw.tensor([fw.tensor(1), fw.tensor(2)]).tolist() == [1, 2]


@pytest.mark.parametrize("data", [[[1, 2], [3]], "text", [None]])
def test_what_is_no_tensor_raises(data: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        fw.tensor(data)


def test_tensor_copies_and_from_numpy_shares() -> None:
    array = np.zeros(3, np.float32)
    shared, copied = fw.from_numpy(array), fw.tensor(array)
    array[0] = 7
    assert shared.tolist() == [7, 0, 0]
    assert copied.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (fw.arange(5), np.arange(5)),
        (fw.arange(1, 2, 0.25), np.arange(1, 2, 0.25, np.float32)),
        (fw.arange(5, 0, -2), np.array([5, 3, 1])),
        (fw.linspace(0, 1, 5), np.linspace(0, 1, 5, dtype=np.float32)),
        (fw.eye(2, 3), np.eye(2, 3, dtype=np.float32)),
        (fw.full((2,), 3), np.array([3, 3])),
        (fw.ones(2, 1), np.ones((2, 1), np.float32)),
        (fw.zeros_like(fw.ones(2, dtype=fw.int32)), np.zeros(2, np.int32)),
    ],
)
def test_creation(made: fw.Tensor, expected: np.ndarray) -> None:
    assert made.numpy().dtype == expected.dtype
    np.testing.assert_array_equal(made.numpy(), expected)


def test_size_and_layout() -> None:
    x = fw.zeros(2, 3, 4)
    assert (x.dim(), x.numel(), x.size(-1), len(x), x.element_size()) == (3, 24, 4, 2, 4)
    assert x.stride() == (12, 4, 1)
    assert x.shape.numel() == 24 and x.shape == (2, 3, 4) and isinstance(x.shape[1:], fw.Size)
    transposed = x.transpose(0, 2)
    assert transposed.stride() == (1, 4, 12)
    assert not transposed.is_contiguous() and transposed.contiguous().is_contiguous()
    assert x[1].storage_offset() == 12


def test_a_write_through_a_view_is_seen_everywhere() -> None:
    base = fw.zeros(2, 3)
    views = [base.t(), base.view(6), base[0], base[:, 1:], base.unsqueeze(0), base.detach(), base.data]
    base.t()[1].fill_(5)
    assert base.tolist() == [[0, 5, 0], [0, 5, 0]]
    assert views[0].tolist() == [[0, 0], [5, 5], [0, 0]]
    assert views[1].tolist() == [0, 5, 0, 0, 5, 0]
    assert views[3].tolist() == [[5, 0], [5, 0]]
    assert views[5].tolist() == views[6].tolist() == base.tolist()


def test_reshape_copies_only_where_it_must() -> None:
    base = fw.arange(6).view(2, 3)
    base.reshape(3, 2)[0, 0] = 9
    assert base[0, 0].item() == 9
    base.t().reshape(6)[0] = 1
    assert base[0, 0].item() == 9
    with pytest.raises(RuntimeError, match="reshape"):
        base.t().view(6)


def test_versions_count_writes() -> None:
    x = fw.zeros(3)
    view = x[1:]
    view.add_(1)
    x.mul_(2)
    assert x._version == view._version == x.detach()._version == 2
    assert x.clone()._version == 0


def test_conversions() -> None:
    x = fw.tensor([1.7, -1.7])
    assert x.long().tolist() == [1, -1]
    assert x.to(fw.float32) is x
    assert x.to("cpu", fw.float64).dtype is fw.float64
    assert x.type() == "framework.FloatTensor"
    assert x.bool().tolist() == [True, True]
    assert fw.tensor([300]).to(fw.uint8).tolist() == [44]


def test_cuda_says_what_is_missing() -> None:
    for make in (
        lambda: fw.zeros(1, device="cuda"),
        lambda: fw.zeros(1).to("cuda:0"),
        lambda: fw.zeros(1).cuda(),
    ):
        with pytest.raises(RuntimeError, match=r"no NVIDIA driver|GPU|CuPy"):
            make()
    assert fw.device("cuda", 1) == fw.device("cuda:1")


def test_python_values() -> None:
    assert fw.tensor([[2]]).item() == 2
    assert float(fw.tensor(1.5)) == 1.5 and int(fw.tensor(3)) == 3 and bool(fw.tensor([0.0])) is False
    assert [10, 20][fw.tensor(1)] == 20
    assert f"{fw.tensor(1.25):.1f}" == "1.2"
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(fw.ones(2))
    with pytest.raises(RuntimeError, match="cannot be converted"):
        fw.ones(2).item()
    with pytest.raises(TypeError, match="0-d"):
        len(fw.tensor(1))


def test_tensors_hash_by_identity_and_iterate() -> None:
    x = fw.tensor([1, 2])
    assert {x: "a"}[x] == "a"
    assert [t.item() for t in x] == [1, 2]
    assert 2 in x and 3 not in x


def test_pickle_and_deepcopy_keep_leaves() -> None:
    x = fw.tensor([1.0, 2.0], requires_grad=True)
    for made in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert made.tolist() == [1, 2] and made.requires_grad and made is not x
    with pytest.raises(RuntimeError, match="detach"):
        pickle.dumps(x * 1)


def test_matmul_ranks() -> None:
    rng = np.random.default_rng(0)
    for a, b in [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((2, 3), (5, 3, 4)),
    ]:
        x, y = rng.standard_normal(a), rng.standard_normal(b)
        np.testing.assert_allclose((fw.tensor(x) @ fw.tensor(y)).numpy(), x @ y, rtol=1e-12)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("bij,bjk->bik", ((5, 2, 3), (5, 3, 4))),
        ("ii->i", ((3, 3),)),
        ("ij->", ((2, 3),)),
        ("...ij,...jk->...ik", ((2, 5, 2, 3), (5, 3, 4))),
        ("bhid,bhjd->bhij", ((2, 3, 4, 5), (2, 3, 6, 5))),
        ("i,j", ((2,), (3,))),
        ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5))),
    ],
)
def test_einsum(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s) for s in shapes]
    got = fw.einsum(equation, *(fw.tensor(a) for a in arrays)).numpy()
    np.testing.assert_allclose(got, np.einsum(equation, *arrays), rtol=1e-12, atol=1e-12)


def test_einsum_of_lists() -> None:
    a, b = fw.arange(6.0).reshape(2, 3), fw.arange(12.0).reshape(3, 4)
    wanted = (a @ b).tolist()
    assert fw.einsum(a, [0, 1], b, [1, 2], [0, 2]).tolist() == wanted
    assert fw.einsum(a, [0, 30], b, [30, 40]).tolist() == wanted
    assert fw.einsum(b.reshape(2, 3, 2), [..., 1], [...]).tolist() == b.reshape(2, 3, 2).sum(-1).tolist()


def test_import_is_light() -> None:
    code = "import framework, sys; print({'numba', 'scipy', 'torch', 'triton'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "set()"


def test_a_foreign_compiler_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "compiler").mkdir()
    (tmp_path / "compiler" / "__init__.py").write_text("")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import framework"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert "ImportError" in done.stderr and str(tmp_path / "compiler") in done.stderr
