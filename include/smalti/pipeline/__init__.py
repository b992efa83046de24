"""Engines that are asked row by row: plan, prepare, ask, check, checkpoint, fold."""
