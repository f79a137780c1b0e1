"""Spectra of the query-key operator of attention heads."""
