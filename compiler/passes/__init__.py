"""Passes from a recorded graph to one ready for the scheduler; PIPELINE is the order they run in, and THERE
comes after it for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir import Graph
from compiler.passes.decompose import decompose
from compiler.passes.duplicates import merge_duplicates
from compiler.passes.products import join_products
from compiler.passes.recomputing import recompute, recompute_there
from compiler.passes.simplify import simplify
from compiler.passes.views import hoist_views, settle_views

PIPELINE: tuple[Callable[[Graph], Graph], ...] = (
    decompose,  # ops without kernels, in terms of others
    simplify,  # exact algebra
    merge_duplicates,
    hoist_views,  # movements up to memory, dropped axes down
    merge_duplicates,
    join_products,  # many small products as one
    settle_views,  # again, rows of products split where what follows splits them
    merge_duplicates,
    recompute,  # last: what it computes twice must not become one again
)
# What a GPU's programs go through after that.
THERE: tuple[Callable[[Graph], Graph], ...] = (recompute_there,)
