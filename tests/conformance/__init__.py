"""Corpora of decisions with known answers, run through the real decision functions.

`python -m tests.conformance SUITE FILE...` prints one line per case that is answered differently and closes with
`N passed, M failed`. With `--quality` (suite `tas`) an assignment also passes that is another one, but valid and no
worse. The files are data, one JSON record a line; each suite has an adapter that turns a record into a
call and compares the answer.
"""
