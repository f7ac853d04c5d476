"""Key templates, and the proofs that their keys are unique and sorted."""
