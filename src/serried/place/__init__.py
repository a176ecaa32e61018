"""Where: which nodes, within which topology domain, a pod set fits on.

Here: pure functions over the model's capacity arrays; no Python loop over nodes or pods.
Not here: whether the team may use the capacity (that is `quota`) or who has to go for it (`schedule`).
"""
