"""The state decisions are made on: nodes in topology order, capacity arrays, usage, and the journal.

Here: data, the few ways to change it, and the journal through which each change can be taken back.
Not here: a choice of any kind, and no wire types beyond those of `api`.
"""
