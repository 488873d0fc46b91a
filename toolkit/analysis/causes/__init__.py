"""A run's logs in, why its rows moved out: gradient, momentum, decay, noise, precision."""
