"""Ratios against peers and floors: every module here with a function `rows` adds its rows to the table."""
