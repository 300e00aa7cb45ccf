"""Where the pairs of audiences are kept and looked up."""
