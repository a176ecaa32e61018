"""Wire types (msgspec structs of the fields in use), quantities, and names of labels, conditions and reasons.

Holds structs, quantities, names of labels, annotations, conditions and reasons. Knows nothing of the other rooms.
"""
