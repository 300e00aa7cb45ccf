"""Studies: many runs of one model, with the parameters, the outcomes and the seed of each run in one table."""
