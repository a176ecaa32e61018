"""The running controller: watch events into the model, decisions out to the API.

Here: the wiring, the reconcile loops, what writes decisions (`decision_writer`) and actions (`executor`), webhooks,
leader election. The only room that knows both `schedule` and `cluster`.
Not here: a decision. What to do is asked of the pure rooms; this room only does it.
"""
