"""Other libraries' interfaces: Horovod's (horovod/), Keras layers (layers/), and the order of
collectives inside TensorFlow's graph.
"""
