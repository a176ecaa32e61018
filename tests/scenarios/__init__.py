"""Stories, each written once and run on a real control plane and on the embedded cluster alike."""
