"""The way of a job: what is to be written next for it, its Workload and its gang, given how everything stands. Pure.

Here: the objects that are watched with the links between them, and the actions that follow from them.
Not here: watching and writing; that is `control`. A simulator can use this package as the controller does.
"""
