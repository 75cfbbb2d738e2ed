"""The science of a cell: model, loader, loop, evaluation."""
