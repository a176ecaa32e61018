"""The decision: queues, the scheduling cycle, preemption, fairness and explanation.

Here: plain synchronous functions over the model that return typed instructions and reasons.
Not here: I/O, a clock (time is an argument), randomness, or wording for people.
"""
