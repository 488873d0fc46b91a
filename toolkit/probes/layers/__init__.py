"""How much the states of each layer changed, beside what two seeds and shuffled labels do to them."""
