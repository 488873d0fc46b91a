"""A tuned run in, what each component's drift is worth to its scores out: transplants and their Shapley values."""
