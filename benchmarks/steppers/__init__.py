"""One training step per framework, each written the way its users write it.

Every module has `make(work) -> (step, batches)`: `step(*batch)` trains once and returns the loss.
"""
