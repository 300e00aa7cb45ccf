"""The Ray actors of an experiment, and the plain classes that they run."""
