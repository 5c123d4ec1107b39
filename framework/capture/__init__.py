"""`@compile`: record a function on IR values, replay it as one program, and see to it that Python's meaning
is kept.
"""
