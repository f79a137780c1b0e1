"""Spectra of the query-key operator of attention heads."""

import lazy_loader

# Names load on first use: torch takes seconds to import, and `qkspectra --help` need not wait for it.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "weights": ["Weights", "open_model"],
        "operators": ["QKOperator", "operator_of"],
        "spectrum": ["Spectrum", "measure"],
        "null": ["closed_forms", "null_operator", "null_samples", "population_z", "z_scores"],
        "channels": ["CHANNELS", "channel_features"],
        "scores": ["rebuilt_scores"],
        "attention": ["tapped"],
        "verify": ["Agreement", "agreements"],
        "behaviour": ["Behaviour", "random_repeats"],
        "intervene": ["ablated"],
        "studies.audit": ["ablations", "audit"],
        "store": ["Store"],
        "errors": ["InputError"],
    },
)
