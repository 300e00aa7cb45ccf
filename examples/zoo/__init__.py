"""Models of the literature, with the values that their authors published or proved: python -m examples.zoo --check."""
