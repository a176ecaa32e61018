"""What is shown to people: metrics, events and reports that join the signals of all layers.

Here: names, wording and rates of what is published about decisions.
Not here: the decisions, and the writing of objects to the API.
"""
