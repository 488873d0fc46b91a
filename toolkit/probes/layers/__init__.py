"""How far each layer moved, beside what two seeds and shuffled labels do to it."""
