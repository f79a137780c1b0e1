"""The toy laboratory: two-layer attention-only models that form the induction circuit within seconds."""
