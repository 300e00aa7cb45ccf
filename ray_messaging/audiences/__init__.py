"""Audiences: named, versioned sets of pairs of sender and hearer."""
