"""Questions that need a model and not only snapshots: anatomy, layer drift, position flow, transplants."""
