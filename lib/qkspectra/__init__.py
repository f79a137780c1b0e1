"""Spectra of the query-key operator of attention heads."""

import lazy_loader

# Names load on first use: torch takes seconds to import, and `qkspectra --help` need not wait for it.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "errors": ["InputError"],
        "scores": ["rebuilt_scores"],
        "studies.audit": ["ablations", "audit"],
        "verify": ["Agreement", "agreements"],
        "weights": ["Weights", "open_model"],
    },
)
