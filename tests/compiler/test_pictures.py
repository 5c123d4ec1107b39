"""Pictures of graphs: every node is drawn once, kernels are told apart, and boxes do not overlap."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from compiler.ir import Graph, Input
from compiler.ops import add, exp, mul, sum
from compiler.pictures import Part, Picture, mermaid
from compiler.types import TensorType
from kernels import dtypes


def picture() -> Picture:
    """exp(2 x + y), and its sum."""
    x = Input(TensorType((3, 4), dtypes.float32), name="x")
    y = Input(TensorType((4,), dtypes.float32), name='y "quoted"')
    doubled = mul.trace(x, 2.0)
    out = exp.trace(add.trace(doubled, y))
    total = sum.trace(out, axes=(0, 1))
    graph = Graph((x, y), (out, total))
    return Picture(graph, (Part("mul_add_exp", (doubled, *graph.nodes[4:6])), Part("sum", (total,))))


def test_mermaid_shows_nodes_edges_kernels_and_outputs() -> None:
    text = picture().mermaid
    assert text.startswith("flowchart TD\n")
    assert 'n0(["input x<br/>float32[3, 4]"])' in text
    assert "y #quot;quoted#quot;" in text
    assert 'subgraph k0["kernel 0: mul_add_exp"]' in text
    assert "mul 2<br/>" in text
    assert len(re.findall(r" --> n\d", text)) == 5
    assert len(re.findall(r" --> out\d\(\[output", text)) == 2
    declared = set(re.findall(r"\b(n\d+)[\[(]", text))
    assert set(re.findall(r"(n\d+) -->", text)) | set(re.findall(r"--> (n\d+)", text)) == declared


def test_svg_is_valid_and_boxes_are_apart() -> None:
    root = ElementTree.fromstring(picture().svg)
    name = "{http://www.w3.org/2000/svg}"
    groups = root.findall(f"{name}g")
    assert len(groups) == 6
    assert [g.get("data-kernel") for g in groups] == ["", "", "0", "0", "0", "1"]
    boxes = [r.attrib for g in groups for r in g.findall(f"{name}rect")]
    places = [(int(b["x"]), int(b["y"]), int(b["width"]), int(b["height"])) for b in boxes]
    for i, (x, y, w, h) in enumerate(places):
        assert x >= 0 and x + w <= int(root.get("width", "0"))
        for u, v, _, _ in places[:i]:
            assert abs(x - u) >= w or abs(y - v) >= h
    assert len(root.findall(f"{name}path")) == 5
    assert "float32[3, 4]" in (groups[2].findtext(f"{name}title") or "")


def test_a_picture_is_written_as_its_suffix_says(tmp_path: Path) -> None:
    drawn = picture()
    assert drawn.save(tmp_path / "g.svg").read_text() == drawn.svg == drawn._repr_svg_()
    assert drawn.save(tmp_path / "g.mmd").read_text() == drawn.mermaid
    assert drawn.save(tmp_path / "g.md").read_text().startswith("```mermaid\n")
    assert drawn.save(tmp_path / "g.txt").read_text() == str(drawn.graph) == str(drawn)
    with pytest.raises(ValueError, match=r"not \.png"):
        drawn.save(tmp_path / "g.png")
    assert repr(drawn) == "<graph of 6 nodes in 2 kernels; str() shows it, .svg and .mermaid draw it>"


def test_a_graph_without_kernels_or_nodes_is_drawn() -> None:
    x = Input(TensorType((), dtypes.float32), name="x")
    assert "-->" in mermaid(Graph((x,), (x,)))
    ElementTree.fromstring(Picture(Graph((), ())).svg)
