"""The receiving side: a mailbox, its arrivals, and its cursors."""
