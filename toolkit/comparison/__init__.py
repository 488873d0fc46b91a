"""Many runs beside each other: conditions, intervals, tests, verdicts and cards."""
