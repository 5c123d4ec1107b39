"""One step per framework, each written the way its users write it.

Every module has makers: `make(work)` gives a `Timed`.
"""
