"""A model and texts in, where position goes out: variance per layer, decoding in bits, counterfactual positions."""
