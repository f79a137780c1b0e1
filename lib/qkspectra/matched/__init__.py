"""The matched experiment: one small language model, five position schemes, everything else equal."""
