"""Files for other people: packs of records, and trained weights with a model card."""
