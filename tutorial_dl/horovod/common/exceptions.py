"""The interface of horovod.common.exceptions."""

from ...interop.horovod.elastic.running import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
