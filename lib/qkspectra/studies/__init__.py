"""Studies: units of work that fill the store, and the tidy tables made of it."""
