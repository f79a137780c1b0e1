"""Building the book: text notebooks in, HTML and PDF out."""
