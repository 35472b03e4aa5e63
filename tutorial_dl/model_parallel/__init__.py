"""Model parallelism: one model whose layers lie on several ranks.

Data parallelism needs the whole model on every rank. Here each rank holds a part: some of the
layers (a stage of a pipeline), or a slice of each layer.
"""
