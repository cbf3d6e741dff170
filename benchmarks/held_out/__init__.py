"""Pairs of networks and third-party models, with and without a fault, that no judgement of compare was tuned on."""
