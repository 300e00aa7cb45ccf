"""The pages, one file for each view."""
