"""Run cells: skip those with a record, train and score the others."""
