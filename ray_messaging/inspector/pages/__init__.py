"""The pages of the inspector, one file for each."""
