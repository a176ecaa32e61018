"""How much: the tree of cohorts, flavors, nominal quota, borrowing, lending and shares.

Here: pure arithmetic over quotas and usage.
Not here: nodes. Whether the capacity exists somewhere is for `place` to say.
"""
