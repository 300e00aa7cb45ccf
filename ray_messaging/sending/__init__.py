"""The sending side: gather messages into batches, ask for verdicts, cut frames, ship them, tell the senders."""
