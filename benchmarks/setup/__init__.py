"""What a run needs beside our own code: the peers' environments, and their servers."""
