"""Steps of an experiment, as every server keeps them."""
