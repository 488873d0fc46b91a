"""Snapshots and logs of finished runs in, measures, strata, tables and nulls out. Never needs a model."""
