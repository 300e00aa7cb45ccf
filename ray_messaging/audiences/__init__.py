"""Audiences: named sets of pairs of a sender and a hearer, which have versions."""
