"""Studies: many runs of one model, and a table with the parameters, the seed and the outcomes of each run."""
