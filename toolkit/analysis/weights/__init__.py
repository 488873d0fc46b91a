"""How far the weights of each layer moved between two checkpoints, and whether that depends on the layer."""
