"""The verifier: every node has the type its op's rule gives, and nothing is read that is not there.

Runs after the pass pipeline, and after each pass when the environment variable TRACEFUSE_VERIFY is set.
"""

from __future__ import annotations

from compiler.errors import VerifyError
from compiler.ir import Apply, Const, Graph, Input, Value
from compiler.types import type_of_array

# Nodes shown before a faulty one.
_CONTEXT = 4


def verify(graph: Graph, after: str) -> None:
    """Raise VerifyError, showing the neighbourhood, if a node breaks a type rule; `after` names the pass."""
    names = {v: f"%{i}" for i, v in enumerate(graph.nodes)}
    given = set(graph.inputs)
    # Applications whose types are right: those of a loop over time are a few, many times over.
    right: set[object] = set()
    for node in graph.nodes:
        if isinstance(node, Apply):
            kinds = [(x.type.shape, x.type.dtype) for x in (node, *node.inputs)]
            key = (node.op, node.attrs_text, *kinds)
            if key in right:
                continue
            right.add(key)
        if (fault := _fault(node, given, names)) is not None:
            raise VerifyError(f"after {after}: {names[node]} {fault}\n{_neighbourhood(graph, node)}")


def _fault(node: Value, given: set[Input], names: dict[Value, str]) -> str | None:
    match node:
        case Input() if node not in given:
            return f'reads input "{node.name}", which is not an input of the graph'
        case Const(data=data) if type_of_array(data) != node.type:
            return f"says {node.type} but holds {type_of_array(data)}"
        case Apply(op=op, inputs=inputs, attrs=attrs):
            call = f"{op.name}({', '.join(names[x] for x in inputs)})"
            try:
                inferred = op.infer(*(x.type for x in inputs), **attrs)
            except (TypeError, ValueError, RuntimeError, IndexError) as error:
                return f"is {call}, which is no valid application: {error}"
            if inferred != node.type:
                return f"says {node.type} but {call} gives {inferred}"
    return None


def _neighbourhood(graph: Graph, node: Value) -> str:
    lines = str(graph).splitlines()[:-1]
    at = graph.nodes.index(node)
    shown = range(max(at - _CONTEXT, 0), at + 1)
    return "\n".join(f" {'>' if i == at else ' '} {lines[i]}" for i in shown)
