"""hvd.elastic: training goes on with the ranks that are left when some are lost.

running.py   `run`, which calls the training function again; the errors it heeds; states of objects
keras.py     states of TensorFlow's variables and Keras models, and callbacks for `model.fit`
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "keras": [
            "CommitStateCallback", "KerasState", "TensorFlowKerasState", "TensorFlowState",
            "UpdateBatchStateCallback", "UpdateEpochStateCallback",
        ],
        "running": ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "run"],
    },
)  # fmt: skip
