"""Where weights come from and what shape they have."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"model": ["Weights", "open_model"]})
