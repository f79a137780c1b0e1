"""Settings of the whole suite."""

from hypothesis import settings

# No deadlines: a loaded machine is not a fault. Fixed examples: a run that passed passes again.
settings.register_profile("qkspectra", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("qkspectra")
