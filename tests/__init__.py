"""Tests: units per package, properties, scenarios on both clusters, API contracts, conformance corpora."""
