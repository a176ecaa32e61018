"""Pod groups: membership, phases, which nodes a member may use, and the plan that binds all members at once.

Here: the state of a gang and its legal moves, as pure functions.
Not here: the bindings themselves, which the executor in `control` sends.
"""
