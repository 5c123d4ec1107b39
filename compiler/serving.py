"""Plans of one function for other sizes: their products share kernels, where sizes vary.

The first plan has what is best for its own sizes; a size that is another one in a later plan is expected to
be yet another in those to come. Knows no addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.lower import Kernel
from compiler.matmul import serving
from compiler.plan import Plan
from kernels.spec import BLOCKS, PACKED, MatmulSpec
from kernels.varying import Varying
from kernels.work import Chain


def shared(plan: Plan, varying: Varying) -> Plan:
    """`plan` with products that serve all sizes of the plans before it, and of those to come."""
    products = [n for n, kernel in enumerate(plan.kernels) if isinstance(kernel.spec, MatmulSpec)]
    marked = varying.marked([plan.kernels[n].work() for n in products])
    chained = {link.number for chain in plan.chains for link in chain.links}
    kernels = list(plan.kernels)
    for number, work in zip(products, marked, strict=True):
        # What is walked by blocks serves any number of rows best; a few, which the last tile of a chain may
        # have, by sums in another order.
        usual = PACKED if number in chained else BLOCKS
        kernels[number] = serving(kernels[number], work.varying, usual)
    if all(a is b for a, b in zip(kernels, plan.kernels, strict=True)):
        return plan
    return replace(plan, kernels=kernels, chains=tuple(_with_kernels(c, kernels) for c in plan.chains))


def _with_kernels(chain: Chain, kernels: Sequence[Kernel]) -> Chain:
    """A chain with the specs of these kernels."""
    links = (replace(x, work=replace(x.work, spec=kernels[x.number].spec)) for x in chain.links)
    return replace(chain, links=tuple(links))
