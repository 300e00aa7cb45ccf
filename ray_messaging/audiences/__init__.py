"""Audiences: named, versioned sets of pairs of a sender and a hearer."""
