"""Other libraries' interfaces: Horovod's (horovod/), Keras layers (layers/), and collectives inside
TensorFlow's graph (tensorflow_graph.py).
"""
