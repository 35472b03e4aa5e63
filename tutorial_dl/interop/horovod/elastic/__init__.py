"""hvd.elastic: training goes on with the ranks that are left when some are lost.

running.py     `run`, which calls the training function again; errors.py: the errors it heeds
state.py       State and ObjectState: what is committed, restored, and sent by rank 0
variables.py   states of TensorFlow's variables and Keras models; callbacks.py: for `model.fit`
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "callbacks": [
            "CommitStateCallback",
            "UpdateBatchStateCallback",
            "UpdateEpochStateCallback",
        ],
        "errors": ["HorovodInternalError", "HostsUpdatedInterrupt"],
        "running": ["run"],
        "state": ["ObjectState", "State"],
        "variables": ["KerasState", "TensorFlowKerasState", "TensorFlowState"],
    },
)
