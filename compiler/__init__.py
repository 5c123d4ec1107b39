"""From recorded ops to a program of fused kernels: op table, IR, passes, scheduler, memory plan.

Never sees a Tensor; imports kernels only.
"""
