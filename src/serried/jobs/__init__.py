"""One file for each kind of job: how it becomes pod sets, and what starts, suspends and finishes it.

Here: pure translations between a job's own fields and pod sets, both ways.
Not here: reading or writing the job; that is `control`.
"""
