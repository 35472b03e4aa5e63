"""Other libraries' interfaces: Horovod's (horovod/) and Keras layers (layers/)."""
