"""Tests: units per room, properties, scenarios on both clusters, API contracts, conformance corpora."""
