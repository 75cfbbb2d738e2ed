"""A pretend CUDA device: CPU data under CUDA's rules, for machines without a GPU.

Tensors of it say that they are on ``cuda:0`` and hold CPU data. Operations on them obey CUDA's
rules about devices, generators, numpy and half precision (``rules``), and are counted as a GPU
would see them (``counts``). Autocast, GradScaler and autograd are torch's own; they need a CUDA
runtime and driver to be there, of which ``runtime.c`` and ``driver.c`` are enough, preloaded into a
process of its own (``environment``). What it does not have: kernels, memory limits, NCCL.
"""
